package liveness

import (
	"context"
	"net"
	"net/netip"
	"testing"

	"github.com/barque/barque/membership/gossip"
)

// members are those of a pool.
type members map[string]gossip.Member

func (m members) Member(name string) (gossip.Member, bool) {
	one, ok := m[name]
	return one, ok
}

func (m members) Members() (out []gossip.Member) {
	for _, one := range m {
		out = append(out, one)
	}
	return out
}

func (m members) Changed() <-chan struct{} { return nil }

// TestRefusedConnectionsProveADeath, of members that this server was connected with before.
func TestRefusedConnectionsProveADeath(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	at := listener.Addr().(*net.TCPAddr).AddrPort()
	pool := members{"a": {Name: "a", State: gossip.Alive, Addr: at}}
	p := &Processes{pool: pool, self: "s", met: map[string]netip.AddrPort{}}
	if p.Gone(t.Context(), "a") || p.Gone(t.Context(), "b") {
		t.Error("a living node is gone, or an unknown one")
	}
	listener.Close()
	if p.Gone(t.Context(), "a") {
		t.Error("a refusal counts without an earlier connection")
	}
	p.met["a"] = at
	if !p.Gone(t.Context(), "a") {
		t.Error("a dead process is not gone")
	}
	pool["a"] = gossip.Member{Name: "a", State: gossip.Alive, Addr: netip.AddrPortFrom(at.Addr(), at.Port()^1)}
	if p.Gone(t.Context(), "a") {
		t.Error("a refusal counts at an address without an earlier connection")
	}
}

// TestProcessesMeetLivingMembers connects with them while it runs.
func TestProcessesMeetLivingMembers(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	at := listener.Addr().(*net.TCPAddr).AddrPort()
	p := &Processes{pool: members{"a": {Name: "a", State: gossip.Alive, Addr: at}}, self: "s",
		met: map[string]netip.AddrPort{}}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	conn, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	conn.Close()
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
