package members

import (
	"testing"

	"github.com/barque/barque/membership/gossip"
)

// TestReaders: leadership goes only to servers that live and show the generation of the keys.
func TestReaders(t *testing.T) {
	members := []gossip.Member{
		{State: gossip.Alive, Facts: gossip.Facts{PeerID: "has", DataKeys: 7}},
		{State: gossip.Alive, Facts: gossip.Facts{PeerID: "newer", DataKeys: 8}},
		{State: gossip.Alive, Facts: gossip.Facts{PeerID: "behind", DataKeys: 6}},
		{State: gossip.Alive, Facts: gossip.Facts{PeerID: "earlier version"}},
		{State: gossip.Alive, Facts: gossip.Facts{DataKeys: 7}}, // an agent
		{State: gossip.Dead, Facts: gossip.Facts{PeerID: "dead", DataKeys: 7}},
		{State: gossip.Alive, Facts: gossip.Facts{PeerID: "blind", DataKeys: 7, Blind: true}},
	}
	may := Readers(members, 7)
	for id, want := range map[string]bool{"has": true, "newer": true, "behind": false, "earlier version": false,
		"": false, "dead": false, "blind": false, "unknown": false} {
		if may(id) != want {
			t.Errorf("%q may lead: %t", id, !want)
		}
	}
	if Readers(members, 0)("earlier version") {
		t.Error("without a state of the keys, an earlier version is taken for one that reads encrypted objects")
	}
}
