package transport_test

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"testing"
	"time"

	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/raftstore/storetest"
	"github.com/barque/barque/raftstore/transport"
)

// echo answers each connection with the name of its protocol.
func echo(m *transport.Mux, proto string) {
	l := m.Listener(proto)
	go func() { // ends when the mux is closed
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			io.WriteString(conn, proto)
			conn.Close()
		}
	}()
}

func hears(t *testing.T, from, to *transport.Mux, proto string) (string, error) {
	t.Helper()
	conn, err := from.Dial(await.Context(t), to.Addr(), proto)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(await.Hang))
	heard, err := io.ReadAll(conn)
	return string(heard), err
}

func TestProtocolsOnOnePort(t *testing.T) {
	ca := storetest.NewAuthority(t)
	a, b := ca.ServerMux(), ca.ServerMux()
	echo(a, "one/1")
	echo(a, "two/1")
	for _, proto := range []string{"one/1", "two/1"} {
		if heard, err := hears(t, b, a, proto); heard != proto || err != nil {
			t.Errorf("%s: %q, %v", proto, heard, err)
		}
	}
	if heard, err := hears(t, b, a, "three/1"); err == nil {
		t.Errorf("a protocol that nobody speaks: %q", heard)
	}
}

func TestStrangersAreRefused(t *testing.T) {
	ca, other := storetest.NewAuthority(t), storetest.NewAuthority(t)
	server := ca.ServerMux()
	echo(server, "one/1")
	friend := ca.ServerMux()
	trusting := func(cert *tls.Certificate) *transport.Mux { // believes the server
		return storetest.Mux(t, func() *tls.Certificate { return cert }, ca.Pool)
	}
	strangers := map[string]*transport.Mux{
		"a certificate of another CA": trusting(other.Issue(transport.ServerOrganization)),
		"a node that is no server":    trusting(ca.Issue("system:nodes")),
		"no certificate":              trusting(&tls.Certificate{}),
		"an expired certificate":      trusting(ca.IssueUntil(transport.ServerOrganization, time.Now().Add(-time.Minute))),
	}
	for what, m := range strangers {
		if heard, err := hears(t, m, server, "one/1"); heard != "" || err == nil {
			t.Errorf("%s: heard %q, %v", what, heard, err)
		}
	}
	// The other way round: a server does not talk to one that another CA signed.
	foreign := other.ServerMux()
	echo(foreign, "one/1")
	if heard, err := hears(t, friend, foreign, "one/1"); err == nil {
		t.Errorf("a foreign server was believed: %q", heard)
	}
}

func TestCertificatesAndRootsAreReplaced(t *testing.T) {
	old, fresh := storetest.NewAuthority(t), storetest.NewAuthority(t)
	cert, roots := old.Issue(transport.ServerOrganization), old.Pool()
	server := storetest.Mux(t, func() *tls.Certificate { return cert }, func() *x509.CertPool { return roots })
	echo(server, "one/1")
	if _, err := hears(t, old.ServerMux(), server, "one/1"); err != nil {
		t.Fatal(err)
	}
	newcomer := fresh.ServerMux()
	if _, err := hears(t, newcomer, server, "one/1"); err == nil {
		t.Fatal("a certificate of a CA that is not trusted yet")
	}
	cert, roots = fresh.Issue(transport.ServerOrganization), fresh.Pool()
	if heard, err := hears(t, newcomer, server, "one/1"); err != nil || heard != "one/1" {
		t.Errorf("after the change: %q, %v", heard, err)
	}
}
