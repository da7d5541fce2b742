package storetest

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/transport"
	"github.com/barque/barque/raftstore/transport/memnet"
)

// Cluster is a group of servers on a network in memory.
type Cluster struct {
	t       testing.TB
	Net     *memnet.Network
	Configs []raftstore.Config
	Servers []*raftstore.Server // nil where a server is stopped
	Hosts   []*memnet.Host
	// Wrap replaces the stream of each server that is started from now on; it may be nil.
	Wrap func(i int, stream transport.Stream) transport.Stream
}

// fast are timeouts for servers in one process.
var fast = raftstore.Timeouts{
	Heartbeat: 100 * time.Millisecond, Lease: 80 * time.Millisecond, PromoteAfter: time.Millisecond,
}

// NewCluster starts servers, the first of which makes the cluster and the others join, and waits
// until all of them vote. edit may change each one's configuration.
func NewCluster(t testing.TB, size int, edit func(i int, cfg *raftstore.Config)) *Cluster {
	t.Helper()
	c := &Cluster{
		t: t, Net: new(memnet.Network), Configs: make([]raftstore.Config, size),
		Servers: make([]*raftstore.Server, size), Hosts: make([]*memnet.Host, size),
	}
	for i := range size {
		c.Configs[i] = raftstore.Config{
			Name: fmt.Sprintf("s%d", i), InMemory: true, Bootstrap: i == 0, ClusterID: "test", Timeouts: fast,
			Logger: slog.New(slog.DiscardHandler),
		}
		if edit != nil {
			edit(i, &c.Configs[i])
		}
	}
	t.Cleanup(c.Close) // now: directories that edit asked the test for go after it
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	for i := range size {
		c.Start(i)
		if i > 0 {
			if err := c.Servers[i].Join(ctx, []string{Addr(0)}); err != nil {
				t.Fatalf("server %d joins: %v", i, err)
			}
		}
	}
	c.Await("all servers vote, and all know that", func() bool {
		return !slices.ContainsFunc(c.Servers, func(s *raftstore.Server) bool {
			members := s.Members()
			return len(members) != size ||
				slices.ContainsFunc(members, func(m raftstore.Member) bool { return !m.Voter })
		})
	})
	return c
}

// Addr is the address of a server.
func Addr(i int) string { return fmt.Sprintf("s%d:6444", i) }

// Start starts a server that is stopped, with its directory.
func (c *Cluster) Start(i int) {
	c.t.Helper()
	c.StartAt(i, Addr(i))
}

// Add makes room for one more server like the first one, which is to join, and returns its number.
func (c *Cluster) Add(edit func(i int, cfg *raftstore.Config)) int {
	i := len(c.Configs)
	cfg := c.Configs[0]
	cfg.Name, cfg.Bootstrap = fmt.Sprintf("s%d", i), false
	if edit != nil {
		edit(i, &cfg)
	}
	c.Configs, c.Servers, c.Hosts = append(c.Configs, cfg), append(c.Servers, nil), append(c.Hosts, nil)
	return i
}

// Crash stops a server without giving it the time to send another message.
func (c *Cluster) Crash(i int) {
	if c.Servers[i] != nil {
		c.Hosts[i].Close()
		c.Stop(i)
	}
}

// StartAt starts a server at another address than it had.
func (c *Cluster) StartAt(i int, addr string) {
	c.t.Helper()
	c.Hosts[i] = c.Net.Host(addr)
	cfg := c.Configs[i]
	cfg.Stream = c.Hosts[i]
	if c.Wrap != nil {
		cfg.Stream = c.Wrap(i, c.Hosts[i])
	}
	s, err := raftstore.Open(cfg)
	if err != nil {
		c.t.Fatalf("start server %d: %v", i, err)
	}
	c.Servers[i] = s
}

// Stop stops a server in order.
func (c *Cluster) Stop(i int) {
	if s := c.Servers[i]; s != nil {
		c.Servers[i] = nil
		if err := s.Close(); err != nil {
			c.t.Errorf("stop server %d: %v", i, err)
		}
		c.Hosts[i].Close()
	}
}

// Close stops all servers. NewCluster arranges for it.
func (c *Cluster) Close() {
	for i := range c.Servers {
		c.Stop(i)
	}
}

// Leader waits until some server leads and returns its number, and its term.
func (c *Cluster) Leader() (int, uint64) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	type found struct {
		server int
		term   uint64
	}
	leaders := make(chan found, len(c.Servers))
	waiting := 0
	for i, s := range c.Servers {
		if s == nil {
			continue
		}
		waiting++
		go func() {
			_, term, err := s.AwaitLeadership(ctx)
			if err == nil {
				leaders <- found{i, term}
			} else {
				leaders <- found{-1, 0}
			}
		}()
	}
	first := found{-1, 0}
	for ; waiting > 0 && first.server < 0; waiting-- {
		first = <-leaders
	}
	cancel()
	for ; waiting > 0; waiting-- {
		<-leaders
	}
	if first.server < 0 {
		c.t.Fatal("no server leads")
	}
	return first.server, first.term
}

// Await polls until the condition holds. It is for conditions that nothing announces.
func (c *Cluster) Await(what string, holds func() bool) {
	c.t.Helper()
	await.True(c.t, what, holds)
}
