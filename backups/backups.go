package backups

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/internal/version"
	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/backup"
)

// Options configure the schedule and the directory of backups.
type Options struct {
	Every   time.Duration // 0: never
	Keep    int           // how many stay
	Dir     string
	KeyFile string // seals them
	// Unsealed allows scheduled backups without KeyFile. They have no keys of the cluster. Secrets
	// of applications are in clear, or lack the key that opens them.
	Unsealed bool
}

// refused returns why no scheduled backups are made although they should be; empty when they are.
func (o *Options) refused() string {
	if o.Every <= 0 || o.KeyFile != "" || o.Unsealed {
		return ""
	}
	return "no key seals them: they would hold the Secrets of applications, in clear or so that a new cluster cannot read them, and not the keys of the cluster"
}

// DefaultOptions are twice a day, for two and a half days.
func DefaultOptions() Options { return Options{Every: 12 * time.Hour, Keep: 5} }

// backupRetry is how soon a backup that failed is tried again, at most the schedule's time.
const backupRetry = 10 * time.Minute

// quorumRetry is the retry interval without a leader, which is no fault of backups.
const quorumRetry = 20 * time.Second

func retryAfter(err error) time.Duration {
	if errors.Is(err, raftstore.ErrUnavailable) {
		return quorumRetry
	}
	return backupRetry
}

// Config is a Manager's configuration, without the store.
type Config struct {
	Options Options
	Server  string // its name
	Cluster Cluster
	// CheckRestored is called with each item of a backup before it is restored, and may change it.
	// It returns why the cluster could not use it: nothing is restored then. nil checks nothing.
	CheckRestored func(*raftstore.Item) error
	// CheckSaved is called with the state and the secrets of a sealed backup before it is written.
	// It returns why the backup would be useless. nil checks nothing.
	CheckSaved func(view raftstore.View, secrets map[string][]byte) error
	// Scheduled is called with the outcome of each scheduled backup, for the audit log. file is ""
	// without a backup. A backup counts also if the removal of old ones failed. nil reports
	// nothing.
	Scheduled func(file string, began time.Time, err error)
	Logger    *slog.Logger
	Now       func() time.Time
}

// Cluster is the data about the cluster in a backup besides its state.
type Cluster interface {
	ID() string
	Settings() json.RawMessage
	// Secrets are the named secrets that a new cluster needs to continue as this one.
	Secrets() (map[string][]byte, error)
}

// Manager makes the server's backups. Each server makes its own. The snapshot is linearizable on
// any server and costs the others nothing. The last surviving machine therefore has a recent backup
// on its disk.
type Manager struct {
	Config
	store   Store
	metrics gauges

	mu      sync.Mutex // guards newest and problem
	newest  *clusterstatus.BackupFile
	problem string     // why the last scheduled one failed; empty when it did not
	mend    string     // its remedy, if one is known
	running sync.Mutex // held while one is made: one is enough for the disk
}

// Store is the backups' interface of the store.
type Store interface {
	Ready(ctx context.Context) error
	View(ctx context.Context, opts raftstore.ViewOptions) (raftstore.View, error)
	Restore(
		ctx context.Context, items func(yield func(*raftstore.Item) error) error, opts raftstore.RestoreOptions,
	) (raftstore.Result, error)
}

type gauges struct {
	success, size, duration prometheus.Gauge
	failures                prometheus.Counter
}

func newGauges(registerer prometheus.Registerer) (gauges, error) {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(
			prometheus.GaugeOpts{Namespace: "barque", Subsystem: "backup", Name: name, Help: help})
	}
	m := gauges{
		success: gauge("last_success_timestamp_seconds",
			"When the newest scheduled backup on this server was made and verified, in Unix time."),
		size:     gauge("last_size_bytes", "Size of that backup."),
		duration: gauge("last_duration_seconds", "How long it took to write and verify that backup."),
		failures: prometheus.NewCounter(
			prometheus.CounterOpts{Namespace: "barque", Subsystem: "backup", Name: "failures_total",
				Help: "Scheduled backups that failed since the start."}),
	}
	for _, c := range []prometheus.Collector{m.success, m.size, m.duration, m.failures} {
		if err := registerer.Register(c); err != nil {
			return m, fmt.Errorf("register the metrics of backups: %w", err)
		}
	}
	return m, nil
}

// New returns a Manager and registers its metrics. It makes no backups before it has a store.
func New(c Config, registerer prometheus.Registerer) (*Manager, error) {
	metrics, err := newGauges(registerer)
	return &Manager{Config: c, metrics: metrics}, err
}

// Use gives it the store that is backed up, before Run and before any request.
func (b *Manager) Use(store Store) { b.store = store }

// ReadKey reads the key from a file; nil without a file.
func ReadKey(path string) (*backup.Key, error) {
	if path == "" {
		return nil, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, &KeyError{path, fmt.Errorf("the key of the backups: %w", err)}
	}
	key, err := backup.ParseKey(string(text))
	if err != nil {
		return nil, &KeyError{path, fmt.Errorf("%s: %w", path, err)}
	}
	return key, nil
}

// KeyError is returned if the file with the key of the backups cannot be read, or has no key.
type KeyError struct {
	Path string
	err  error
}

func (e *KeyError) Error() string { return e.err.Error() }
func (e *KeyError) Unwrap() error { return e.err }

// write writes a backup of the acknowledged state.
func (b *Manager) write(ctx context.Context, w io.Writer, key *backup.Key) (backup.About, error) {
	view, secrets, err := b.contents(ctx, key)
	if errors.Is(err, errUnusable) { // the keys may have been exchanged between the two reads
		view, secrets, err = b.contents(ctx, key)
	}
	if err != nil {
		return backup.About{}, err
	}
	about := backup.About{ClusterID: b.Cluster.ID(), Server: b.Server, Barque: version.Version, Created: b.Now(),
		Settings: b.Cluster.Settings()}
	return backup.Write(w, backup.Source{View: view, Secrets: secrets, About: about}, key)
}

// errUnusable is returned for a backup that would be useless.
var errUnusable = errors.New("the backup would be of no use")

// contents reads the state and the secrets of a backup.
func (b *Manager) contents(ctx context.Context, key *backup.Key) (raftstore.View, map[string][]byte, error) {
	view, err := b.store.View(ctx, raftstore.ViewOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("read the store: %w", err)
	}
	secrets, err := b.Cluster.Secrets()
	if err != nil {
		return nil, nil, fmt.Errorf("read the keys of the cluster: %w", err)
	}
	if key != nil && b.CheckSaved != nil {
		if err := b.CheckSaved(view, secrets); err != nil {
			return nil, nil, fmt.Errorf("%w: %w", errUnusable, err)
		}
	}
	return view, secrets, nil
}

// Run makes scheduled backups until the context ends. A failure is reported and retried; it does
// not end the server.
func (b *Manager) Run(ctx context.Context) error {
	if b.Options.Every <= 0 {
		<-ctx.Done()
		return nil
	}
	next := b.first()
	if why := b.Options.refused(); why != "" {
		b.Logger.Error("this server makes no scheduled backups", "reason", why, "mend", clusterstatus.MendRefused)
		<-ctx.Done()
		return nil
	}
	for {
		timer := time.NewTimer(next.Sub(b.Now()))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
		wait := b.Options.Every
		if err := b.scheduled(ctx); err != nil && ctx.Err() == nil {
			wait = min(wait, retryAfter(err))
		}
		next = b.Now().Add(wait)
	}
}

// first returns the time of the first backup after a start, one interval after the newest one of
// this cluster. Backups from before a recovery do not count. The time of one dated in the future is
// unknown. The servers take turns by their names, so that not all disks are busy at once.
func (b *Manager) first() time.Time {
	soon := b.Now().Add(min(b.Options.Every, time.Minute))
	files, err := backup.List(b.Options.Dir)
	if err != nil || len(files) == 0 {
		return soon
	}
	h := fnv.New32a()
	h.Write([]byte(b.Server))
	turn := b.Options.Every / 100 * time.Duration(h.Sum32()%10)
	for i := len(files) - 1; i >= 0; i-- {
		f := files[i]
		if f.Problem != "" || f.About.ClusterID != b.Cluster.ID() {
			continue
		}
		if f.About.Created.After(b.Now()) {
			b.Logger.Warn(
				"a backup is dated in the future: a clock is wrong now, or was when it was made; the next one does not wait for that time", "file", f.Path, "created", f.About.Created)
			continue
		}
		b.note(&f)
		b.metrics.success.Set(float64(f.About.Created.Unix()))
		b.metrics.size.Set(float64(f.Size))
		if due := f.About.Created.Add(b.Options.Every + turn); due.After(soon) {
			return due
		}
		break
	}
	return soon
}

// scheduled makes one backup, verifies it, and then removes the excess ones.
func (b *Manager) scheduled(ctx context.Context) error {
	b.running.Lock()
	defer b.running.Unlock()
	began := b.Now()
	file, err := b.Save(ctx)
	if b.Scheduled != nil {
		b.Scheduled(file.Path, began, err)
	}
	if err == nil {
		if err = backup.Prune(b.Options.Dir, file.Name, b.Options.Keep); err != nil {
			err = fmt.Errorf("the backup %s is good, but old ones could not be removed: %w", file.Path, err)
		}
	}
	if err != nil && ctx.Err() != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.problem, b.mend = "", ""
	if err != nil {
		b.mend = b.remedy(err)
		b.problem = fmt.Sprintf("the scheduled backup of %s failed: %v", began.UTC().Format(time.RFC3339), err)
		b.metrics.failures.Inc()
		b.Logger.Error("a scheduled backup failed", "dir", b.Options.Dir, "err", err)
		return err
	}
	took := b.Now().Sub(began)
	b.newest = b.describe(&file)
	b.metrics.success.Set(float64(began.Unix()))
	b.metrics.size.Set(float64(file.Size))
	b.metrics.duration.Set(took.Seconds())
	b.Logger.Info("backup made and verified", "file", file.Path, "bytes", file.Size, "took",
		took.Round(time.Millisecond))
	return nil
}

// remedy returns the remedy for a failure, if it is not that of a disk.
func (b *Manager) remedy(err error) string {
	var unreadable *KeyError
	switch {
	case errors.As(err, &unreadable):
		return fmt.Sprintf(
			"put the key back at %s, readable for barque: it is read at each backup; or start with --snapshot-key-file and another key of `barque snapshot key`", unreadable.Path)
	case errors.Is(err, raftstore.ErrUnavailable):
		return "barque cluster status; the backup is made again once the store serves"
	}
	return ""
}

// Save makes one backup where the scheduled ones are.
func (b *Manager) Save(ctx context.Context) (backup.File, error) {
	key, err := ReadKey(b.Options.KeyFile)
	if err != nil {
		return backup.File{}, err
	}
	return backup.SaveIn(b.Options.Dir, key, func(w io.Writer) error {
		_, err := b.write(ctx, w, key)
		return err
	})
}

// note takes down which backup is the newest.
func (b *Manager) note(f *backup.File) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.newest = b.describe(f)
}

func (b *Manager) describe(f *backup.File) *clusterstatus.BackupFile {
	return &clusterstatus.BackupFile{Server: b.Server, Name: f.Name, Created: f.About.Created,
		Revision: f.About.Revision, Bytes: f.Size, Sealed: f.About.Sealed}
}

// Status returns the backups' part of the cluster's status.
func (b *Manager) Status() *clusterstatus.BackupStatus {
	b.mu.Lock()
	defer b.mu.Unlock()
	return &clusterstatus.BackupStatus{EverySeconds: b.Options.Every.Seconds(), Keep: b.Options.Keep,
		Dir:    b.Options.Dir,
		Newest: b.newest, Problem: b.problem, Mend: b.mend, Refused: b.Options.refused()}
}

// Warnings are shown in the cluster's status.
func (b *Manager) Warnings() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.problem == "" {
		return nil
	}
	return []string{b.problem}
}

var errOtherCluster = errors.New("the backup is of another cluster")

// restore replaces the state of the running cluster by the backup that r is read from.
func (b *Manager) restore(ctx context.Context, r io.Reader, key *backup.Key, otherCluster bool) (Restored, error) {
	source, err := backup.NewReader(r, key)
	if err != nil {
		return Restored{}, err
	}
	about := source.About()
	if about.ClusterID != b.Cluster.ID() && !otherCluster {
		return Restored{},
			fmt.Errorf("%w: of %s, and this one is %s; to restore it all the same, give --other-cluster",
				errOtherCluster, about.ClusterID, b.Cluster.ID())
	}
	b.Logger.Warn("restoring the cluster from a backup", "backupRevision", about.Revision, "created", about.Created,
		"ofCluster", about.ClusterID)
	result, err := b.store.Restore(ctx, checked(source.Items, b.CheckRestored),
		raftstore.RestoreOptions{AtLeast: about.Revision + 1})
	if err != nil {
		return Restored{}, err
	}
	return Restored{Revision: result.Revision, Backup: about}, nil
}
