package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/barque/barque/adminapi"
	"github.com/barque/barque/internal/clusterusers"
	"github.com/barque/barque/membership/enroll"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/membership/keyring"
	"github.com/barque/barque/membership/rollover"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/register"
)

func TestGossipKeysOnDiskAreTheirOwnersAlone(t *testing.T) {
	dir := t.TempDir()
	r := &enroll.Record{Dir: dir, Phase: enroll.PhaseMember, Name: "a1", Role: pki.RoleAgent,
		Cluster: join.Cluster{ID: "c1", GossipKeys: [][]byte{{1}}}}
	want := keyring.Ring{Generation: 3, Keys: [][]byte{{2}, {1}}}
	if err := r.SetGossipRing(want); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, "node.json"))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v", info, err)
	}
	again, err := enroll.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	if got := again.GossipRing(); got.Generation != 3 || len(got.Keys) != 2 || got.Keys[0][0] != 2 {
		t.Fatalf("read back: %+v", got)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r.Dir = filepath.Join(dir, "file") // nothing can be written there
	if err := r.SetGossipRing(keyring.Ring{Generation: 4, Keys: [][]byte{{3}}}); err == nil ||
		r.GossipRing().Generation != 3 {
		t.Fatalf("a failed write: %v, generation %d", err, r.GossipRing().Generation)
	}
}

// newKeys is a manager with its own store and the given members.
func newKeys(t *testing.T, members ...rollover.Member) (*keyring.Manager, register.Register, *keyring.Own) {
	t.Helper()
	store := raftstore.NewInMemory(raftstore.Options{Logger: slog.New(slog.DiscardHandler)})
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	ca, err := pki.NewAuthority("c1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	nothing := func(keyring.Ring) error { return nil }
	own := keyring.NewOwn(keyring.Ring{Keys: [][]byte{make([]byte, keyring.KeySize)}}, nothing, nothing)
	changed, ring := make(chan struct{}), register.New(store, gossipKeysKey)
	m := keyring.New(keyring.Config{Own: own, Sealer: ca, Members: func() []rollover.Member { return members },
		Server: rollover.Server{Cluster: "c1", Store: ring, Changed: func() <-chan struct{} { return changed },
			Logger: slog.New(slog.DiscardHandler)}})
	return m, ring, own
}

func TestKeysHandler(t *testing.T) {
	alive, away := rollover.Member{Name: "s1", Alive: true, State: "alive"}, rollover.Member{Name: "a1", State: "dead"}
	for what, c := range map[string]struct {
		method, query string
		members       []rollover.Member
		status        int
		step          keyring.Step
		refused       bool
	}{
		"looked at":   {"GET", "", []rollover.Member{alive}, 200, keyring.AtRest, false},
		"begun":       {"POST", "?change=rotate", []rollover.Member{alive}, 200, keyring.Add, false},
		"only asked":  {"POST", "?change=rotate&dryRun=true", []rollover.Member{alive}, 200, keyring.AtRest, false},
		"one is away": {"POST", "?change=rotate", []rollover.Member{alive, away}, 409, "", true},
		"forced": {"POST", "?change=rotate&force=true", []rollover.Member{alive, away}, 200, keyring.Add,
			false},
		"nothing to undo": {"POST", "?change=undo", []rollover.Member{alive}, 409, "", true},
		"another change":  {"POST", "?change=drop", []rollover.Member{alive}, 400, "", false},
		"no change":       {"POST", "", []rollover.Member{alive}, 400, "", false},
		"another verb":    {"DELETE", "", []rollover.Member{alive}, 405, "", false},
	} {
		t.Run(what, func(t *testing.T) {
			m, _, _ := newKeys(t, c.members...)
			w := httptest.NewRecorder()
			by := func(group string) *http.Request {
				r := httptest.NewRequest(c.method, adminapi.KeysPath+c.query, nil)
				return r.WithContext(
					request.WithUser(r.Context(), &user.DefaultInfo{Name: "ann", Groups: []string{group}}))
			}
			// RBAC permits it to them.
			if adminapi.KeysHandler(m).ServeHTTP(w,
				by("dev")); (w.Code == http.StatusForbidden) != (c.method != "GET") {
				t.Fatalf("somebody gets status %d, %s", w.Code, w.Body)
			}
			w = httptest.NewRecorder()
			adminapi.KeysHandler(m).ServeHTTP(w, by(clusterusers.AdminGroup))
			var a adminapi.KeysAnswer
			if w.Code != c.status ||
				json.Unmarshal(w.Body.Bytes(), &a) == nil && (a.Step != c.step || a.Refused != c.refused) {
				t.Fatalf("status %d, %s", w.Code, w.Body)
			}
			if bytes.Contains(w.Body.Bytes(), []byte("sealed")) {
				t.Fatal("it tells the keys")
			}
		})
	}
}

// The store itself carries the rotation: a commit reaches the manager of every server, and a leader
// of another term advances nothing.
func TestRotationThroughTheStore(t *testing.T) {
	member := rollover.Member{Name: "s1", Alive: true, State: "alive"}
	m, store, own := newKeys(t, member)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := m.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	if err := m.Rotate(t.Context(), false, false); err != nil {
		t.Fatal(err)
	}
	deadline := time.After(time.Minute)
	for tick := time.NewTicker(5 * time.Millisecond); len(own.Ring().Keys) != 2; {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("the new key does not arrive")
		}
	}
	value, revision, err := store.Get(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Put(t.Context(), value, revision, 99); !errors.Is(err, raftstore.ErrFenced) {
		t.Errorf("a write of another term: %v", err)
	}
	cancel()
	running.Wait()
}
