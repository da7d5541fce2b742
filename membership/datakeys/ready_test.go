package datakeys_test

import (
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/apiserver/encryption"
	"github.com/barque/barque/membership/datakeys"
	"github.com/barque/barque/raftstore/register"
)

// TestKeyThatNobodyNeeds: a key that no server can open keeps none from being ready, and stops no
// change, while no value is under it. A value under it does both.
func TestKeyThatNobodyNeeds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, "s1", "s2")
		defer w.close()
		w.begin()
		w.writeSome("a Secret")
		synctest.Wait()
		store, s := register.New(w.store, stateKey), w.servers[0]
		value, revision, err := store.Get(w.ctx)
		if err != nil {
			t.Fatal(err)
		}
		var state map[string]any
		if err := json.Unmarshal(value, &state); err != nil {
			t.Fatal(err)
		}
		state["generation"] = state["generation"].(float64) + 1
		state["keys"] = append(state["keys"].([]any),
			map[string]any{"id": "lost", "sealed": "AAAA", "ca": "another", "made": time.Now()})
		if value, err = json.Marshal(state); err != nil {
			t.Fatal(err)
		}
		const key = "/registry/secrets/ns/lost"
		lost, err := w.store.Put(w.ctx, key, []byte(encryption.Prefix+"lost:x"))
		if err != nil {
			t.Fatal(err)
		}
		if err := store.Put(w.ctx, value, revision, 0); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		wanted := uint64(state["generation"].(float64))
		if err := s.keys.Ready(w.ctx); err == nil || !strings.Contains(err.Error(), "lost") ||
			s.shown.Load() == wanted {
			t.Errorf("with a value under it, %v, and generation %d is shown", err, s.shown.Load())
		}
		if _, err := w.store.Delete(w.ctx, key); err != nil || lost.Revision == 0 {
			t.Fatal(err)
		}
		time.Sleep(5 * time.Second) // it tries again
		synctest.Wait()
		if err := s.keys.Ready(w.ctx); err != nil || s.shown.Load() != wanted {
			t.Errorf("without one, %v, and generation %d is shown", err, s.shown.Load())
		}
		w.apply(datakeys.Rotate)
		w.settle(s, true)
	})
}
