package raftstore_test

import (
	"testing"

	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/storetest"
)

func TestConformanceOnOneServer(t *testing.T) {
	storetest.Conformance(t, func(t *testing.T) *raftstore.Store {
		dir := t.TempDir()
		c := storetest.NewCluster(t, 1, func(_ int, cfg *raftstore.Config) { cfg.InMemory, cfg.Dir = false, dir })
		return c.Servers[0].Store
	})
}

func TestConformanceOnLeader(t *testing.T) {
	storetest.Conformance(t, func(t *testing.T) *raftstore.Store {
		c := storetest.NewCluster(t, 3, nil)
		leader, _ := c.Leader()
		return c.Servers[leader].Store
	})
}

func TestConformanceOnFollower(t *testing.T) {
	storetest.Conformance(t, func(t *testing.T) *raftstore.Store {
		c := storetest.NewCluster(t, 3, nil)
		leader, _ := c.Leader()
		return c.Servers[(leader+1)%3].Store
	})
}
