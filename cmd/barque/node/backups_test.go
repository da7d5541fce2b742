package node

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/barque/barque/adminapi"
	"github.com/barque/barque/membership/join"
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
		if _, err := s.Commit(t.Context(), raftstore.Txn{Ops: []raftstore.Op{{Kind: raftstore.Put, Key: key, Value: []byte(key)}}}); err != nil {
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

// newBackups returns the backups of a server that began a cluster.
func newBackups(t *testing.T, o *Options, store backupStore) *backups {
	t.Helper()
	r, err := enlistServer(t.Context(), o, quiet())
	if err != nil {
		t.Fatal(err)
	}
	metrics, err := newBackupMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	return &backups{options: BackupOptions{Every: time.Hour, Keep: 3, Dir: filepath.Join(o.DataDir, "snapshots"), Unsealed: true},
		server: o.Name, record: r, dataDir: o.DataDir, store: store, logger: quiet(), now: time.Now, metrics: metrics}
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

// failing is a store that cannot be read for some time.
type failing struct {
	*raftstore.Store
	err atomic.Pointer[error]
}

func (f *failing) Ready(context.Context) error {
	if err := f.err.Load(); err != nil {
		return *err
	}
	return nil
}

func (f *failing) View(ctx context.Context, opts raftstore.ViewOptions) (raftstore.View, error) {
	if err := f.err.Load(); err != nil {
		return nil, *err
	}
	return f.Store.View(ctx, opts)
}

func TestBackupsAreMadeInTime(t *testing.T) {
	o := options(t, "s1")
	synctest.Test(t, func(t *testing.T) {
		store := &failing{Store: testStore(t, "/a")}
		b := newBackups(t, o, store)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		start := func() { go func() { ended <- b.run(ctx) }() }
		count := func() int {
			synctest.Wait()
			files, err := backup.List(b.options.Dir)
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range files {
				if f.Problem != "" {
					t.Errorf("%s: %s", f.Name, f.Problem)
				}
			}
			return len(files)
		}
		after := func(d time.Duration, want int) {
			t.Helper()
			<-time.After(d)
			if got := count(); got != want {
				t.Errorf("%d backups, want %d", got, want)
			}
		}
		start()
		after(2*time.Minute, 1) // the first one comes soon
		after(50*time.Minute, 1)
		after(10*time.Minute, 2)
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		// A restart does not begin anew, nor does it wait for a whole turn.
		ctx, stop = context.WithCancel(t.Context())
		<-time.After(40 * time.Minute)
		start()
		after(15*time.Minute, 2)
		after(11*time.Minute, 3)
		after(3*time.Hour, 3) // old ones go

		noLeader := errors.New("the store has no leader")
		store.err.Store(&noLeader)
		after(70*time.Minute, 3)
		if w := b.warnings(); len(w) != 1 || !strings.Contains(w[0], "no leader") {
			t.Errorf("warnings after a failure: %q", w)
		}
		store.err.Store(nil)
		after(11*time.Minute, 3)
		if w := b.warnings(); len(w) != 0 {
			t.Errorf("warnings after a success: %q", w)
		}
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestUnsealedBackupsAreNotScheduledUnasked: a server of an earlier version made them. Now it makes
// none without a choice, says so, and still knows the newest one that it has.
func TestUnsealedBackupsAreNotScheduledUnasked(t *testing.T) {
	o := options(t, "s1")
	synctest.Test(t, func(t *testing.T) {
		for name, c := range map[string]struct {
			choose func(*BackupOptions)
			made   bool
		}{
			"no choice": {func(*BackupOptions) {}, false},
			"unsealed":  {func(o *BackupOptions) { o.Unsealed = true }, true},
			"a key":     {func(o *BackupOptions) { o.KeyFile = keyFile(t) }, true},
		} {
			b := newBackups(t, o, &failing{Store: testStore(t, "/a")})
			b.options.Dir = filepath.Join(o.DataDir, name)
			old, err := b.save(t.Context()) // as the earlier version did
			if err != nil {
				t.Fatal(err)
			}
			b.options.Unsealed = false
			c.choose(&b.options)
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- b.run(ctx) }()
			<-time.After(90 * time.Minute)
			stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			files, err := backup.List(b.options.Dir)
			if err != nil || len(files) > 1 != c.made {
				t.Errorf("%s: %d backups, %v", name, len(files), err)
			}
			s := b.status()
			if list, err := b.list(); err != nil || s.Refused == "" != c.made || list.Refused != s.Refused {
				t.Errorf("%s: refused because %q, in the list %q, %v", name, s.Refused, list.Refused, err)
			}
			if s.Newest == nil || s.Newest.Name == old.Name == c.made {
				t.Errorf("%s: the newest is %+v", name, s.Newest)
			}
		}
	})
}

func asUser(h http.Handler, groups ...string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.ServeHTTP(w, r.WithContext(request.WithUser(r.Context(), &user.DefaultInfo{Name: "someone", Groups: groups})))
	})
}

func TestSnapshotsOverHTTP(t *testing.T) {
	store := &failing{Store: testStore(t, "/a", "/b")}
	b := newBackups(t, options(t, "s1"), store)
	serve := func(path, group string) *httptest.Server {
		s := httptest.NewServer(asUser(b.handlers(adminapi.NewRelay(b.server, func() []join.Server { return nil }, nil))[path], group))
		t.Cleanup(s.Close)
		return s
	}
	post := func(path, group string, body io.Reader) (*http.Response, []byte) {
		t.Helper()
		r, err := http.Post(serve(path, group).URL, "", body)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		data, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		return r, data
	}
	text, err := os.ReadFile(keyFile(t))
	if err != nil {
		t.Fatal(err)
	}
	wish, err := json.Marshal(SnapshotRequest{Key: string(text)})
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{SnapshotSavePath, SnapshotRestorePath} {
		if r, _ := post(path, "cluster-admins", bytes.NewReader(wish)); r.StatusCode != http.StatusForbidden {
			t.Errorf("%s for somebody else: %s", path, r.Status)
		}
	}
	r, data := post(SnapshotSavePath, user.SystemPrivilegedGroup, bytes.NewReader(wish))
	if r.StatusCode != http.StatusOK || bytes.Contains(data, []byte("PRIVATE KEY")) {
		t.Fatalf("%s, %d bytes", r.Status, len(data))
	}
	if r, text := post(SnapshotSavePath, user.SystemPrivilegedGroup, strings.NewReader("{}")); r.StatusCode != http.StatusBadRequest || !strings.Contains(string(text), "--unsealed") {
		t.Errorf("without a key: %s, %s", r.Status, text)
	}
	if r, data := post(SnapshotSavePath, user.SystemPrivilegedGroup, strings.NewReader(`{"unsealed": true}`)); r.StatusCode != http.StatusOK {
		t.Errorf("unsealed: %s, %s", r.Status, data)
	} else if about, err := backup.Check(bytes.NewReader(data)); err != nil || about.Sealed {
		t.Errorf("unsealed: %+v, %v", about, err)
	}
	unavailable := raftstore.ErrUnavailable
	store.err.Store(&unavailable)
	if r, text := post(SnapshotSavePath, user.SystemPrivilegedGroup, bytes.NewReader(wish)); r.StatusCode != http.StatusServiceUnavailable || !strings.Contains(string(text), "unavailable") {
		t.Errorf("without a leader: %s, %s", r.Status, text)
	}
	store.err.Store(nil)

	writeKeys(t, store.Store, "/c")
	restore := func(wish SnapshotRequest, file []byte) (*http.Response, Restored) {
		t.Helper()
		body, err := RestoreBody(wish, bytes.NewReader(file))
		if err != nil {
			t.Fatal(err)
		}
		r, data := post(SnapshotRestorePath, user.SystemPrivilegedGroup, body)
		var restored Restored
		if err := json.Unmarshal(data, &restored); err != nil {
			t.Fatalf("%s: %v", data, err)
		}
		return r, restored
	}
	damaged := bytes.Clone(data)
	damaged[len(damaged)-60] ^= 1
	for what, c := range map[string]struct {
		key  string
		file []byte
	}{"no key": {"", data}, "a wrong key": {"not this passphrase", data}, "a damaged file": {string(text), damaged}, "a cut file": {string(text), data[:len(data)/2]}} {
		if r, got := restore(SnapshotRequest{Key: c.key}, c.file); r.StatusCode != http.StatusBadRequest || got.Error == "" || got.Unknown {
			t.Errorf("%s: %s, %+v", what, r.Status, got)
		}
	}
	if keys := keysOf(t, store.Store); len(keys) != 3 {
		t.Fatalf("failed restores left %v", keys)
	}
	if r, got := restore(SnapshotRequest{Key: string(text)}, data); r.StatusCode != http.StatusOK || got.Revision != 4 || got.Backup.Revision != 2 {
		t.Fatalf("%s, %+v", r.Status, got)
	}
	if keys := keysOf(t, store.Store); !slices.Equal(keys, []string{"/a", "/b"}) {
		t.Errorf("restored to %v", keys)
	}
	b.record.Cluster.ID = "another"
	if r, got := restore(SnapshotRequest{Key: string(text)}, data); r.StatusCode != http.StatusConflict || !strings.Contains(got.Error, "another cluster") || !strings.Contains(got.Error, "--other-cluster") {
		t.Errorf("a backup of another cluster: %s, %+v", r.Status, got)
	}
	if r, got := restore(SnapshotRequest{Key: string(text), OtherCluster: true}, data); r.StatusCode != http.StatusOK {
		t.Errorf("a backup of another cluster, on purpose: %s, %+v", r.Status, got)
	}
}

// TestBackupsOfBeforeARecoveryDoNotCount: they are of the cluster that there was, so one of the new
// cluster is due soon.
func TestBackupsOfBeforeARecoveryDoNotCount(t *testing.T) {
	b := newBackups(t, options(t, "s1"), &failing{Store: testStore(t, "/a")})
	b.options.Every = 24 * time.Hour
	file, err := b.save(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	due := b.first()
	if newest := b.status().Newest; newest == nil || newest.Name != file.Name || due.Before(b.now().Add(time.Hour)) {
		t.Fatalf("before: the newest is %+v, the next is due at %s", newest, due)
	}
	b.record.Cluster.ID, b.newest = "recovered", nil
	due = b.first()
	if newest := b.status().Newest; newest != nil || due.After(b.now().Add(time.Hour)) {
		t.Errorf("afterwards: the newest is %+v, the next is due at %s", newest, due)
	}
}

// TestABackupOfTheFuture: the clock was a year ahead when it was made. The next one comes as soon
// as if it were not there, and is not the one that has to go for it.
func TestABackupOfTheFuture(t *testing.T) {
	b := newBackups(t, options(t, "s1"), &failing{Store: testStore(t, "/a")})
	b.options.Every, b.options.Keep = 24*time.Hour, 1
	b.now = func() time.Time { return time.Now().AddDate(1, 0, 0) }
	ahead, err := b.save(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b.now = time.Now
	if due := b.first(); due.After(b.now().Add(time.Minute)) || b.status().Newest != nil {
		t.Errorf("the next is due at %s, and the newest is %+v", due, b.status().Newest)
	}
	if err := b.scheduled(t.Context()); err != nil {
		t.Fatal(err)
	}
	files, err := backup.List(b.options.Dir)
	if err != nil || len(files) != 1 || files[0].Name == ahead.Name || files[0].Name != b.status().Newest.Name {
		t.Errorf("kept: %+v, %v", files, err)
	}
}

// saved makes a backup of a store with one key by a server of its own, and returns the file and the
// server's record.
func saved(t *testing.T, keyFile string) (string, *record, *Options) {
	t.Helper()
	o := options(t, "s1")
	o.Settings.Domain = "restored.example"
	b := newBackups(t, o, &failing{Store: testStore(t, "/a", "/b")})
	b.options.KeyFile = keyFile
	file, err := b.save(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return file.Path, b.record, o
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
	o := options(t, "s9")
	o.Restore = RestoreOptions{File: file, KeyFile: key, Gap: 1000}
	r, err := enlistServer(t.Context(), o, quiet())
	if err != nil {
		t.Fatal(err)
	}
	if r.Cluster.ID == old.Cluster.ID {
		t.Error("the new cluster has the ID of the old one, whose servers would not be refused")
	}
	if !bytes.Equal(r.Cluster.CA.PEM(), old.Cluster.CA.PEM()) || !slices.EqualFunc(r.Cluster.GossipKeys, old.Cluster.GossipKeys, bytes.Equal) {
		t.Error("it does not have the CA and the gossip keys")
	}
	for _, name := range []string{caKey, serviceAccountKey} {
		want, err := os.ReadFile(filepath.Join(pkiDir(oldOptions.DataDir), name))
		got, errGot := os.ReadFile(filepath.Join(pkiDir(o.DataDir), name))
		if err != nil || errGot != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is another one: %v, %v", name, err, errGot)
		}
	}
	if s, err := r.settings(); err != nil || s.Domain != "restored.example" {
		t.Errorf("settings %+v, %v", s, err)
	}
	// A crash before the state is there is made good; so is one just after.
	store := &successor{Store: testStore(t, "/left-by-nobody")}
	for range 2 {
		again, err := enlistServer(t.Context(), o, quiet())
		if err != nil || again.Restore == nil || again.Restore.Gap != 1000 {
			t.Fatalf("%+v, %v", again, err)
		}
		if err := restoreStore(t.Context(), again, store, quiet()); err != nil {
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
	r.Phase = phaseMember
	if err := r.save(); err != nil {
		t.Fatal(err)
	}
	if again, err := enlistServer(t.Context(), o, quiet()); err != nil || again.Restore != nil {
		t.Errorf("a start with the flag still there: %+v, %v", again, err)
	}
	o.Restore.File = file + ".other"
	if _, err := enlistServer(t.Context(), o, quiet()); err == nil || !strings.Contains(err.Error(), "needs an empty directory") {
		t.Errorf("another backup into a cluster: %v", err)
	}
}

func TestABackupWithoutKeysMakesANewCA(t *testing.T) {
	file, old, _ := saved(t, "")
	o := options(t, "s9")
	o.Restore = RestoreOptions{File: file}
	r, err := enlistServer(t.Context(), o, quiet())
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Equal(r.Cluster.CA.PEM(), old.Cluster.CA.PEM()) {
		t.Error("it has the old CA, whose key it cannot have")
	}
	if _, err := loadCA(o.DataDir, r); err != nil {
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
	for what, restore := range map[string]RestoreOptions{
		"no key": {File: file}, "another key": {File: file, KeyFile: keyFile(t)}, "damaged": {File: damaged, KeyFile: key}, "absent": {File: file + "x", KeyFile: key},
	} {
		o := options(t, "s9")
		o.Restore = restore
		if _, err := enlistServer(t.Context(), o, quiet()); err == nil {
			t.Errorf("%s: a cluster was begun", what)
		}
		if left, err := os.ReadDir(o.DataDir); err != nil || len(left) > 0 {
			t.Errorf("%s: it left %v, %v", what, left, err)
		}
	}
}
