package transport_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"testing"
	"time"

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
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	conn, err := from.Dial(ctx, to.Addr(), proto)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(30 * time.Second))
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

func TestStrangersAreClosed(t *testing.T) {
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
	// Silence and garbage are closed, and do not keep others out.
	var silent []net.Conn
	for i := range 12 {
		conn, err := net.Dial("tcp", server.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if i%2 == 0 {
			io.WriteString(conn, "GET / HTTP/1.1\r\n\r\n")
		}
		silent = append(silent, conn)
	}
	if heard, err := hears(t, friend, server, "one/1"); heard != "one/1" {
		t.Errorf("a server was kept out: %q, %v", heard, err)
	}
	for _, conn := range silent {
		conn.SetReadDeadline(time.Now().Add(30 * time.Second))
		if _, err := io.Copy(io.Discard, conn); err != nil {
			if e, ok := err.(net.Error); ok && e.Timeout() {
				t.Error("a silent connection stays open")
			}
		}
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
