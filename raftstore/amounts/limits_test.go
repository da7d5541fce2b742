package amounts

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/storetest"
)

// TestManyExpireAtOnce lets 100,000 keys expire in the same moment. They go in few entries, and a
// key that was renewed in time stays.
func TestManyExpireAtOnce(t *testing.T) {
	const keys, each = 100_000, 1000
	synctest.Test(t, func(t *testing.T) {
		s := raftstore.NewInMemory(raftstore.Options{Limits: raftstore.Limits{HistoryBytes: 1 << 20}})
		defer s.Close()
		ctx := t.Context()
		for i := 0; i < keys; i += each {
			var txn raftstore.Txn
			for k := range each {
				txn.Ops = append(txn.Ops,
					raftstore.Op{Kind: raftstore.Put, Key: fmt.Sprintf("/events/%06d", i+k), TTL: time.Hour})
			}
			if _, err := s.Commit(ctx, txn); err != nil {
				t.Fatal(err)
			}
		}
		<-time.After(time.Hour - time.Second)
		if v, _ := s.View(ctx, raftstore.ViewOptions{}); v.Count("/", "") != keys {
			t.Fatalf("%d keys before their time", v.Count("/", ""))
		}
		renewed := put("/events/000007", "")
		if _, err := s.Commit(ctx, renewed); err != nil {
			t.Fatal(err)
		}
		before := s.Revision()
		<-time.After(6 * time.Second)
		v, err := s.View(ctx, raftstore.ViewOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := v.Get("/events/000007"); !ok || v.Count("/", "") != 1 {
			t.Errorf("%d keys are left; the renewed one: %t", v.Count("/", ""), ok)
		}
		if n := v.Revision() - before; n > keys/500 {
			t.Errorf("%d revisions for %d keys", n, keys)
		}
	})
}

// TestLargestTransactions sends the largest transactions that limits can allow by a follower: in
// bytes, and in the number of their operations, which have a head each.
func TestLargestTransactions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := storetest.NewCluster(t, 3, func(_ int, cfg *raftstore.Config) {
			cfg.Limits = raftstore.Limits{
				TxnBytes: raftstore.MaxTxnBytes, ValueBytes: raftstore.MaxTxnBytes - 1<<10, KeyBytes: 1 << 10,
				TxnOps: raftstore.MaxTxnOps,
			}
		})
		leader, _ := c.Leader()
		many := raftstore.Txn{}
		value := make([]byte, raftstore.MaxTxnBytes/raftstore.MaxTxnOps-len("/many/00000"))
		for i := range raftstore.MaxTxnOps {
			many.Ops = append(many.Ops,
				raftstore.Op{Kind: raftstore.Put, Key: fmt.Sprintf("/many/%05d", i), Value: value,
					TTL: 1000 * time.Hour})
		}
		for what, txn := range map[string]raftstore.Txn{
			"one value": put("/a", string(make([]byte, raftstore.MaxTxnBytes-1<<10))), "many keys": many} {
			if _, err := c.Servers[(leader+1)%3].Commit(await.Context(t), txn); err != nil {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
}
