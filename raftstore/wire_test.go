package raftstore_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/peer"
	"github.com/barque/barque/raftstore/storetest"
	"github.com/barque/barque/raftstore/transport"
)

// wired is three servers on the loopback interface, with TLS between them, and a client that goes
// on writing through a follower, whatever is done to the servers.
type wired struct {
	t       *testing.T
	ca      *storetest.Authority
	muxes   []*transport.Mux
	servers []*raftstore.Server
	term    uint64
	writes  atomic.Int64
	resting int // goroutines without an attack
}

func newWired(t *testing.T, limits func(i int) raftstore.Limits) *wired {
	t.Helper()
	w := &wired{t: t, ca: storetest.NewAuthority(t)}
	ctx := limited(t)
	for i := range 3 {
		mux := w.ca.ServerMux()
		cfg := raftstore.Config{Name: fmt.Sprintf("s%d", i), InMemory: true, Bootstrap: i == 0, ClusterID: "here",
			Stream: mux,
			// The leader stays, and so do connections on which much is sent.
			Timeouts: raftstore.Timeouts{Heartbeat: time.Minute, Lease: time.Minute, Silence: -1, Call: time.Minute}}
		if limits != nil {
			cfg.Limits = limits(i)
		}
		s, err := raftstore.Open(cfg)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		w.muxes, w.servers = append(w.muxes, mux), append(w.servers, s)
		if i > 0 {
			if err := s.Join(ctx, []string{w.muxes[0].Addr()}); err != nil {
				t.Fatal(err)
			}
		}
	}
	var err error
	if _, w.term, err = w.servers[0].AwaitLeadership(ctx); err != nil {
		t.Fatal(err)
	}
	return w
}

// write lets the honest client write until the test ends. It has an answer to its last write before
// the servers are closed: a leader whose followers are gone waits for its lease, a minute here, to
// learn that such a write gets no answer any more.
func (w *wired) write() {
	var over atomic.Bool
	var running sync.WaitGroup
	running.Go(func() {
		for i := 0; !over.Load(); i++ {
			if _, err := w.servers[1].Commit(context.Background(), put("/honest", fmt.Sprint(i))); err != nil {
				w.t.Errorf("the honest client: %v", err)
				return
			}
			w.writes.Add(1)
		}
	})
	w.t.Cleanup(func() {
		over.Store(true)
		running.Wait()
	})
	w.goesOn("the beginning")
	w.resting = runtime.NumGoroutine()
}

// goesOn waits until the honest client has written some more.
func (w *wired) goesOn(during string) {
	w.t.Helper()
	target := w.writes.Load() + 5
	w.until(during+": the honest client writes", func() bool { return w.writes.Load() >= target })
}

// until waits for a condition.
func (w *wired) until(what string, holds func() bool) {
	w.t.Helper()
	await.True(w.t, what, holds)
}

// peer opens a connection to server i as a server of the CA would, and says to which cluster it
// belongs.
func (w *wired) peer(as *transport.Mux, i int, proto, cluster string) net.Conn {
	w.t.Helper()
	conn, err := as.Dial(limited(w.t), w.muxes[i].Addr(), proto)
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(await.Hang))
	hello := append(binary.BigEndian.AppendUint16(nil, uint16(len(cluster))), cluster...)
	conn.Write(append(hello, 0, 0))
	return conn
}

// isClosed fails unless the server closes the connection, and returns the bytes before that.
func (w *wired) isClosed(what string, conn net.Conn) []byte {
	w.t.Helper()
	heard, err := io.ReadAll(conn)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		w.t.Errorf("%s: the connection stays open", what)
	}
	conn.Close()
	return heard
}

// message is one of the protocol between servers, as package rpc has it.
func message(kind byte, payload []byte) []byte {
	b := binary.LittleEndian.AppendUint32(nil, uint32(8+1+len(payload)))
	b = append(binary.LittleEndian.AppendUint64(b, 1), kind)
	return append(b, payload...)
}

func answer(t *testing.T, conn net.Conn) (kind byte, payload []byte) {
	t.Helper()
	head := make([]byte, 13)
	if _, err := io.ReadFull(conn, head); err != nil {
		t.Fatal(err)
	}
	payload = make([]byte, binary.LittleEndian.Uint32(head)-9)
	if _, err := io.ReadFull(conn, payload); err != nil {
		t.Fatal(err)
	}
	return head[12], payload
}

// TestBadPeers sends three servers all that a network can send, while a client goes on writing.
func TestBadPeers(t *testing.T) {
	w := newWired(t, nil)
	w.write()
	rogue := w.ca.ServerMux() // has a right certificate
	raw := func(i int) net.Conn {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2)}}
		conn, err := d.DialContext(limited(t), "tcp", w.muxes[i].Addr())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		conn.SetDeadline(time.Now().Add(await.Hang))
		return conn
	}
	attacks := []struct {
		what string
		do   func(i int)
	}{
		{"silence and garbage", func(i int) {
			var conns []net.Conn
			for k := range 150 {
				conn := raw(i)
				io.WriteString(conn,
					[]string{"", "GET / HTTP/1.1\r\n\r\n", "\x16\x03\x01\x40\x00\x01", string(make([]byte, 3000))}[k%4])
				conns = append(conns, conn)
			}
			for k, conn := range conns {
				if k%2 == 1 {
					w.isClosed("garbage", conn)
				} else { // it stays as long as a handshake may, or until another one needs its place
					conn.Close()
				}
			}
		}},
		{"unknown peers", func(i int) {
			other := storetest.NewAuthority(t)
			for _, cert := range []*tls.Certificate{
				other.Issue(transport.ServerOrganization), w.ca.Issue("system:nodes"), {},
				w.ca.IssueUntil(transport.ServerOrganization, time.Now().Add(-time.Minute)),
			} {
				cfg := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{peer.ProtoStore}}
				if cert.Certificate != nil {
					cfg.Certificates = []tls.Certificate{*cert}
				}
				if heard := w.isClosed("an unknown peer", tls.Client(raw(i), cfg)); len(heard) > 0 {
					t.Errorf("an unknown peer hears %q", heard)
				}
			}
		}},
		{"another cluster", func(i int) {
			for _, proto := range []string{peer.ProtoRaft, peer.ProtoStore} {
				if heard := w.isClosed(proto, w.peer(rogue, i, proto, "there")); string(heard) != "\x01\x00\x04here" {
					t.Errorf("%s: a peer of another cluster hears %q", proto, heard)
				}
			}
		}},
		{"garbage after the greeting", func(i int) {
			for _, garbage := range [][]byte{bytes.Repeat([]byte{0xff}, 5000), make([]byte, 5000),
				[]byte(strings.Repeat("GET / HTTP/1.1\r\n", 100))} {
				conn := w.peer(rogue, i, peer.ProtoStore, "here")
				conn.Write(garbage)
				w.isClosed("store", conn)
				for rpc := range byte(6) { // each kind of message that Raft has, and one that it has not
					conn := w.peer(rogue, i, peer.ProtoRaft, "here")
					conn.Write(append([]byte{rpc}, garbage...))
					conn.(interface{ CloseWrite() error }).CloseWrite()
					w.isClosed("raft", conn)
				}
			}
		}},
		{"forged lengths", func(i int) {
			conn := w.peer(rogue, i, peer.ProtoStore, "here")
			conn.Write(binary.LittleEndian.AppendUint32(nil, 1<<30))
			conn.Write(make([]byte, 9))
			w.isClosed("store", conn)
			for _, forged := range []string{"\x81\xa1X\xc6\xff\xff\xff\xff", "\x81\xa7Entries\xdd\xff\xff\xff\xff",
				"\xdf\xff\xff\xff\xff", strings.Repeat("\x91", 100_000)} {
				conn := w.peer(rogue, i, peer.ProtoRaft, "here")
				io.WriteString(conn, "\x00"+forged)
				conn.(interface{ CloseWrite() error }).CloseWrite()
				w.isClosed("raft", conn)
			}
		}},
		{"requests that are none", func(i int) {
			conn := w.peer(rogue, i, peer.ProtoStore, "here")
			defer conn.Close()
			if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
			for kind := range byte(255) {
				for _, payload := range []string{"", "\x09\x00\x00\x00", "{", "null", strings.Repeat("[", 20_000)} {
					if kind == 2 || kind == 3 || kind == 5 || kind == 6 || kind == 10 || kind == 11 {
						continue // take anything, or wait
					}
					conn.Write(message(kind, []byte(payload)))
					if got, text := answer(t, conn); got == 128 && kind > 11 {
						t.Errorf("kind %d with %.20q: answered by %d, %.80q", kind, payload, got, text)
					}
				}
			}
			if i == 0 { // which leads: a request of a version to come is refused, and says so
				conn.Write(message(1, []byte("\x09\x00\x00\x00")))
				if kind, text := answer(t, conn); kind != 132 || !strings.Contains(string(text), "unknown version") {
					t.Errorf("a request of an unknown kind: %d, %q", kind, text)
				}
			}
		}},
		{"too many connections", func(i int) {
			var conns []net.Conn
			for range 140 {
				conns = append(conns, w.peer(rogue, i, peer.ProtoRaft, "here"))
			}
			var open atomic.Int64
			var reading sync.WaitGroup
			for _, conn := range conns {
				if n, _ := conn.Read(make([]byte, 1)); n == 1 {
					open.Add(1)
					reading.Go(func() { // ends when the server closes the connection, or this test
						conn.Read(make([]byte, 1))
						open.Add(-1)
					})
				}
			}
			// Those of the servers to each other come from the same address. Where so many take
			// more than ten seconds, the first ones have been silent for as long, and are closed in
			// favour of others.
			w.until("one peer has no more than 64 connections", func() bool { return open.Load() <= 64 })
			if n := open.Load(); n < 32 {
				t.Errorf("one peer has %d connections", n)
			}
			for _, conn := range conns {
				conn.Close()
			}
			reading.Wait()
		}},
	}
	for _, attack := range attacks {
		t.Run(attack.what, func(t *testing.T) {
			for i := range w.servers[:2] { // the leader, and the follower of the honest client
				attack.do(i)
				if n := runtime.NumGoroutine() - w.resting; n > 600 {
					t.Errorf("%d goroutines more than before", n)
				}
				w.goesOn(attack.what)
			}
			w.until("the attack is over and costs nothing",
				func() bool { return runtime.NumGoroutine() < w.resting+20 })
		})
	}
	if _, term, err := w.servers[0].AwaitLeadership(limited(t)); err != nil || term != w.term {
		t.Errorf("the leader of term %d became one of term %d: %v", w.term, term, err)
	}
}

// TestServerOfAnotherClusterJoins lets a server of another cluster ask to become a member. It gets
// the reason of the refusal, and the cluster goes on.
func TestServerOfAnotherClusterJoins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := storetest.NewCluster(t, 3, nil)
		s, err := raftstore.Open(
			raftstore.Config{Name: "x", InMemory: true, ClusterID: "there", Stream: c.Net.Host("x:6444")})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second) // it tries for all of that
		defer cancel()
		var wrong *raftstore.WrongServerError
		if err := s.Join(ctx, []string{storetest.Addr(0)}); !errors.As(err, &wrong) || wrong.Cluster != "test" {
			t.Errorf("a server of another cluster that joins is told: %v", err)
		}
		if _, err := c.Servers[1].Commit(limited(t), put("/after", "1")); err != nil {
			t.Error(err)
		}
		if n := len(c.Servers[1].Members()); n != 3 {
			t.Errorf("there are %d members", n)
		}
	})
}

// TestForwardedLimits gives followers larger limits than the leader. The leader refuses through
// them what it would refuse of its own callers.
func TestForwardedLimits(t *testing.T) {
	w := newWired(t, func(i int) raftstore.Limits {
		if i == 0 {
			return raftstore.Limits{KeyBytes: 100, ValueBytes: 10_000, TxnBytes: 20_000, TxnOps: 5}
		}
		return raftstore.Limits{KeyBytes: 1 << 20, ValueBytes: raftstore.MaxTxnBytes - 1<<20,
			TxnBytes: raftstore.MaxTxnBytes, TxnOps: raftstore.MaxTxnOps}
	})
	w.write()
	follower := w.servers[1]
	many := raftstore.Txn{}
	for i := range 6 {
		many.Ops = append(many.Ops, raftstore.Op{Kind: raftstore.Put, Key: fmt.Sprint(i)})
	}
	for what, txn := range map[string]raftstore.Txn{
		"key": put(strings.Repeat("k", 101), ""),
		"key of a precondition": {Require: []raftstore.Precondition{{Key: strings.Repeat("k", 101)}},
			Ops: put("/a", "").Ops},
		"value":                filler("/a", 10_001),
		"count":                many,
		"all that is possible": filler("/a", raftstore.MaxTxnBytes-1<<20),
	} {
		if _, err := follower.Commit(limited(t), txn); !errors.Is(err, raftstore.ErrTooLarge) {
			t.Errorf("%s: %v", what, err)
		}
		w.goesOn(what)
	}
	if _, err := follower.Commit(limited(t), filler("/a", 10_000)); err != nil {
		t.Errorf("at the limit: %v", err)
	}
}
