package storage

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/barque/barque/apiserver/fieldindex"
	"github.com/barque/barque/apiserver/leaderterm"
	"github.com/barque/barque/apiserver/objectcache"
	"github.com/barque/barque/apiserver/rawlist"
	"github.com/barque/barque/apiserver/storeerror"
	"github.com/barque/barque/raftstore"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	endpointsrequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3/metrics"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
)

// DefaultProgressInterval is how often an idle watch that requested progress gets it.
const DefaultProgressInterval = 5 * time.Second

// DefaultBookmarkInterval is how often a watch that allows bookmarks gets one, about. It
// is Kubernetes'.
const DefaultBookmarkInterval = time.Minute

// Config has the resource and the dependencies of a Store.
type Config struct {
	Backend Backend
	// Codec encodes and decodes the objects of the resource, with one type in memory.
	Codec runtime.Codec
	// New makes an empty object of the resource.
	New func() runtime.Object
	// NewList makes an empty list of such objects. It is needed with RawLists only.
	NewList func() runtime.Object
	// RawLists answers lists with stored bytes, and caches which may be sent as they are; nil
	// decodes and encodes all of them. Values that a Transformer changes are never sent: with one
	// that is no Sealer, none are.
	RawLists *rawlist.Cache
	// Objects has decoded objects. nil decodes an object for each reader, and makes a read at
	// resourceVersion 0 one of the newest state.
	Objects *objectcache.Cache
	// Triggers are the fields by which watches are indexed; the store takes one. It needs Objects.
	Triggers storage.IndexerFuncs
	// Prefix is put before every key, for example "/registry".
	Prefix string
	// ResourcePrefix starts every key that the registries hand in, for example "/pods".
	ResourcePrefix string
	GroupResource  schema.GroupResource
	// Transformer changes values on their way to and from the store (encryption at rest); the
	// key is its authenticated data. nil keeps values as they are. It may be a Sealer.
	Transformer value.Transformer
	// ProgressInterval is how often an idle watch that requested progress gets it; 0
	// means DefaultProgressInterval.
	ProgressInterval time.Duration
	// BookmarkInterval is how often a watch that allows bookmarks gets one; 0 means
	// DefaultBookmarkInterval.
	BookmarkInterval time.Duration
	// EstimateSizes makes Stats return the average size of the objects.
	EstimateSizes bool
	// Companions adds operations to the transaction of each write; nil adds nothing.
	Companions Companions
	// Logger gets errors that no answer can have; nil discards it.
	Logger *slog.Logger
}

// Store is a storage.Interface for the objects of one resource. Each watch has a goroutine, which
// ends when the watch is stopped or its context is done. One with a trigger has another one from
// the first watch for a value of it on (package fieldindex), which ends with Close.
type Store struct {
	backend        Backend
	codec          runtime.Codec
	encoder        runtime.Encoder // of the codec
	versioner      storage.APIObjectVersioner
	transformer    value.Transformer
	sealer         Sealer // the transformer, if it is one
	newObject      func() runtime.Object
	pathPrefix     string
	resourcePrefix string
	groupResource  schema.GroupResource
	companions     Companions
	progress       time.Duration
	bookmarks      time.Duration
	log            *slog.Logger
	objects        *objectcache.Space // nil when nothing decoded is kept
	index          *fieldindex.Index  // nil without a trigger
	plain          bool               // values are stored as they are encoded
	format         *rawlist.Format    // nil when nothing is answered with stored bytes
	unread         unread             // of marked objects
	// nameCorrupt is set while the feature AllowUnsafeMalformedObjectDeletion is on: the error of
	// an object that cannot be read is of its own type, so that the object can be deleted unread.
	nameCorrupt bool
	// custom is set for objects of a custom resource.
	custom bool

	estimateSize atomic.Bool
	begun        atomic.Bool // the backend is past its first revision
	caughtUp     atomic.Bool // the newest state was read once: this server's state is no older

	mu      sync.Mutex
	closed  bool // no more watches
	watches map[*watcher]struct{}
}

var _ storage.Interface = (*Store)(nil)

// New makes a Store.
func New(cfg Config) (*Store, error) {
	if cfg.Backend == nil || cfg.Codec == nil {
		return nil, errors.New("storage needs a backend and a codec")
	}
	if !strings.HasPrefix(cfg.ResourcePrefix, "/") || cfg.ResourcePrefix == "/" {
		return nil,
			fmt.Errorf("resource prefix %q of %s must begin with a slash and name something", cfg.ResourcePrefix,
				cfg.GroupResource)
	}
	s := &Store{
		backend:        cfg.Backend,
		codec:          cfg.Codec,
		encoder:        rawlist.EncoderOf(cfg.Codec),
		transformer:    cfg.Transformer,
		newObject:      cfg.New,
		pathPrefix:     path.Join("/", cfg.Prefix),
		resourcePrefix: cfg.ResourcePrefix,
		groupResource:  cfg.GroupResource,
		companions:     cfg.Companions,
		progress:       cfg.ProgressInterval,
		bookmarks:      cfg.BookmarkInterval,
		log:            cfg.Logger,
		nameCorrupt:    utilfeature.DefaultFeatureGate.Enabled(features.AllowUnsafeMalformedObjectDeletion),
		watches:        make(map[*watcher]struct{}),
	}
	if !strings.HasSuffix(s.pathPrefix, "/") {
		s.pathPrefix += "/"
	}
	s.sealer, _ = cfg.Transformer.(Sealer)
	if cfg.RawLists != nil && cfg.New != nil && cfg.NewList != nil && (s.transformer == nil || s.sealer != nil) {
		s.format = rawlist.NewFormat(s.groupResource, s.codec, cfg.New(), cfg.NewList(), cfg.RawLists)
	}
	if cfg.New != nil {
		_, s.custom = cfg.New().(runtime.Unstructured)
	}
	s.unread = newUnread(s)
	s.plain = s.transformer == nil
	if s.plain {
		s.transformer = identity.NewEncryptCheckTransformer()
	}
	if s.nameCorrupt {
		s.transformer = corruptNaming{s.transformer}
	}
	if s.progress == 0 {
		s.progress = DefaultProgressInterval
	}
	if s.bookmarks == 0 {
		s.bookmarks = DefaultBookmarkInterval
	}
	s.estimateSize.Store(cfg.EstimateSizes)
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.log = s.log.With("resource", s.groupResource.String())
	if cfg.Objects != nil {
		s.objects = cfg.Objects.Space()
		for field, value := range cfg.Triggers {
			index, err := s.indexConfig(field, value)
			if err != nil {
				return nil, err
			}
			s.index = fieldindex.New(index)
			if s.format != nil {
				s.format.Find(field, value)
			}
			break
		}
	}
	return s, nil
}

// Versioner implements storage.Interface.
func (s *Store) Versioner() storage.Versioner { return s.versioner }

// ReadinessCheck implements storage.Interface. A Store is always ready; whether the datastore has a
// leader is the server's check, made once and not once per resource.
func (s *Store) ReadinessCheck() error { return nil }

// CompactRevision implements storage.Interface.
func (s *Store) CompactRevision() int64 { return int64(s.backend.Compacted()) }

// GetCurrentResourceVersion implements storage.Interface. Its caller may be about to wait until a
// watch has seen this revision, so watches with progress that are behind get it at once.
func (s *Store) GetCurrentResourceVersion(ctx context.Context) (uint64, error) {
	view, err := s.view(ctx, "getCurrentResourceVersion", raftstore.ViewOptions{})
	if err != nil {
		return 0, err
	}
	s.requestProgress(view.Revision())
	return view.Revision(), nil
}

// RequestWatchProgress implements storage.Interface.
func (s *Store) RequestWatchProgress(context.Context) error {
	s.requestProgress(0)
	return nil
}

// Stats implements storage.Interface. Sizes are exact and are of the stored values, in this
// server's state.
func (s *Store) Stats(ctx context.Context) (storage.Stats, error) {
	prefix, err := s.prepareKey(s.resourcePrefix, true)
	if err != nil {
		return storage.Stats{}, err
	}
	view, err := s.view(ctx, "stats", raftstore.ViewOptions{Stale: true})
	if err != nil {
		return storage.Stats{}, err
	}
	if !s.estimateSize.Load() {
		return storage.Stats{ObjectCount: int64(view.Count(prefix, ""))}, nil
	}
	var count, size int64
	view.Ascend(prefix, "", func(item raftstore.Item) bool {
		count++
		size += int64(len(item.Value))
		return true
	})
	stats := storage.Stats{ObjectCount: count}
	if count > 0 {
		stats.EstimatedAverageObjectSizeBytes = size / count
	}
	return stats, nil
}

// EnableResourceSizeEstimation implements storage.Interface. The store is in this process, so the
// keys need not come from a watch cache.
func (s *Store) EnableResourceSizeEstimation(keys storage.KeysFunc) error {
	if keys == nil {
		return errors.New("KeysFunc cannot be nil")
	}
	if s.estimateSize.Swap(true) {
		return errors.New("resource size estimation is already enabled")
	}
	return nil
}

// prepareKey turns a registry's key into the store's, and refuses one outside the resource.
func (s *Store) prepareKey(key string, recursive bool) (string, error) {
	key, err := storage.PrepareKey(s.resourcePrefix, key, recursive)
	if err != nil {
		return "", err
	}
	return s.pathPrefix + strings.TrimPrefix(key, "/"), nil
}

// view reads a snapshot of the backend and keeps account of it. Its errors are API errors, except
// ErrCompacted and ErrFutureRevision, whose meaning depends on the request.
func (s *Store) view(ctx context.Context, verb string, opts raftstore.ViewOptions) (raftstore.View, error) {
	start := time.Now()
	view, err := s.backend.View(ctx, opts)
	if err == nil && view.Revision() == 0 {
		view, err = s.firstRevision(ctx)
	}
	s.account(ctx, verb, start, err)
	if err == nil && !opts.Stale && opts.Revision == 0 {
		s.caughtUp.Store(true)
	}
	if err != nil && !errors.Is(err, raftstore.ErrCompacted) && !errors.Is(err, raftstore.ErrFutureRevision) {
		err = storeerror.OfRead(err)
	}
	return view, err
}

// firstKey is written when a store is used for the first time.
const firstKey = "/barque/first"

// begin makes sure that the first revision has no object: a watch from there shows all of them.
func (s *Store) begin(ctx context.Context) error {
	if s.begun.Load() {
		return nil
	}
	view, err := s.backend.View(ctx, raftstore.ViewOptions{Stale: true})
	if err == nil && view.Revision() == 0 {
		_, err = s.firstRevision(ctx)
	}
	s.begun.Store(err == nil)
	return err
}

// firstRevision gives a store that was never written to its first revision, since the API has no
// resourceVersion for "before anything": to a client, 0 means any state.
func (s *Store) firstRevision(ctx context.Context) (raftstore.View, error) {
	_, err := s.backend.Commit(ctx, raftstore.Txn{
		Require: []raftstore.Precondition{{Key: firstKey}},
		Ops: []raftstore.Op{
			{Kind: raftstore.Put, Key: firstKey, Value: []byte(time.Now().UTC().Format(time.RFC3339))}},
		Term: leaderterm.Of(ctx),
	})
	var written *raftstore.ConflictError // by another server
	if err != nil && !errors.As(err, &written) {
		return nil, err
	}
	return s.backend.View(ctx, raftstore.ViewOptions{})
}

// account records a request to the backend under the names that dashboards for Kubernetes read.
func (s *Store) account(ctx context.Context, verb string, start time.Time, err error) {
	endpointsrequest.TrackStorageLatency(ctx, time.Since(start))
	metrics.RecordEtcdRequest(verb, s.groupResource, err, start)
}

// track notes a watch. It fails when the store takes no more watches.
func (s *Store) track(w *watcher) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return raftstore.ErrClosed
	}
	s.watches[w] = struct{}{}
	return nil
}

func (s *Store) untrack(w *watcher) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.watches, w)
}

// Close ends all watches, and refuses new ones.
func (s *Store) Close() {
	s.mu.Lock()
	s.closed = true
	for w := range s.watches {
		w.Stop()
	}
	s.mu.Unlock()
	if s.index != nil {
		s.index.Close()
	}
}

// requestProgress requests progress of the watches that have not delivered revision yet; of all
// when revision is 0.
func (s *Store) requestProgress(revision uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.watches {
		if w.progress && w.source != nil && (revision == 0 || w.delivered.Load() < revision) {
			w.source.RequestProgress()
		}
	}
}
