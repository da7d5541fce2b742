package gossip

import (
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/barque/barque/pki"
)

// FuzzMeta: metadata that count are those that a member of that name and address has signed. The
// fuzzer's bytes are as if a holder of the pool's keys had sent them.
func FuzzMeta(f *testing.F) {
	now := time.Now()
	ca, err := pki.NewAuthority("c1", now)
	if err != nil {
		f.Fatal(err)
	}
	trust, proof, addr := pki.TrustOf(ca), proofOf(f, ca, "n1", pki.RoleServer, now.Add(time.Hour)),
		netip.MustParseAddrPort("10.0.0.1:6445")
	facts := Facts{Zone: "z", Version: "v1", APIPort: 6443, PeerPort: 6444, PeerID: "n1.x", Revoked: 7}
	good, err := encodeMeta(clusterID, "n1", addr, proof, facts)
	if err != nil {
		f.Fatal(err)
	}
	nameless := append([]byte{namelessMeta}, good[1:]...)
	for _, meta := range [][]byte{good, nameless, nil, {metaVersion, 0, 0}, {metaVersion, 255, 255},
		{namelessMeta, 0, 1, 0}, good[:len(good)-1], append(good[:len(good):len(good)], ' ')} {
		f.Add("n1", meta)
	}
	f.Add("", good)
	f.Add(strings.Repeat("n", 300), nameless)
	f.Fuzz(func(t *testing.T, name string, meta []byte) {
		node := &memberlist.Node{Name: name, Addr: addr.Addr().AsSlice(), Port: addr.Port(), Meta: meta}
		holder, is, err := decodeMeta(trust, clusterID, node, now)
		if err == nil && (holder.Name != "n1" || name != "n1" || is != facts) {
			t.Errorf("%x of %q counts as %+v of %+v", meta, name, is, holder)
		}
		if err != nil && errors.Is(err, pki.ErrCredentialEnded) {
			t.Errorf("%x: %v", meta, err)
		}
	})
}

// FuzzMessages: no message of the pool crashes a member. None of them makes it take a member for
// one that leaves, which its own signature alone does.
func FuzzMessages(f *testing.F) {
	now := time.Now()
	ca, err := pki.NewAuthority("c1", now)
	if err != nil {
		f.Fatal(err)
	}
	proof, addr := proofOf(f, ca, "n1", pki.RoleServer, now.Add(time.Hour)), netip.MustParseAddrPort("10.0.0.1:6445")
	staying, err := encodeMeta(clusterID, "n1", addr, proof, Facts{})
	if err != nil {
		f.Fatal(err)
	}
	for _, m := range []message{{Kind: goodbye, From: "n1", Meta: staying}, {Kind: goodbye, From: "n2"},
		{Kind: askView, ID: "a", From: "n1"}, {Kind: answerView, ID: "a", From: "n1", View: &View{From: "n1"}},
		{Kind: answerAbout, ID: "b", About: json.RawMessage("1")}, {Kind: "?"}} {
		text, err := json.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Add([]byte("null"))
	f.Add([]byte(strings.Repeat("[", 20_000)))
	p := &Pool{
		config: Config{Name: "me", ClusterID: clusterID, Authority: pki.TrustOf(ca),
			Logger: slog.New(slog.DiscardHandler), Now: func() time.Time { return now }},
		talk:    talk{asked: map[string]chan message{}},
		members: map[string]Member{"n1": {Name: "n1", Role: "server", Addr: addr, State: Alive}},
		leaving: map[string]time.Time{}, changed: make(chan struct{})}
	f.Fuzz(func(t *testing.T, text []byte) {
		answer := p.talk.expect("a")
		defer p.talk.forget("a")
		p.NotifyMsg(text)
		if len(p.leaving) > 0 || len(p.members) != 1 {
			t.Errorf("%q: %v leave, the members are %v", text, p.leaving, p.members)
		}
		_ = answer
	})
}

// encrypted is the first byte of an encrypted message.
const encrypted = 10

// FuzzWire: whatever comes first on a connection to the port of gossip, or in a packet, is no
// member's. A connection ends, and nothing is answered in clear.
func FuzzWire(f *testing.F) {
	now := time.Now()
	ca, err := pki.NewAuthority("c1", now)
	if err != nil {
		f.Fatal(err)
	}
	proof := proofOf(f, ca, "me", pki.RoleServer, now.Add(24*time.Hour))
	listener, err := net.Listen("tcp", "127.1.0.77:0")
	if err != nil {
		f.Fatal(err)
	}
	at := netip.MustParseAddrPort(listener.Addr().String())
	if err := listener.Close(); err != nil {
		f.Fatal(err)
	}
	p, err := New(
		Config{Name: "me", ClusterID: clusterID, Advertise: at, Keys: [][]byte{key}, Authority: pki.TrustOf(ca),
			Proof: func() Proof { return proof },
			Seeds: func() []netip.AddrPort { return nil }, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		if err := p.list.Shutdown(); err != nil {
			f.Error(err)
		}
		p.talk.close()
	})
	label := "\xf4\x09barque:c1"
	for _, first := range []string{
		"", "\x00", label, label + "\x0a", label + "\x0a\x00\x00\x00\x01\x00", label + "\x0a\xff\xff\xff\xff",
		label + "\x06", "\xf4\x00", "\xf4\xff" + strings.Repeat("x", 255), "\x0a\x00\x00\x00\x01\x00",
		"\x06\x00", "\x09\x00\x00\x00\x00\x07\x02", "GET / HTTP/1.1\r\nHost: x\r\n\r\n",
		"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00", label + label, "\xf4\x09barque:c2\x00",
		label + "\x01" + strings.Repeat("\x00", 64),
	} {
		f.Add([]byte(first), false)
		f.Add([]byte(first), true)
	}
	f.Fuzz(func(t *testing.T, first []byte, packet bool) {
		network := "tcp"
		if packet {
			network, first = "udp", first[:min(len(first), 60_000)]
		}
		conn, err := net.Dial(network, at.String())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_, _ = conn.Write(first) // the pool may have closed
		if stream, ok := conn.(*net.TCPConn); ok {
			_ = stream.CloseWrite()
			_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
			answer, err := io.ReadAll(conn)
			var timeout net.Error
			// With the pool's label a stranger gets an error, which is encrypted.
			if len(answer) > 0 && answer[0] != encrypted || errors.As(err, &timeout) && timeout.Timeout() {
				t.Errorf("%q: the answer is %q, %v", first, answer, err)
			}
		}
		if all := p.Members(); len(all) != 1 || all[0].Name != "me" || all[0].State != Alive {
			t.Errorf("%q: the members are %v", first, all)
		}
	})
}
