package node

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/barque/barque/backups"
	"github.com/barque/barque/cmd/barque/node/options"
	"github.com/barque/barque/membership/credentials"
	"github.com/barque/barque/membership/enroll"
	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/backup"
)

func testStore(t *testing.T, keys ...string) *raftstore.Store {
	t.Helper()
	s := raftstore.NewInMemory(raftstore.Options{})
	t.Cleanup(func() { s.Close() })
	writeKeys(t, s, keys...)
	return s
}

func writeKeys(t *testing.T, s *raftstore.Store, keys ...string) {
	t.Helper()
	for _, key := range keys {
		if _, err := s.Commit(t.Context(),
			raftstore.Txn{Ops: []raftstore.Op{{Kind: raftstore.Put, Key: key, Value: []byte(key)}}}); err != nil {
			t.Fatal(err)
		}
	}
}

func keysOf(t *testing.T, s *raftstore.Store) (keys []string) {
	t.Helper()
	v, err := s.View(t.Context(), raftstore.ViewOptions{})
	if err != nil {
		t.Fatal(err)
	}
	v.Ascend("", "", func(item raftstore.Item) bool { keys = append(keys, item.Key); return true })
	return keys
}

func keyFile(t *testing.T) string {
	t.Helper()
	secret, _, err := backup.GenerateKey()
	path := filepath.Join(t.TempDir(), "backup.key")
	if err == nil {
		err = os.WriteFile(path, []byte(secret), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// readyStore is a store that is always ready.
type readyStore struct{ *raftstore.Store }

func (readyStore) Ready(context.Context) error { return nil }

// saved makes a backup of a store with one key by its own server, and returns the file and the
// server's record.
func saved(t *testing.T, keyFile string) (string, *enroll.Record, *options.Options) {
	t.Helper()
	o := testOptions(t, "s1")
	o.Settings.Domain = "restored.example"
	r, err := enlistServer(t.Context(), o, quiet())
	if err != nil {
		t.Fatal(err)
	}
	b, err := backups.New(
		backups.Config{Options: backups.Options{Dir: filepath.Join(o.DataDir, "snapshots"), KeyFile: keyFile},
			Server: o.Name, Cluster: enroll.BackedUp{Record: r, DataDir: o.DataDir},
			Logger: quiet(), Now: time.Now}, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	b.Use(readyStore{testStore(t, "/a", "/b")})
	file, err := b.Save(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return file.Path, r, o
}

// successor notes which clusters it was made the successor of.
type successor struct {
	*raftstore.Store
	of []string
}

func (s *successor) Succeed(_ context.Context, cluster string) error {
	s.of = append(s.of, cluster)
	return nil
}

func TestANewClusterBeginsWithABackup(t *testing.T) {
	key := keyFile(t)
	file, old, oldOptions := saved(t, key)
	o := testOptions(t, "s9")
	o.Restore = backups.RestoreOptions{File: file, KeyFile: key, Gap: 1000}
	r, err := enlistServer(t.Context(), o, quiet())
	if err != nil {
		t.Fatal(err)
	}
	if r.Cluster.ID == old.Cluster.ID {
		t.Error("the new cluster has the ID of the old one, whose servers would not be refused")
	}
	if !bytes.Equal(r.Cluster.CA.PEM(), old.Cluster.CA.PEM()) ||
		!slices.EqualFunc(r.Cluster.GossipKeys, old.Cluster.GossipKeys, bytes.Equal) {
		t.Error("it does not have the CA and the gossip keys")
	}
	for _, name := range []string{credentials.CAKey, credentials.ServiceAccountKey} {
		want, err := os.ReadFile(filepath.Join(credentials.Dir(oldOptions.DataDir), name))
		got, errGot := os.ReadFile(filepath.Join(credentials.Dir(o.DataDir), name))
		if err != nil || errGot != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is another one: %v, %v", name, err, errGot)
		}
	}
	if s, err := options.SettingsOf(r); err != nil || s.Domain != "restored.example" {
		t.Errorf("settings %+v, %v", s, err)
	}
	// A crash before the state is there is repaired; so is one just after.
	store := &successor{Store: testStore(t, "/left-by-nobody")}
	for range 2 {
		again, err := enlistServer(t.Context(), o, quiet())
		if err != nil || again.Restore == nil || again.Restore.Gap != 1000 {
			t.Fatalf("%+v, %v", again, err)
		}
		err = again.RestoreStore(func(o *enroll.Restore) error {
			return backups.Restore(t.Context(), (*backups.RestoreOptions)(o), store, nil, quiet())
		})
		if err != nil {
			t.Fatal(err)
		}
		r = again
	}
	if !slices.Equal(store.of, []string{old.Cluster.ID, old.Cluster.ID}) {
		t.Errorf("it goes on in place of the clusters %q, want %s, each time", store.of, old.Cluster.ID)
	}
	if keys := keysOf(t, store.Store); !slices.Equal(keys, []string{"/a", "/b"}) || store.Revision() < 1002 {
		t.Errorf("%v at revision %d", keys, store.Revision())
	}
	r.Phase = enroll.PhaseMember
	if err := r.Save(); err != nil {
		t.Fatal(err)
	}
	if again, err := enlistServer(t.Context(), o, quiet()); err != nil || again.Restore != nil {
		t.Errorf("a start with the flag still there: %+v, %v", again, err)
	}
	o.Restore.File = file + ".other"
	if _, err := enlistServer(t.Context(), o, quiet()); err == nil ||
		!strings.Contains(err.Error(), "needs an empty directory") {
		t.Errorf("another backup into a cluster: %v", err)
	}
}

func TestABackupWithoutKeysMakesANewCA(t *testing.T) {
	file, old, _ := saved(t, "")
	o := testOptions(t, "s9")
	o.Restore = backups.RestoreOptions{File: file}
	r, err := enlistServer(t.Context(), o, quiet())
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(r.Cluster.CA.PEM(), old.Cluster.CA.PEM()) {
		t.Error("it has the old CA, whose key it cannot have")
	}
	if _, err := credentials.LoadHome(o.DataDir, r); err != nil {
		t.Error(err)
	}
}

func TestABadBackupBeginsNothing(t *testing.T) {
	key := keyFile(t)
	file, _, _ := saved(t, key)
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	damaged := filepath.Join(t.TempDir(), "damaged")
	data[len(data)/2] ^= 1
	if err := os.WriteFile(damaged, data, 0o600); err != nil {
		t.Fatal(err)
	}
	for what, restore := range map[string]backups.RestoreOptions{
		"no key": {File: file}, "another key": {File: file, KeyFile: keyFile(t)},
		"damaged": {File: damaged, KeyFile: key}, "absent": {File: file + "x", KeyFile: key},
	} {
		o := testOptions(t, "s9")
		o.Restore = restore
		if _, err := enlistServer(t.Context(), o, quiet()); err == nil {
			t.Errorf("%s: a cluster was begun", what)
		}
		if left, err := os.ReadDir(o.DataDir); err != nil || len(left) > 0 {
			t.Errorf("%s: it left %v, %v", what, left, err)
		}
	}
}
