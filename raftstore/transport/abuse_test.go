package transport_test

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/raftstore/storetest"
	"github.com/barque/barque/raftstore/transport"
)

// abused returns a Mux with few places and a peer of the same cluster.
func abused(t *testing.T, edit func(*transport.Config)) (server, friend *transport.Mux) {
	t.Helper()
	ca := storetest.NewAuthority(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cert := ca.Issue(transport.ServerOrganization)
	cfg := transport.Config{
		Listener: l, Certificate: func() *tls.Certificate { return cert }, Roots: ca.Pool,
		MaxHandshakes: 16, MaxHandshakesFrom: 8, HandshakeTimeout: await.Hang, // a longer wait helps none
	}
	if edit != nil {
		edit(&cfg)
	}
	if server, err = transport.NewMux(cfg); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	echo(server, "one/1")
	return server, ca.ServerMux()
}

// from opens a connection from an address of the loopback interface.
func from(t *testing.T, addr string, to *transport.Mux) net.Conn {
	t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(addr)}, Timeout: await.Hang}
	conn, err := d.DialContext(t.Context(), "tcp", to.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// closed reports whether the server ends a connection.
func closed(conn net.Conn) bool {
	conn.SetReadDeadline(time.Now().Add(await.Hang))
	_, err := io.Copy(io.Discard, conn)
	return !errors.Is(err, os.ErrDeadlineExceeded)
}

// TestFloods lets unauthenticated clients open many connections that never say anything, or that
// say nonsense. A server of the cluster gets in at once, each time, and the cost of the flood does
// not grow with it.
func TestFloods(t *testing.T) {
	const places, each = 16, 8
	for what, c := range map[string]struct {
		conns  int
		source func(i int) string
		says   string
		stay   int // how many silent ones may be left
	}{
		"silence from one address": {300, func(int) string { return "127.0.0.2" }, "", each},
		"silence from many addresses": {300, func(i int) string { return fmt.Sprintf("127.0.1.%d", i%60+1) }, "",
			places},
		// A client that shares the address of a server still does not keep it out.
		"silence from the server's own address": {300, func(int) string { return "127.0.0.1" }, "", each},
		"nonsense": {300, func(int) string { return "127.0.0.2" },
			"GET / HTTP/1.1\r\nHost: x\r\n\r\n", 0},
		"the beginning of a handshake": {300, func(int) string { return "127.0.0.2" },
			"\x16\x03\x01\x40\x00\x01", each},
	} {
		t.Run(what, func(t *testing.T) {
			server, friend := abused(t, nil)
			before := runtime.NumGoroutine()
			var flood []net.Conn
			for i := range c.conns {
				conn := from(t, c.source(i), server)
				io.WriteString(conn, c.says)
				flood = append(flood, conn)
				if n := runtime.NumGoroutine() - before; n > 2*places+4 {
					t.Fatalf("%d goroutines for %d connections", n, i+1)
				}
				if i%30 != 0 {
					continue
				}
				if heard, err := hears(t, friend, server, "one/1"); heard != "one/1" {
					t.Fatalf("after %d connections a server was kept out: %v", i+1, err)
				}
			}
			// The oldest come first: those that may stay are at the end.
			for i, conn := range flood[:c.conns-c.stay] {
				if !closed(conn) {
					t.Fatalf("connection %d of %d stays", i, c.conns)
				}
			}
			server.Close()
			for _, conn := range flood {
				if !closed(conn) {
					t.Fatal("a connection outlives the server")
				}
			}
		})
	}
}

// TestOnePeerHasItsShare lets an authenticated server open more connections than are its due.
// Another one is not concerned, and closed connections count no more.
func TestOnePeerHasItsShare(t *testing.T) {
	const most = 4
	server, greedy := abused(t, func(cfg *transport.Config) { cfg.MaxConns = most })
	kept := make(chan net.Conn, 2*most)
	l := server.Listener("kept/1")
	accepting := make(chan struct{})
	go func() { // ends with the server
		defer close(accepting)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			io.WriteString(conn, "!")
			kept <- conn
		}
	}()
	let := func() (net.Conn, bool) {
		conn, err := greedy.Dial(t.Context(), server.Addr(), "kept/1")
		if err != nil {
			return nil, false
		}
		t.Cleanup(func() { conn.Close() })
		conn.SetReadDeadline(time.Now().Add(await.Hang))
		_, err = io.ReadFull(conn, make([]byte, 1))
		return conn, err == nil
	}
	for i := range most {
		if _, ok := let(); !ok {
			t.Fatalf("connection %d was refused", i)
		}
	}
	for range 10 {
		if _, ok := let(); ok {
			t.Fatal("one more than the limit")
		}
	}
	(<-kept).Close()
	if _, ok := let(); !ok {
		t.Error("one was closed, and no other is taken")
	}
	server.Close()
	<-accepting
	for len(kept) > 0 {
		(<-kept).Close()
	}
}

// TestOtherHandshakes shows a right certificate and goes wrong otherwise.
func TestOtherHandshakes(t *testing.T) {
	ca := storetest.NewAuthority(t)
	server := ca.ServerMux()
	echo(server, "one/1")
	cert := ca.Issue(transport.ServerOrganization)
	for what, cfg := range map[string]*tls.Config{
		"no protocol":      {},
		"another protocol": {NextProtos: []string{"two/1"}},
		"an old TLS":       {NextProtos: []string{"one/1"}, MaxVersion: tls.VersionTLS12},
	} {
		cfg.InsecureSkipVerify, cfg.Certificates = true, []tls.Certificate{*cert}
		conn := tls.Client(from(t, "127.0.0.2", server), cfg)
		conn.SetDeadline(time.Now().Add(await.Hang))
		if heard, err := io.ReadAll(conn); len(heard) > 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: heard %q, %v", what, heard, err)
		}
	}
	// Of several, the one that the server speaks counts.
	conn := tls.Client(from(t, "127.0.0.2", server), &tls.Config{
		InsecureSkipVerify: true, Certificates: []tls.Certificate{*cert}, NextProtos: []string{"two/1", "one/1"},
	})
	conn.SetDeadline(time.Now().Add(await.Hang))
	if heard, err := io.ReadAll(conn); string(heard) != "one/1" {
		t.Errorf("heard %q, %v", heard, err)
	}
}
