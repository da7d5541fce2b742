package transport_test

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/internal/syncbuf"
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

func TestUnknownPeersAreRefused(t *testing.T) {
	ca, other := storetest.NewAuthority(t), storetest.NewAuthority(t)
	server := ca.ServerMux()
	echo(server, "one/1")
	friend := ca.ServerMux()
	trusting := func(cert *tls.Certificate) *transport.Mux { // believes the server
		return storetest.Mux(t, func() *tls.Certificate { return cert }, ca.Pool)
	}
	unknown := map[string]*transport.Mux{
		"a certificate of another CA": trusting(other.Issue(transport.ServerOrganization)),
		"a node that is no server":    trusting(ca.Issue("system:nodes")),
		"no certificate":              trusting(&tls.Certificate{}),
		"an expired certificate": trusting(
			ca.IssueUntil(transport.ServerOrganization, time.Now().Add(-time.Minute))),
	}
	for what, m := range unknown {
		if heard, err := hears(t, m, server, "one/1"); heard != "" || err == nil {
			t.Errorf("%s: heard %q, %v", what, heard, err)
		}
	}
	// The other way round: a server does not talk to one that another CA signed.
	others := other.ServerMux()
	echo(others, "one/1")
	if heard, err := hears(t, friend, others, "one/1"); err == nil {
		t.Errorf("a server of another CA was believed: %q", heard)
	}
}

// A server that restarts ends connections before they name themselves. That is no complaint. A
// client that speaks another protocol is one.
func TestAClientThatHangsUpIsNoComplaint(t *testing.T) {
	ca := storetest.NewAuthority(t)
	cert := ca.Issue(transport.ServerOrganization)
	for said, level := range map[string]string{"": "DEBUG", "GET / HTTP/1.1\r\n\r\n": "WARN"} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		log := new(syncbuf.Buffer)
		m, err := transport.NewMux(
			transport.Config{Listener: l, Certificate: func() *tls.Certificate { return cert }, Roots: ca.Pool,
				HandshakeTimeout: await.Hang,
				Logger:           slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
		if err != nil {
			t.Fatal(err)
		}
		near, far := net.Pipe()
		done := make(chan struct{})
		go func() {
			defer close(done)
			_, _ = io.WriteString(near, said) // the other side may have closed already
			near.Close()
		}()
		m.Admit(far)
		<-done
		m.Close()
		if got := log.String(); strings.Count(got, "level=") != 1 || !strings.Contains(got, "level="+level) {
			t.Errorf("of a peer that says %q: %s", said, got)
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
