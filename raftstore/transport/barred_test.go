package transport_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/raftstore/storetest"
	"github.com/barque/barque/raftstore/transport"
)

// judging is a server whose peers are barred on demand, and whose CA is exchanged for another.
type judging struct {
	*transport.Mux
	ca        *storetest.Authority
	why       atomic.Pointer[error] // peers are barred; nil: they are not
	exchanged atomic.Bool
}

func newJudging(t *testing.T) *judging {
	j := &judging{ca: storetest.NewAuthority(t)}
	other := storetest.NewAuthority(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	own := j.ca.Issue(transport.ServerOrganization)
	j.Mux, err = transport.NewMux(transport.Config{Listener: l, Certificate: func() *tls.Certificate { return own },
		Roots: func() *x509.CertPool {
			if j.exchanged.Load() {
				return other.Pool()
			}
			return j.ca.Pool()
		},
		Barred: func(*x509.Certificate, []*x509.Certificate) error {
			if w := j.why.Load(); w != nil {
				return *w
			}
			return nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { j.Close() })
	return j
}

// A removed server is refused where it listens, and its open connections are closed where it dials.
// So are those of a CA that is believed no more.
func TestBarredPeers(t *testing.T) {
	server := newJudging(t)
	peer := server.ca.ServerMux()
	accepted := server.Listener("one/1")
	connect := func() (there, here net.Conn) {
		t.Helper()
		there, err := peer.Dial(await.Context(t), server.Addr(), "one/1")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { there.Close() })
		if here, err = accepted.Accept(); err != nil {
			t.Fatal(err)
		}
		return there, here
	}
	closed := func(what string, conn net.Conn) {
		t.Helper()
		conn.SetDeadline(time.Now().Add(await.Hang))
		_, err := conn.Read(make([]byte, 1))
		var late net.Error
		if err == nil || errors.As(err, &late) && late.Timeout() {
			t.Errorf("%s: %v", what, err)
		}
	}
	there, here := connect()
	barredOf := here.(interface{ Barred() error })
	if name := here.(interface{ PeerName() string }).PeerName(); name != "s" {
		t.Errorf("the peer is %q", name)
	}
	server.Recheck()
	if err := barredOf.Barred(); err != nil {
		t.Error(err)
	}
	// It was no stranger only because no leader was known. No event says that this has changed.
	known := fmt.Errorf("s2: %w", transport.ErrStranger)
	server.why.Store(&known)
	server.Forget()
	if err := barredOf.Barred(); !errors.Is(err, transport.ErrStranger) {
		t.Errorf("a peer that has become a stranger: %v", err)
	}
	if _, err := here.Write([]byte("x")); err != nil {
		t.Errorf("the connection of a peer that may ask to join is closed: %v", err)
	} else if _, err := there.Read(make([]byte, 1)); err != nil {
		t.Errorf("a peer that may ask to join reads: %v", err)
	}
	removed := errors.New("it was removed")
	server.why.Store(&removed)
	server.Recheck()
	closed("removed", there)
	if err := barredOf.Barred(); !errors.Is(err, removed) {
		t.Errorf("the reason is %v", err)
	}
	echo(peer, "two/1")
	if heard, err := hears(t, server.Mux, peer, "two/1"); err == nil {
		t.Errorf("a removed server is called: %q", heard)
	}
	// A stranger is let in to say why it comes. It is barred for all else.
	stranger := fmt.Errorf("s9: %w", transport.ErrStranger)
	server.why.Store(&stranger)
	if heard, err := hears(t, server.Mux, peer, "two/1"); heard != "two/1" || err != nil {
		t.Errorf("a stranger is called: %q, %v", heard, err)
	}
	there, here = connect()
	server.Recheck()
	if _, err := here.Write([]byte("x")); err != nil {
		t.Errorf("the connection of a stranger is closed: %v", err)
	} else if _, err := there.Read(make([]byte, 1)); err != nil {
		t.Errorf("a stranger reads: %v", err)
	}
	if err := here.(interface{ Barred() error }).Barred(); !errors.Is(err, transport.ErrStranger) {
		t.Errorf("a stranger: %v", err)
	}
	server.why.Store(nil)
	there, _ = connect()
	server.exchanged.Store(true)
	server.Recheck()
	closed("of a CA that is gone", there)
}

// TestDialedPeersAreJudgedAnew: a server that is barred, or whose CA is believed no more, keeps no
// connection that this one has dialed before. A stranger, which may become a member, keeps it.
func TestDialedPeersAreJudgedAnew(t *testing.T) {
	caller := newJudging(t)
	peer := caller.ca.ServerMux()
	accepted := peer.Listener("one/1")
	dial := func() (here, there net.Conn) {
		t.Helper()
		here, err := caller.Dial(await.Context(t), peer.Addr(), "one/1")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { here.Close() })
		if there, err = accepted.Accept(); err != nil {
			t.Fatal(err)
		}
		return here, there
	}
	open := func(what string, here, there net.Conn, want bool) {
		t.Helper()
		if _, err := there.Write([]byte("x")); want && err != nil {
			t.Errorf("%s: %v", what, err)
		}
		here.SetDeadline(time.Now().Add(await.Hang))
		_, err := here.Read(make([]byte, 1))
		if (err == nil) != want || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: it is open: %t, %v", what, err == nil, err)
		}
	}
	here, there := dial()
	caller.Recheck()
	open("a good one", here, there, true)
	stranger := fmt.Errorf("s9: %w", transport.ErrStranger)
	caller.why.Store(&stranger)
	caller.Recheck()
	open("a stranger", here, there, true)
	removed := errors.New("it was removed")
	caller.why.Store(&removed)
	caller.Recheck()
	open("a barred one", here, there, false)
	caller.why.Store(nil)
	here, there = dial()
	caller.exchanged.Store(true)
	caller.Recheck()
	open("one of a CA that is gone", here, there, false)
}
