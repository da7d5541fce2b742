package node

import (
	"testing"

	"github.com/barque/barque/cmd/barque/node/options"
	"github.com/barque/barque/membership/enroll"
)

// TestGossipPort: a cluster keeps the port of gossip with which it began, since firewalls let that
// pass, and nodes that come later take it over.
func TestGossipPort(t *testing.T) {
	begin := func(o *options.Options) *enroll.Record {
		t.Helper()
		r, err := enlistServer(t.Context(), o, quiet())
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	o := testOptions(t, "s1")
	o.GossipPort = 0
	r := begin(o)
	if o.GossipPort != enroll.GossipPort {
		t.Errorf("a new cluster has port %d, want %d", o.GossipPort, enroll.GossipPort)
	}
	again := func(chosen uint16) uint16 {
		o := &options.Options{DataDir: o.DataDir, Name: o.Name, Settings: o.Settings, Addresses: o.Addresses,
			GossipPort: chosen}
		begin(o)
		return o.GossipPort
	}
	if port := again(0); port != enroll.GossipPort {
		t.Errorf("after a restart the port is %d", port)
	}
	if port := again(9999); port != 9999 {
		t.Errorf("the operator chose 9999, and it is %d", port)
	}
	r.Cluster.GossipPort = 0 // as an earlier version wrote it
	if err := r.Save(); err != nil {
		t.Fatal(err)
	}
	if port := again(0); port != 7946 {
		t.Errorf("in a cluster of an earlier version the port is %d, want 7946", port)
	}
}

// TestAJoinersGossipPort: it is that of the cluster. An earlier version of the server names none.
func TestAJoinersGossipPort(t *testing.T) {
	for _, theirs := range []uint16{0, 7000} {
		for role, enlist := range map[string]func(h *host, o *options.Options) error{
			"server": func(h *host, o *options.Options) error { _, err := enlistServer(t.Context(), o, quiet()); return err },
			"agent":  func(h *host, o *options.Options) error { _, err := enlistAgent(t.Context(), o, quiet()); return err },
		} {
			h := newHost(t)
			h.gossipPort, h.keys = theirs, func() (map[string][]byte, error) { return nil, nil }
			o := testOptions(t, "n1")
			o.GossipPort = 0
			o.Join, o.Token = "https://"+h.addr.String(), h.token.String()
			if err := enlist(h, o); err != nil {
				t.Fatal(err)
			}
			want := theirs
			if want == 0 {
				want = 7946
			}
			if o.GossipPort != want {
				t.Errorf("%s: the cluster has %d, and the node takes %d", role, theirs, o.GossipPort)
			}
		}
	}
}
