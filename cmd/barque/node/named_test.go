package node

import (
	"log/slog"
	"net/netip"
	"slices"
	"testing"

	"github.com/barque/barque/membership/enroll"
	"github.com/barque/barque/membership/join"
)

// An agent whose servers have all got new addresses finds them by the given one.
func TestAgentLooksForTheServerThatIsNamed(t *testing.T) {
	old := join.Server{Name: "s1", API: netip.MustParseAddrPort("10.0.0.1:6443"),
		Gossip: netip.MustParseAddrPort("10.0.0.1:7946")}
	for flag, want := range map[string]join.Server{
		"https://10.1.0.1:6443": {API: netip.MustParseAddrPort("10.1.0.1:6443"),
			Gossip: netip.MustParseAddrPort("10.1.0.1:7947")},
		"10.1.0.1:7443": {API: netip.MustParseAddrPort("10.1.0.1:7443"),
			Gossip: netip.MustParseAddrPort("10.1.0.1:7947")},
		"https://10.1.0.1": {API: netip.MustParseAddrPort("10.1.0.1:6443"),
			Gossip: netip.MustParseAddrPort("10.1.0.1:7947")},
	} {
		named := enroll.NamedServer(t.Context(), &enroll.Options{Join: flag, GossipPort: 7947},
			slog.New(slog.DiscardHandler))
		a := &agent{record: &enroll.Record{Cluster: join.Cluster{Servers: []join.Server{old}}}, named: named}
		if got := a.servers(); !slices.Equal(got, []join.Server{old, want}) {
			t.Errorf("--server %s: %v", flag, got)
		}
		if got := a.gossipSeeds(); !slices.Equal(got, []netip.AddrPort{old.Gossip, want.Gossip}) {
			t.Errorf("--server %s: the seeds are %v", flag, got)
		}
	}
	for _, flag := range []string{"", "https://10.1.0.1:no"} {
		if got := enroll.NamedServer(t.Context(), &enroll.Options{Join: flag},
			slog.New(slog.DiscardHandler)); len(got) != 0 {
			t.Errorf("--server %q: %v", flag, got)
		}
	}
}
