package datakeys_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/apiserver/encryption"
	"github.com/barque/barque/membership/datakeys"
	"github.com/barque/barque/raftstore"
)

// TestUnsettledServers: while servers do not agree by what objects are encrypted, a leader rewrites
// none and finds no disk clean, also in a change that has begun before. The status has the reason.
func TestUnsettledServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, "s1", "s2")
		defer w.close()
		w.begin()
		w.writeSome("before")
		w.settle(w.servers[0], true)
		key := w.status(w.servers[0]).Keys[0].ID
		differ := errors.New("the files differ")
		w.servers[0].unsettled.Store(&differ)
		w.apply(datakeys.Rotate)
		w.lead(w.servers[0], time.Minute)
		is := w.status(w.servers[0])
		if is.Step != datakeys.Rewrite || !slices.ContainsFunc(is.Waiting, func(reason string) bool { return strings.Contains(reason, differ.Error()) }) {
			t.Errorf("an unsettled leader is at %+v", is)
		}
		for i := range 20 {
			if item := w.item(secretKey(i)); encryption.KeyOf(item.Value) != key {
				t.Fatalf("it has rewritten %s", item.Key)
			}
		}
		w.servers[0].unsettled.Store(nil)
		for w.status(w.servers[0]).Step == datakeys.Rewrite {
			w.lead(w.servers[0], time.Second)
		}
		w.servers[0].unsettled.Store(&differ)
		w.lead(w.servers[0], 10*time.Minute)
		if is := w.status(w.servers[0]); is.Step != datakeys.Clean || len(is.Keys) != 2 {
			t.Errorf("an unsettled leader drops a key: %+v", is)
		}
		w.servers[0].unsettled.Store(nil)
		w.settle(w.servers[0], true)
	})
}

// item is that of a key in the store.
func (w *world) item(key string) raftstore.Item {
	w.t.Helper()
	view, err := w.store.View(w.ctx, raftstore.ViewOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	item, _ := view.Get(key)
	return item
}
