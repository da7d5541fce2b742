package node

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

// BackupOptions say when a server makes backups by itself, and where they go.
type BackupOptions struct {
	Every   time.Duration // 0: never
	Keep    int           // how many stay
	Dir     string
	KeyFile string // seals them
	// Unsealed allows scheduled backups without KeyFile. They hold no keys of the cluster, and the
	// Secrets of applications in clear.
	Unsealed bool
}

// refused returns why no scheduled backups are made although they should be; empty when they are.
func (o *BackupOptions) refused() string {
	if o.Every <= 0 || o.KeyFile != "" || o.Unsealed {
		return ""
	}
	return "no key seals them: they would hold the Secrets of applications in clear, and not the keys of the cluster"
}

// DefaultBackupOptions are twice a day, for two and a half days.
func DefaultBackupOptions() BackupOptions { return BackupOptions{Every: 12 * time.Hour, Keep: 5} }

// backupRetry is how soon a backup that failed is tried again, at most the schedule's time.
const backupRetry = 10 * time.Minute

// quorumRetry is that for one that failed because nobody led: what is wrong then has nothing to do
// with backups.
const quorumRetry = 20 * time.Second

func retryAfter(err error) time.Duration {
	if errors.Is(err, raftstore.ErrUnavailable) {
		return quorumRetry
	}
	return backupRetry
}

// backups makes the server's backups. Each server makes its own: the picture is linearizable
// wherever it is taken and costs the others nothing, and when only one machine is left its disk has
// the last backup, too.
type backups struct {
	options BackupOptions
	server  string
	record  *record
	dataDir string
	store   backupStore
	logger  *slog.Logger
	now     func() time.Time
	metrics backupMetrics

	mu      sync.Mutex // guards newest and problem
	newest  *clusterstatus.BackupFile
	problem string     // why the last scheduled one failed; empty when it did not
	running sync.Mutex // held while one is made: one is enough for the disk
}

// backupStore is what backups need of the store.
type backupStore interface {
	Ready(ctx context.Context) error
	View(ctx context.Context, opts raftstore.ViewOptions) (raftstore.View, error)
	Restore(ctx context.Context, items func(yield func(*raftstore.Item) error) error, opts raftstore.RestoreOptions) (raftstore.Result, error)
}

type backupMetrics struct {
	success, size, duration prometheus.Gauge
	failures                prometheus.Counter
}

func newBackupMetrics(registerer prometheus.Registerer) (backupMetrics, error) {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "barque", Subsystem: "backup", Name: name, Help: help})
	}
	m := backupMetrics{
		success:  gauge("last_success_timestamp_seconds", "When the newest scheduled backup on this server was made and verified, in Unix time."),
		size:     gauge("last_size_bytes", "Size of that backup."),
		duration: gauge("last_duration_seconds", "How long it took to write and verify that backup."),
		failures: prometheus.NewCounter(prometheus.CounterOpts{Namespace: "barque", Subsystem: "backup", Name: "failures_total", Help: "Scheduled backups that failed since the start."}),
	}
	for _, c := range []prometheus.Collector{m.success, m.size, m.duration, m.failures} {
		if err := registerer.Register(c); err != nil {
			return m, fmt.Errorf("register the metrics of backups: %w", err)
		}
	}
	return m, nil
}

// ReadBackupKey reads the key from a file; nil when there is none.
func ReadBackupKey(path string) (*backup.Key, error) {
	if path == "" {
		return nil, nil
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("the key of the backups: %w", err)
	}
	key, err := backup.ParseKey(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return key, nil
}

// write writes a backup of what is acknowledged now.
func (b *backups) write(ctx context.Context, w io.Writer, key *backup.Key) (backup.About, error) {
	view, err := b.store.View(ctx, raftstore.ViewOptions{})
	if err != nil {
		return backup.About{}, fmt.Errorf("read the store: %w", err)
	}
	secrets, err := clusterSecrets(b.dataDir, b.record)
	if err != nil {
		return backup.About{}, fmt.Errorf("read the keys of the cluster: %w", err)
	}
	about := backup.About{ClusterID: b.record.Cluster.ID, Server: b.server, Barque: version.Version, Created: b.now(), Settings: b.record.Cluster.Settings}
	return backup.Write(w, backup.Source{View: view, Secrets: secrets, About: about}, key)
}

// Names of the secrets in a backup, beside those of the files that all servers have.
const (
	secretCA     = "ca.json" // which CAs are believed: not secret, but it belongs to their keys
	secretGossip = "gossip-keys.json"
)

// clusterSecrets are what a new cluster needs to go on as this one.
func clusterSecrets(dataDir string, r *record) (map[string][]byte, error) {
	secrets, err := clusterKeys(dataDir)
	if err != nil {
		return nil, err
	}
	if secrets[secretGossip], err = json.Marshal(r.gossipRing().Keys); err != nil {
		return nil, err
	}
	if secrets[secretCA], err = json.Marshal(r.ca()); err != nil {
		return nil, err
	}
	return secrets, nil
}

// run makes backups in time until the context ends. A failure is told and tried again; it does not
// end the server.
func (b *backups) run(ctx context.Context) error {
	if b.options.Every <= 0 {
		<-ctx.Done()
		return nil
	}
	next := b.first()
	if why := b.options.refused(); why != "" {
		b.logger.Error("this server makes no scheduled backups: "+why, "mend", clusterstatus.MendRefused)
		<-ctx.Done()
		return nil
	}
	for {
		timer := time.NewTimer(next.Sub(b.now()))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
		wait := b.options.Every
		if err := b.scheduled(ctx); err != nil && ctx.Err() == nil {
			wait = min(wait, retryAfter(err))
		}
		next = b.now().Add(wait)
	}
}

// first returns when the first backup after a start is due: as long after the newest one of this
// cluster as the schedule says; those of the cluster that it was before a recovery are no backups
// of it, and when one of the future was made nobody knows. The servers take turns by their names,
// so that not all disks are busy at once.
func (b *backups) first() time.Time {
	soon := b.now().Add(min(b.options.Every, time.Minute))
	files, err := backup.List(b.options.Dir)
	if err != nil || len(files) == 0 {
		return soon
	}
	h := fnv.New32a()
	h.Write([]byte(b.server))
	turn := b.options.Every / 100 * time.Duration(h.Sum32()%10)
	for i := len(files) - 1; i >= 0; i-- {
		f := files[i]
		if f.Problem != "" || f.About.ClusterID != b.record.Cluster.ID {
			continue
		}
		if f.About.Created.After(b.now()) {
			b.logger.Warn("a backup is dated in the future: a clock is wrong now, or was when it was made; the next one does not wait for that time", "file", f.Path, "created", f.About.Created)
			continue
		}
		b.note(&f)
		b.metrics.success.Set(float64(f.About.Created.Unix()))
		b.metrics.size.Set(float64(f.Size))
		if due := f.About.Created.Add(b.options.Every + turn); due.After(soon) {
			return due
		}
		break
	}
	return soon
}

// scheduled makes one backup, verifies it, and then removes those that are too many.
func (b *backups) scheduled(ctx context.Context) error {
	b.running.Lock()
	defer b.running.Unlock()
	began := b.now()
	file, err := b.save(ctx)
	if err == nil {
		if err = backup.Prune(b.options.Dir, file.Name, b.options.Keep); err != nil {
			err = fmt.Errorf("the backup %s is good, but old ones could not be removed: %w", file.Path, err)
		}
	}
	if err != nil && ctx.Err() != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.problem = ""
	if err != nil {
		b.problem = fmt.Sprintf("the scheduled backup of %s failed: %v", began.UTC().Format(time.RFC3339), err)
		b.metrics.failures.Inc()
		b.logger.Error("a scheduled backup failed", "dir", b.options.Dir, "err", err)
		return err
	}
	took := b.now().Sub(began)
	b.newest = b.describe(&file)
	b.metrics.success.Set(float64(began.Unix()))
	b.metrics.size.Set(float64(file.Size))
	b.metrics.duration.Set(took.Seconds())
	b.logger.Info("backup made and verified", "file", file.Path, "bytes", file.Size, "took", took.Round(time.Millisecond))
	return nil
}

func (b *backups) save(ctx context.Context) (backup.File, error) {
	key, err := ReadBackupKey(b.options.KeyFile)
	if err != nil {
		return backup.File{}, err
	}
	return backup.SaveIn(b.options.Dir, key, func(w io.Writer) error {
		_, err := b.write(ctx, w, key)
		return err
	})
}

// note takes down which backup is the newest.
func (b *backups) note(f *backup.File) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.newest = b.describe(f)
}

func (b *backups) describe(f *backup.File) *clusterstatus.BackupFile {
	return &clusterstatus.BackupFile{Server: b.server, Name: f.Name, Created: f.About.Created, Revision: f.About.Revision, Bytes: f.Size, Sealed: f.About.Sealed}
}

// status is what is shown of the backups in the cluster's status.
func (b *backups) status() *clusterstatus.BackupStatus {
	b.mu.Lock()
	defer b.mu.Unlock()
	return &clusterstatus.BackupStatus{EverySeconds: b.options.Every.Seconds(), Keep: b.options.Keep, Dir: b.options.Dir,
		Newest: b.newest, Problem: b.problem, Refused: b.options.refused()}
}

// warnings are shown in the cluster's status.
func (b *backups) warnings() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.problem == "" {
		return nil
	}
	return []string{b.problem}
}

var errOtherCluster = errors.New("the backup is of another cluster")

// restore replaces the state of the running cluster by the backup that r is read from.
func (b *backups) restore(ctx context.Context, r io.Reader, key *backup.Key, otherCluster bool) (Restored, error) {
	source, err := backup.NewReader(r, key)
	if err != nil {
		return Restored{}, err
	}
	about := source.About()
	if about.ClusterID != b.record.Cluster.ID && !otherCluster {
		return Restored{}, fmt.Errorf("%w: of %s, and this one is %s; to restore it all the same, give --other-cluster", errOtherCluster, about.ClusterID, b.record.Cluster.ID)
	}
	b.logger.Warn("restoring the cluster from a backup", "backupRevision", about.Revision, "created", about.Created, "ofCluster", about.ClusterID)
	result, err := b.store.Restore(ctx, source.Items, raftstore.RestoreOptions{AtLeast: about.Revision + 1})
	if err != nil {
		return Restored{}, err
	}
	return Restored{Revision: result.Revision, Backup: about}, nil
}
