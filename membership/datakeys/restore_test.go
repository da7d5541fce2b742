package datakeys_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/apiserver/encryption"
	"github.com/barque/barque/membership/datakeys"
	"github.com/barque/barque/raftstore"
)

// backup is the state of the store, and the objects in it.
type backup struct {
	items []raftstore.Item
	model map[string]string
}

func (w *world) backup() backup {
	w.t.Helper()
	view, err := w.store.View(w.ctx, raftstore.ViewOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	b := backup{model: maps.Clone(w.model)}
	view.Ascend("", "", func(item raftstore.Item) bool {
		b.items = append(b.items, item)
		return true
	})
	return b
}

// state is the backup's state of the keys.
func (b backup) state() []byte {
	for _, item := range b.items {
		if item.Key == stateKey {
			return item.Value
		}
	}
	return nil
}

// with is the backup with another state of the keys.
func (b backup) with(state []byte) backup {
	b.items = slices.Clone(b.items)
	for i := range b.items {
		if b.items[i].Key == stateKey {
			b.items[i].Value = state
		}
	}
	return b
}

func (w *world) restore(b backup) {
	w.t.Helper()
	_, err := w.store.Restore(w.ctx, func(yield func(*raftstore.Item) error) error {
		for i := range b.items {
			if err := yield(&b.items[i]); err != nil {
				return err
			}
		}
		return nil
	}, raftstore.RestoreOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	w.model = maps.Clone(b.model)
}

func (w *world) apply(c datakeys.Change, add ...string) {
	w.t.Helper()
	w.order(datakeys.Order{Change: c, Add: add})
}

func (w *world) order(o datakeys.Order) {
	w.t.Helper()
	synctest.Wait() // a server that has not taken over the last state refuses
	if err := w.servers[0].manager.Apply(w.ctx, o); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) writeSome(what string) {
	w.t.Helper()
	for i := range 20 {
		if err := w.write(w.servers[i%len(w.servers)], secretKey(i), fmt.Sprintf("%s %d", what, i), 0); err != nil {
			w.t.Fatal(err)
		}
	}
}

// retried is the time in which a leader makes a step or two.
const retried = 2100 * time.Millisecond

// TestRestoredBackups: whichever backup of the cluster is restored, its objects are read, and end
// under the newest key. The keys that it brings back go again.
func TestRestoredBackups(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, "s1", "s2", "s3")
		defer w.close()
		backups := map[string]backup{}
		w.writeSome("in clear")
		backups["before it was enabled"] = w.backup()
		w.apply(datakeys.Enable)
		for range 12 { // in the middle of each step
			backups["enable: "+string(w.status(w.servers[0]).Step)] = w.backup()
			w.lead(w.servers[0], retried)
		}
		w.settle(w.servers[1], true)
		w.writeSome("encrypted")
		w.apply(datakeys.Rotate)
		for range 12 {
			backups["rotate: "+string(w.status(w.servers[0]).Step)] = w.backup()
			w.lead(w.servers[0], retried)
		}
		w.settle(w.servers[1], true)
		w.writeSome("with a second key")
		newest := w.status(w.servers[0]).Keys[0].ID
		if len(backups) < 7 {
			t.Fatalf("the backups are of %d moments", len(backups))
		}
		for moment, b := range backups {
			w.restore(b)
			w.settle(w.servers[2], true)
			if is := w.status(w.servers[0]); is.Keys[0].ID != newest {
				t.Errorf("%s: key %s encrypts, which was rotated", moment, is.Keys[0].ID)
			}
		}
	})
}

// TestBackupOfAFormerCA: a backup whose keys no server can open any more is refused. Should its
// state come into the store all the same, the servers are not ready, say why, and keep the
// unreadable values, also the keys.
func TestBackupOfAFormerCA(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, "s1", "s2")
		defer w.close()
		w.begin()
		w.writeSome("old")
		synctest.Wait()
		old := w.backup()
		s := w.servers[0]
		if state, err := s.keys.FitRestored(old.state()); err != nil || !bytes.Equal(state, old.state()) {
			t.Errorf("the backup of just now is refused, or changed: %v", err)
		}
		w.exchangeCA()
		w.lead(s, 10*time.Second)
		w.exchangeCA()
		if w.cas.other != nil {
			t.Fatal("the keys are not sealed with the new CA's key")
		}
		if err := datakeys.Opens(old.state(), w.cas); err == nil {
			t.Error("a sealed backup of now could be made of it, which nobody could open")
		}
		if now := w.backup(); datakeys.Opens(now.state(), w.cas) != nil {
			t.Error("what is sealed with the new CA's key is refused")
		}
		// Its key is on this server, and no other one could open it: it is sealed anew.
		state, err := s.keys.FitRestored(old.state())
		if err != nil {
			t.Fatalf("a backup whose key is in use is refused: %v", err)
		}
		other := w.newServer("other")
		other.start()
		if _, err := other.keys.FitRestored(state); err != nil {
			t.Errorf("another server could not open what was restored: %v", err)
		}
		other.halt()
		fitting := old.with(state)
		w.restore(fitting)
		w.settle(s, true)
		w.apply(datakeys.Rotate)
		w.settle(s, true)
		_, err = s.keys.FitRestored(old.state())
		if err == nil || !strings.Contains(err.Error(), "--restore-from") || !strings.Contains(err.Error(), "CA") {
			t.Fatalf("a backup that nobody can read is not refused: %v", err)
		}
		w.restore(old)
		for _, s := range w.servers { // which have the former key in memory yet
			s.halt()
			s.start()
		}
		w.lead(s, 30*time.Second)
		for _, s := range w.servers {
			if err := s.keys.Ready(w.ctx); err == nil ||
				!strings.Contains(err.Error(), "cannot read all objects: data key") {
				t.Errorf("%s is ready: %v", s.name, err)
			}
		}
		for _, item := range old.items {
			if item.Key == stateKey {
				continue
			}
			view, err := w.store.View(w.ctx, raftstore.ViewOptions{})
			if err != nil {
				t.Fatal(err)
			}
			now, _ := view.Get(item.Key)
			if string(now.Value) != string(item.Value) {
				t.Errorf("%s was changed, although nobody could read it", item.Key)
			}
			if _, _, err := s.sealer().TransformFromStorage(w.ctx, now.Value, place(item.Key)); err == nil ||
				!strings.Contains(err.Error(), item.Key) {
				t.Errorf("%s is read: %v", item.Key, err)
			}
		}
		is := w.status(s)
		if is.Problem == "" || len(is.Keys) != 2 {
			t.Errorf("the status: %+v", is)
		}
		// The CA's key comes back, as with the file of another server: all goes on.
		w.cas.hold(w.cas.issuer, w.former)
		w.settle(s, true)
	})
}

// TestRefusedChanges: encryption is not enabled while a server could not read it; one change is
// made at a time.
func TestRefusedChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, "s1", "s2", "s3")
		defer w.close()
		synctest.Wait()
		s := w.servers[0]
		if is := w.status(s); is.Generation != datakeys.First {
			t.Errorf("servers are at generation %d, and the cluster at %d", datakeys.First, is.Generation)
		}
		refused := func(c datakeys.Change, want string) {
			t.Helper()
			var is *datakeys.RefusedError
			if err := s.manager.Apply(w.ctx, datakeys.Order{Change: c}); !errors.As(err, &is) ||
				!strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %s", c, err, want)
			}
		}
		w.servers[1].shown.Store(0) // as a server of an earlier version
		w.servers[2].halt()
		refused(datakeys.Enable, "s2 (an earlier version), s3 (dead)")
		refused(datakeys.Rotate, "s2 (an earlier version), s3 (dead)")
		w.servers[1].shown.Store(datakeys.First)
		w.servers[2].start()
		refused(datakeys.Rotate, "secrets-encrypt enable")
		refused("another", "no change")
		if err := s.manager.Apply(w.ctx, datakeys.Order{Change: datakeys.Enable, DryRun: true}); err != nil {
			t.Error(err)
		}
		if is := w.status(s); is.Step != datakeys.AtRest || is.Enabled {
			t.Errorf("a dry run has changed something: %+v", is)
		}
		w.apply(datakeys.Enable)
		refused(datakeys.Rotate, "under way") // also at a server that has not taken it over yet
		synctest.Wait()
		refused(datakeys.Rotate, "under way")
		w.settle(s, true)
		w.servers[2].halt()
		w.apply(datakeys.Rotate) // one that is away gets the key when it comes back
		w.settle(s, true)
		w.writeSome("while s3 was off")
		w.servers[2].start()
		synctest.Wait()
		if w.servers[2].purged.Load() == 0 {
			t.Error("s3 was off during the change, and has not cleaned its disk")
		}
		w.servers[2].halt() // its disk stays as it is
		if is := w.status(s); is.Servers[2].Alive || !is.Servers[2].Cleaned {
			t.Errorf("s3 is off, and was clean: %+v", is.Servers)
		}
		w.servers[2].start()
		synctest.Wait()
		w.check(true)
	})
}

// TestMoreResources: objects in clear are encrypted when their resource is named, and all encrypted
// objects stay so. Only a resource that is named for it is decrypted.
func TestMoreResources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, "s1", "s2")
		defer w.close()
		w.begin()
		w.writeSome("secret")
		const config, secret = "/registry/configmaps/ns/c", "/registry/secrets/ns/s1"
		if _, err := w.store.Put(w.ctx, config, []byte("a ConfigMap")); err != nil {
			t.Fatal(err)
		}
		for _, c := range []struct {
			add, drop              []string
			config, secret, change bool
		}{
			{[]string{"configmaps"}, nil, true, true, true},
			{nil, nil, true, true, false},
			{[]string{"secrets"}, nil, true, true, false},
			{nil, []string{"configmaps"}, false, true, true},
			{[]string{"configmaps"}, []string{"secrets"}, true, false, true},
			{[]string{"secrets"}, nil, true, true, true},
		} {
			before := w.status(w.servers[1]).Generation
			w.order(datakeys.Order{Change: datakeys.Enable, Add: c.add, Drop: c.drop})
			if now := w.status(w.servers[1]).Generation; (now != before) != c.change {
				t.Errorf("%+v: generation %d after %d", c, now, before)
			}
			for range 20 {
				if w.lead(w.servers[1], 20*time.Second); w.status(w.servers[1]).Step == datakeys.AtRest {
					break
				}
			}
			view, err := w.store.View(w.ctx, raftstore.ViewOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for key, want := range map[string]bool{config: c.config, secret: c.secret} {
				item, _ := view.Get(key)
				data, id, err := w.servers[0].transformers.Load().Open(w.ctx, item.Value, place(key))
				if err != nil || len(data) == 0 || want != (id != "") {
					t.Errorf("%+v: %s is %q under %q, %v", c, key, data, id, err)
				}
			}
		}
		for want, o := range map[string]datakeys.Order{
			"is not among the resources": {Drop: []string{"pods"}},
			"no resource would be left":  {Drop: []string{"secrets", "configmaps"}},
			"at once":                    {Add: []string{"secrets"}, Drop: []string{"secrets"}},
		} {
			o.Change = datakeys.Enable
			var refused *datakeys.RefusedError
			if err := w.servers[0].manager.Apply(w.ctx, o); !errors.As(err, &refused) ||
				!strings.Contains(err.Error(), want) {
				t.Errorf("%+v: %v, want %s", o, err, want)
			}
		}
		w.settle(w.servers[1], true)
	})
}

// TestRewriteIsFenced: a leader of a term that is over rewrites nothing, and neither does one that
// goes by an older state of the keys.
func TestRewriteIsFenced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, "s1")
		defer w.close()
		w.writeSome("in clear")
		w.begin()
		synctest.Wait()
		s := w.servers[0]
		e, err := s.keys.Epoch(w.ctx)
		if err != nil {
			t.Fatal(err)
		}
		o := stored{&encryption.Objects{Store: w.store, Transformers: s.transformers.Load(), Now: time.Now}}
		if err := o.Rewrite(w.ctx, 99, e, func(int) {}); !errors.Is(err, raftstore.ErrFenced) {
			t.Errorf("in another term: %v", err)
		}
		older := *e
		older.Revision--
		var conflict *raftstore.ConflictError
		if err := o.Rewrite(w.ctx, 1, &older, func(int) {}); !errors.As(err, &conflict) {
			t.Errorf("by an older state: %v", err)
		}
		if n, err := o.Count(w.ctx, &datakeys.Epoch{Resources: []string{"secrets"}}); err != nil || n.Clear != 20 {
			t.Errorf("%v, %v", n, err)
		}
		ctx, cancel := context.WithCancel(w.ctx)
		cancel()
		if err := o.Rewrite(ctx, 1, e, func(int) {}); err == nil {
			t.Error("it goes on after its end")
		}
		if err := o.Rewrite(w.ctx, 1, e, func(int) {}); err != nil {
			t.Error(err)
		}
		w.check(true)
	})
}

// TestEnabledEverywhereAtOnce: on a cluster of before, operators give the same command to all
// servers, several times and while servers restart. There is one key in the end, and every server
// reads every object.
func TestEnabledEverywhereAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, "s1", "s2", "s3")
		defer w.close()
		w.writeSome("in clear")
		synctest.Wait()
		for round := range 5 {
			var asking sync.WaitGroup
			for _, s := range w.servers {
				asking.Go(func() {
					err := s.manager.Apply(w.ctx, datakeys.Order{Change: datakeys.Enable})
					var refused *datakeys.RefusedError
					var conflict *raftstore.ConflictError
					if err != nil && !errors.As(err, &refused) && !errors.As(err, &conflict) {
						t.Errorf("%s: %v", s.name, err)
					}
				})
			}
			asking.Wait()
			w.lead(w.servers[round%3], retried)
			restarted := w.servers[(round+1)%3]
			restarted.halt()
			restarted.start()
		}
		w.settle(w.servers[0], true)
	})
}
