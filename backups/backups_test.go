package backups

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
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

// oneCluster is a cluster that has one secret.
type oneCluster struct{ id string }

func (c *oneCluster) ID() string                { return c.id }
func (c *oneCluster) Settings() json.RawMessage { return nil }

func (c *oneCluster) Secrets() (map[string][]byte, error) {
	return map[string][]byte{"ca.key": []byte("-----BEGIN PRIVATE KEY-----\n")}, nil
}

// newBackups returns the backups of a server.
func newBackups(t *testing.T, dataDir string, store Store) *Manager {
	t.Helper()
	b, err := New(
		Config{Options: Options{Every: time.Hour, Keep: 3, Dir: filepath.Join(dataDir, "snapshots"), Unsealed: true},
			Server: "s1", Cluster: &oneCluster{"c"}, Logger: slog.New(slog.DiscardHandler), Now: time.Now},
		prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	b.Use(store)
	return b
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
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		store := &failing{Store: testStore(t, "/a")}
		b := newBackups(t, dir, store)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		start := func() { go func() { ended <- b.Run(ctx) }() }
		count := func() int {
			synctest.Wait()
			files, err := backup.List(b.Options.Dir)
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
		if w := b.Warnings(); len(w) != 1 || !strings.Contains(w[0], "no leader") {
			t.Errorf("warnings after a failure: %q", w)
		}
		store.err.Store(nil)
		after(11*time.Minute, 3)
		if w := b.Warnings(); len(w) != 0 {
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
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		for name, c := range map[string]struct {
			choose func(*Options)
			made   bool
		}{
			"no choice": {func(*Options) {}, false},
			"unsealed":  {func(o *Options) { o.Unsealed = true }, true},
			"a key":     {func(o *Options) { o.KeyFile = keyFile(t) }, true},
		} {
			b := newBackups(t, dir, &failing{Store: testStore(t, "/a")})
			b.Options.Dir = filepath.Join(dir, name)
			old, err := b.Save(t.Context()) // as the earlier version did
			if err != nil {
				t.Fatal(err)
			}
			b.Options.Unsealed = false
			c.choose(&b.Options)
			ctx, stop := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- b.Run(ctx) }()
			<-time.After(90 * time.Minute)
			stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
			files, err := backup.List(b.Options.Dir)
			if err != nil || len(files) > 1 != c.made {
				t.Errorf("%s: %d backups, %v", name, len(files), err)
			}
			s := b.Status()
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
	b := newBackups(t, t.TempDir(), store)
	serve := func(path, group string) *httptest.Server {
		s := httptest.NewServer(
			asUser(
				b.Handlers(adminapi.NewRelay(b.Server, func() []join.Server { return nil }, nil, nil, nil, nil))[path],
				group))
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
	if r, text := post(SnapshotSavePath, user.SystemPrivilegedGroup,
		strings.NewReader("{}")); r.StatusCode != http.StatusBadRequest ||
		!strings.Contains(string(text), "--unsealed") {
		t.Errorf("without a key: %s, %s", r.Status, text)
	}
	if r, data := post(SnapshotSavePath, user.SystemPrivilegedGroup,
		strings.NewReader(`{"unsealed": true}`)); r.StatusCode != http.StatusOK {
		t.Errorf("unsealed: %s, %s", r.Status, data)
	} else if about, err := backup.Check(bytes.NewReader(data)); err != nil || about.Sealed {
		t.Errorf("unsealed: %+v, %v", about, err)
	}
	unavailable := raftstore.ErrUnavailable
	store.err.Store(&unavailable)
	if r, text := post(SnapshotSavePath, user.SystemPrivilegedGroup,
		bytes.NewReader(wish)); r.StatusCode != http.StatusServiceUnavailable ||
		!strings.Contains(string(text), "unavailable") {
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
	}{"no key": {"", data}, "a wrong key": {"not this passphrase", data}, "a damaged file": {string(text), damaged},
		"a cut file": {string(text), data[:len(data)/2]}} {
		if r, got := restore(SnapshotRequest{Key: c.key}, c.file); r.StatusCode != http.StatusBadRequest ||
			got.Error == "" || got.Unknown {
			t.Errorf("%s: %s, %+v", what, r.Status, got)
		}
	}
	if keys := keysOf(t, store.Store); len(keys) != 3 {
		t.Fatalf("failed restores left %v", keys)
	}
	if r, got := restore(SnapshotRequest{Key: string(text)}, data); r.StatusCode != http.StatusOK ||
		got.Revision != 4 || got.Backup.Revision != 2 {
		t.Fatalf("%s, %+v", r.Status, got)
	}
	if keys := keysOf(t, store.Store); !slices.Equal(keys, []string{"/a", "/b"}) {
		t.Errorf("restored to %v", keys)
	}
	b.Cluster = &oneCluster{"another"}
	if r, got := restore(SnapshotRequest{Key: string(text)}, data); r.StatusCode != http.StatusConflict ||
		!strings.Contains(got.Error, "another cluster") || !strings.Contains(got.Error, "--other-cluster") {
		t.Errorf("a backup of another cluster: %s, %+v", r.Status, got)
	}
	if r, got := restore(SnapshotRequest{Key: string(text), OtherCluster: true}, data); r.StatusCode != http.StatusOK {
		t.Errorf("a backup of another cluster, on purpose: %s, %+v", r.Status, got)
	}
}

// TestBackupsOfBeforeARecoveryDoNotCount: they are of the cluster that there was, so one of the new
// cluster is due soon.
func TestBackupsOfBeforeARecoveryDoNotCount(t *testing.T) {
	b := newBackups(t, t.TempDir(), &failing{Store: testStore(t, "/a")})
	b.Options.Every = 24 * time.Hour
	file, err := b.Save(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	due := b.first()
	if newest := b.Status().Newest; newest == nil || newest.Name != file.Name || due.Before(b.Now().Add(time.Hour)) {
		t.Fatalf("before: the newest is %+v, the next is due at %s", newest, due)
	}
	b.Cluster, b.newest = &oneCluster{"recovered"}, nil
	due = b.first()
	if newest := b.Status().Newest; newest != nil || due.After(b.Now().Add(time.Hour)) {
		t.Errorf("afterwards: the newest is %+v, the next is due at %s", newest, due)
	}
}

// TestABackupOfTheFuture: the clock was a year ahead when it was made. It neither delays the next
// backup nor pushes it out.
func TestABackupOfTheFuture(t *testing.T) {
	b := newBackups(t, t.TempDir(), &failing{Store: testStore(t, "/a")})
	b.Options.Every, b.Options.Keep = 24*time.Hour, 1
	b.Now = func() time.Time { return time.Now().AddDate(1, 0, 0) }
	ahead, err := b.Save(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b.Now = time.Now
	if due := b.first(); due.After(b.Now().Add(time.Minute)) || b.Status().Newest != nil {
		t.Errorf("the next is due at %s, and the newest is %+v", due, b.Status().Newest)
	}
	if err := b.scheduled(t.Context()); err != nil {
		t.Fatal(err)
	}
	files, err := backup.List(b.Options.Dir)
	if err != nil || len(files) != 1 || files[0].Name == ahead.Name || files[0].Name != b.Status().Newest.Name {
		t.Errorf("kept: %+v, %v", files, err)
	}
}

// TestScheduledBackupsAreReported: each one is, made or failed, once.
func TestScheduledBackupsAreReported(t *testing.T) {
	store := &failing{Store: testStore(t, "/a")}
	b := newBackups(t, t.TempDir(), store)
	var reports []string
	b.Scheduled = func(file string, began time.Time, err error) {
		if began.IsZero() || (file == "") != (err != nil) {
			t.Errorf("a report of %s with the file %q and %v", began, file, err)
		}
		reports = append(reports, filepath.Base(file))
	}
	if err := b.scheduled(t.Context()); err != nil {
		t.Fatal(err)
	}
	lost := errors.New("no quorum")
	store.err.Store(&lost)
	if err := b.scheduled(t.Context()); !errors.Is(err, lost) {
		t.Fatal(err)
	}
	if want := []string{b.Status().Newest.Name, "."}; !slices.Equal(reports, want) {
		t.Errorf("reported are %q, want %q", reports, want)
	}
}

// withUnremovable returns a directory with an old backup that cannot be removed, by root either:
// its path is longer than the system takes. Those of new ones are not.
func withUnremovable(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for want := 3900; len(dir) < want; {
		dir = filepath.Join(dir, strings.Repeat("d", min(200, max(1, want-len(dir)-1))))
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := root.WriteFile("barque-"+strings.Repeat("0", 240)+".backup", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestAMadeBackupIsReportedAsMade: old backups cannot be removed, or the server stops meanwhile.
func TestAMadeBackupIsReportedAsMade(t *testing.T) {
	for what, c := range map[string]struct{ stuck, stops, fails bool }{
		"old ones stay":            {stuck: true},
		"the server stops":         {stops: true},
		"both":                     {stuck: true, stops: true},
		"a stop, and none is made": {stops: true, fails: true},
	} {
		t.Run(what, func(t *testing.T) {
			store := &failing{Store: testStore(t, "/a")}
			b := newBackups(t, t.TempDir(), store)
			b.Options.Keep = 1
			if c.stuck {
				b.Options.Dir = withUnremovable(t)
			}
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			lost := errors.New("no quorum")
			b.Now = func() time.Time {
				if c.stops {
					stop()
				}
				return time.Now()
			}
			if c.fails {
				store.err.Store(&lost)
			}
			calls := 0
			b.Scheduled = func(file string, _ time.Time, err error) {
				if calls++; (file != "") == c.fails || errors.Is(err, lost) != c.fails || !c.fails && err != nil {
					t.Errorf("reported is %q, %v", file, err)
				}
			}
			if err := b.scheduled(ctx); (err != nil) != (c.stuck || c.fails) {
				t.Errorf("it ended with %v", err)
			}
			if calls != 1 {
				t.Errorf("%d reports", calls)
			}
		})
	}
}

// TestAFailedBackupHasItsRemedy: a key that is gone is put back, and a store without a quorum is no
// fault of a disk. Other failures have the remedy of a disk.
func TestAFailedBackupHasItsRemedy(t *testing.T) {
	store := &failing{Store: testStore(t, "/a")}
	b := newBackups(t, t.TempDir(), store)
	b.Options.KeyFile = filepath.Join(t.TempDir(), "gone.key")
	if err := b.scheduled(t.Context()); err == nil {
		t.Fatal("a backup was made without its key")
	}
	if got := b.Status().Mend; !strings.Contains(got, "put the key back at "+b.Options.KeyFile) ||
		!strings.Contains(got, "--snapshot-key-file") {
		t.Errorf("without the key: %q", got)
	}
	b.Options.KeyFile = ""
	for err, want := range map[error]string{raftstore.ErrUnavailable: "once the store serves",
		errors.New("no space left on device"): ""} {
		store.err.Store(&err)
		if failed := b.scheduled(t.Context()); !errors.Is(failed, err) {
			t.Fatal(failed)
		}
		if got := b.Status().Mend; (want == "") != (got == "") || !strings.Contains(got, want) {
			t.Errorf("%v: %q, want %q", err, got, want)
		}
	}
}
