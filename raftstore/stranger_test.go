package raftstore_test

import (
	"fmt"
	"net"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/storetest"
	"github.com/barque/barque/raftstore/transport"
)

// strict is the stream of a server that bars strangers. All certificates have an old revision, as
// after a restart with an old snapshot.
type strict struct {
	transport.Stream
	bars func(from string) bool
}

func (s strict) Listener(proto string) net.Listener {
	return strictListener{s.Stream.Listener(proto), s.bars}
}

type strictListener struct {
	net.Listener
	bars func(from string) bool
}

func (l strictListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return strictConn{conn, l.bars}, nil
}

type strictConn struct {
	net.Conn
	bars func(from string) bool
}

// Barred is the interface of package peer.
func (c strictConn) Barred() error {
	if from := c.RemoteAddr().String(); c.bars(from) {
		return fmt.Errorf("server at %s: %w", from, raftstore.ErrStranger)
	}
	return nil
}

// TestAServerThatLagsFollowsNewerOnes: a server was off while others joined, and one of these
// leads, with a certificate of an old revision. It takes the leader for no stranger, and is there
// for a quorum.
func TestAServerThatLagsFollowsNewerOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		open, ids := map[int]*raftstore.Server{}, map[string]string{}
		c := storetest.NewCluster(t, 1, onDisk(t))
		c.Wrap = func(i int, stream transport.Stream) transport.Stream {
			return strict{stream, func(from string) bool {
				mu.Lock()
				server, id := open[i], ids[from]
				mu.Unlock()
				return server != nil && id != "" && server.IsStranger(id, 1)
			}}
		}
		start := func(i int) {
			t.Helper()
			mu.Lock()
			delete(open, i)
			mu.Unlock()
			c.Start(i)
			mu.Lock()
			open[i], ids[storetest.Addr(i)] = c.Servers[i], c.Servers[i].ID()
			mu.Unlock()
		}
		ctx := limited(t)
		join := func() {
			t.Helper()
			i := c.Add(onDisk(t))
			start(i)
			if err := c.Servers[i].Join(ctx, []string{storetest.Addr(0)}); err != nil {
				t.Fatal(err)
			}
			c.Await("all vote",
				func() bool { return len(voters(c.Servers[0])) == i+1 && len(voters(c.Servers[i])) == i+1 })
		}
		c.Stop(0)
		start(0)
		join()
		join()
		for i := range 20 {
			if err := settled(ctx, c.Servers[0], put("/k", fmt.Sprint(i))); err != nil {
				t.Fatal(err)
			}
		}
		c.Await("the last one has all", func() bool { return c.Servers[2].Revision() == c.Servers[0].Revision() })
		if err := c.Servers[2].Snapshot(); err != nil { // it starts with this revision
			t.Fatal(err)
		}
		c.Stop(2)
		join()
		join()
		if !c.Servers[0].IsStranger("nobody", 1) || c.Servers[0].IsStranger("nobody", 1<<40) {
			t.Error("a stranger is judged wrongly")
		}
		if err := c.Servers[0].TransferLeadership(ctx, c.Servers[3].ID()); err != nil {
			t.Fatal(err)
		}
		if err := settled(ctx, c.Servers[3], put("/k", "led by a new one")); err != nil {
			t.Fatal(err)
		}
		c.Crash(0)
		start(2)
		c.Await("the server that was off follows", func() bool { return len(voters(c.Servers[2])) == 5 })
		c.Crash(1)
		if err := settled(ctx, c.Servers[2], put("/k", "after")); err != nil {
			t.Errorf("two newer servers and one that was off make no quorum of five: %v", err)
		}
		for _, i := range []int{3, 4} { // restarted, they are known by now
			c.Stop(i)
			start(i)
			if err := settled(ctx, c.Servers[i], put("/k", "restarted")); err != nil {
				t.Error(err)
			}
		}
	})
}
