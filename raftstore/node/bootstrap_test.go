package node

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/raftstore/logstore"
	"github.com/barque/barque/raftstore/transport/memnet"
)

// TestCrashInTheMiddleOfABootstrap opens a store whose first start ended after Raft had written its
// term and before it wrote the members.
func TestCrashInTheMiddleOfABootstrap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := logstore.NewInMemory()
		if err := log.SetUint64([]byte("CurrentTerm"), 1); err != nil {
			t.Fatal(err)
		}
		n, err := Open(Config{
			InMemory: true, ClusterID: "test", Bootstrap: true, Stream: new(memnet.Network).Host("a"),
			WrapLog: func(logstore.Store) logstore.Store { return log },
		})
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, _, err := n.AwaitLeadership(ctx); err != nil {
			t.Errorf("it never leads: %v", err)
		}
	})
}
