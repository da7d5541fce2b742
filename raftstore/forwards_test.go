package raftstore_test

import (
	"errors"
	"fmt"
	"net"
	"testing"
	"testing/synctest"

	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/storetest"
	"github.com/barque/barque/raftstore/transport"
)

// named is the stream of a server that knows its peers by the names in their certificates.
type named struct{ transport.Stream }

func (s named) Listener(proto string) net.Listener { return namedListener{s.Stream.Listener(proto)} }

type namedListener struct{ net.Listener }

func (l namedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return namedConn{conn}, nil
}

type namedConn struct{ net.Conn }

// PeerName is the interface of package peer.
func (c namedConn) PeerName() string { return c.RemoteAddr().String() }

// TestForwardedTransactions: the leader refuses a transaction that the forwarding server, by the
// name in its certificate, may not make, and takes everything of its own callers.
func TestForwardedTransactions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		forwards := func(_ int, cfg *raftstore.Config) {
			cfg.Forwards = func(from string, txn *raftstore.Txn) error {
				if key := txn.Ops[0].Key; key == "/of/"+from || key == "/free" {
					return nil
				}
				return fmt.Errorf("not for %s", from)
			}
		}
		c := storetest.NewCluster(t, 1, forwards)
		c.Wrap = func(_ int, stream transport.Stream) transport.Stream { return named{stream} }
		disk := onDisk(t)
		c.Stop(0)
		disk(0, &c.Configs[0])
		c.Start(0)
		ctx := limited(t)
		i := c.Add(func(i int, cfg *raftstore.Config) { disk(i, cfg) })
		c.Start(i)
		if err := c.Servers[i].Join(ctx, []string{storetest.Addr(0)}); err != nil {
			t.Fatal(err)
		}
		for key, good := range map[string]bool{"/free": true, "/of/" + storetest.Addr(i): true,
			"/of/" + storetest.Addr(0): false} {
			_, err := c.Servers[i].Commit(ctx, put(key, "x"))
			var refused *raftstore.RefusedError
			if (err == nil) != good || err != nil && !errors.As(err, &refused) {
				t.Errorf("%s, forwarded: %v", key, err)
			}
			if _, err := c.Servers[0].Commit(ctx, put(key, "y")); err != nil {
				t.Errorf("%s, of the leader's own caller: %v", key, err)
			}
		}
	})
}
