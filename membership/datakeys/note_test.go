package datakeys_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/membership/datakeys"
	"github.com/barque/barque/membership/enroll"
	"github.com/barque/barque/raftstore/register"
)

// fenced reports whether the data directory is closed to versions that cannot read encrypted
// objects.
func (s *server) fenced() bool {
	s.world.t.Helper()
	r, err := enroll.Load(s.dir)
	if err != nil {
		s.world.t.Fatal(err)
	}
	return r != nil && r.Format > 3
}

func (s *server) wantFenced(when string, want bool) {
	s.world.t.Helper()
	synctest.Wait()
	if s.fenced() != want {
		s.world.t.Errorf("%s: %s is fenced: %t", when, s.name, !want)
	}
}

// TestFence: earlier versions are kept from the data directory of a server while it has keys, or
// its store may have values under any. That is so from the moment at which the state is in its
// store, and also if it was stopped between any two writes.
func TestFence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, "s1", "s2")
		defer w.close()
		failure := errors.New("no")
		s1, s2 := w.servers[0], w.servers[1]
		s1.wantFenced("in clear", false)
		w.begin()
		s1.wantFenced("new", true)
		w.apply(datakeys.Rotate)
		w.settle(s1, true)

		joiner := w.newServer("joiner")
		joiner.purgeFails.Store(&failure)
		joiner.start()
		joiner.wantFenced("before its disk is clean", true)
		joiner.halt()

		again := w.newServer("again") // whose file was kept from before it joined again
		data, err := os.ReadFile(filepath.Join(s1.dir, "data-keys.json"))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(again.dir, "data-keys.json"), data, 0o600); err != nil {
			t.Fatal(err)
		}
		again.start()
		again.wantFenced("with a file of before", true)
		again.halt()

		s2.noteFails.Store(&failure)
		w.apply(datakeys.Disable)
		w.settle(s1, false)
		s1.wantFenced("disabled", false)
		s2.wantFenced("stopped before it has noted that", true)
		s2.halt()
		s2.noteFails.Store(nil)
		s2.start()
		s2.wantFenced("started again", false)
		if got := s2.shown.Load(); got != s1.shown.Load() {
			t.Errorf("s2 shows generation %d", got)
		}
	})
}

// TestDamagedState: a state of the keys that cannot be read, or is of a newer Barque, is an error
// for each caller that needs it. Nothing replaces it, and nothing is written while it is there.
func TestDamagedState(t *testing.T) {
	for what, damage := range map[string]func(good []byte) []byte{
		"cut":     func(good []byte) []byte { return good[:len(good)-9] },
		"nothing": func([]byte) []byte { return []byte("{}") },
		"no JSON": func([]byte) []byte { return []byte("x") },
		"another": func(good []byte) []byte {
			return []byte(strings.Replace(string(good), `"cluster":""`, `"cluster":"x"`, 1))
		},
		"newer": func(
			good []byte,
		) []byte {
			return []byte(strings.Replace(string(good), `"format":1`, `"format":3`, 1))
		},
		"types": func(
			good []byte,
		) []byte {
			return []byte(strings.Replace(string(good), `"keys":[`, `"keys":["x",`, 1))
		},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, 1, "s1", "s2")
				defer w.close()
				w.begin()
				w.writeSome("a Secret")
				synctest.Wait()
				store, s := register.New(w.store, stateKey), w.servers[0]
				good, revision, err := store.Get(w.ctx)
				if err != nil {
					t.Fatal(err)
				}
				bad := damage(good)
				if string(bad) == string(good) {
					t.Fatal("it is not damaged")
				}
				if err := store.Put(w.ctx, bad, revision, 0); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				for range 3 {
					s.halt()
					s.start()
					w.lead(s, 10*time.Second)
				}
				for _, c := range []datakeys.Change{datakeys.Enable, datakeys.Disable, datakeys.Rotate,
					datakeys.Renew} {
					if err := s.manager.Apply(w.ctx, datakeys.Order{Change: c}); err == nil {
						t.Errorf("%s is begun", c)
					}
				}
				if err := s.keys.Ready(w.ctx); err == nil {
					t.Error("it is ready")
				}
				if sealed, err := s.manager.SealedBy(w.cas.Digest()); sealed || err == nil {
					t.Errorf("it is sealed: %t, %v", sealed, err)
				}
				if _, err := s.manager.Encrypts(w.ctx); err == nil {
					t.Error("whether it encrypts is known")
				}
				if _, err := s.keys.FitRestored(bad); err == nil {
					t.Error("it is restored")
				}
				ctx, cancel := context.WithTimeout(w.ctx, time.Minute)
				defer cancel()
				if _, _, err := s.sealer().Seal(ctx, []byte("x"), place("/registry/secrets/ns/x")); err == nil {
					t.Error("a Secret can be written")
				}
				if now, _, err := store.Get(w.ctx); err != nil || string(now) != string(bad) {
					t.Errorf("it was replaced by %q, %v", now, err)
				}
				s.wantFenced("damaged", true)
				view := w.backup()
				for key, want := range view.model { // earlier writes are read
					for _, item := range view.items {
						if item.Key != key {
							continue
						}
						if got, _, err := s.sealer().TransformFromStorage(w.ctx, item.Value, place(key)); err != nil ||
							string(got) != want {
							t.Fatalf("%s is %q, %v", key, got, err)
						}
					}
				}
				var is map[string]any
				if err := json.Unmarshal(good, &is); err != nil || fmt.Sprint(is["format"]) != "1" {
					t.Fatal(err)
				}
				if _, revision, err = store.Get(w.ctx); err != nil {
					t.Fatal(err)
				}
				if err := store.Put(w.ctx, good, revision, 0); err != nil {
					t.Fatal(err)
				}
				w.settle(s, true)
			})
		})
	}
}
