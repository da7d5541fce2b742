package storage

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/barque/barque/apiserver/objectcache"
	"github.com/barque/barque/apiserver/rawlist"
	"github.com/barque/barque/raftstore"
	"k8s.io/apimachinery/pkg/api/apitesting"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/features"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/apiserver/pkg/storage"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
)

const testValuePrefix = "test!"

// hang bounds waits of tests: only a hang exceeds it.
const hang = 2 * time.Minute

var pods = schema.GroupResource{Resource: "pods"}

func newExampleScheme() (*runtime.Scheme, serializer.CodecFactory) {
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, metav1.SchemeGroupVersion)
	utilruntime.Must(example.AddToScheme(scheme))
	utilruntime.Must(examplev1.AddToScheme(scheme))
	return scheme, serializer.NewCodecFactory(scheme)
}

func exampleCodec() runtime.Codec {
	_, codecs := newExampleScheme()
	return apitesting.TestCodec(codecs, examplev1.SchemeGroupVersion)
}

// env is one store to run a conformance test against.
type env struct {
	opts        envOptions
	ctx         context.Context
	store       storage.Interface
	raw         *Store // the same
	cached      bool
	backend     *raftstore.Store
	codec       runtime.Codec
	transformer *storagetesting.PrefixTransformer
	reads       *swappable // the transformer of the store

	failTransformer, failCodec func(bool) // when they can
}

type envOptions struct {
	// backend of the store; one in memory when it is nil.
	backend *raftstore.Store
	// cached keeps decoded objects.
	cached      bool
	prefix      string
	codec       runtime.Codec
	transformer value.Transformer
	// indexes are made of the nodes of pods, when it is cached.
	indexes bool
	// rawLists answers lists with stored bytes.
	rawLists *rawlist.Cache
	// failing makes the transformer and the codec able to fail.
	failing bool
}

func newEnv(t testing.TB, opts envOptions) *env {
	t.Helper()
	e := &env{
		ctx:         t.Context(),
		cached:      opts.cached,
		backend:     opts.backend,
		codec:       opts.codec,
		transformer: storagetesting.NewPrefixTransformer([]byte(testValuePrefix), false),
	}
	if e.backend == nil {
		e.backend = newBackend(t)
	}
	if e.codec == nil {
		e.codec = exampleCodec()
	}
	if opts.failing {
		transformer := &failingTransformer{Transformer: identity.NewEncryptCheckTransformer()}
		codec := &failingCodec{Codec: e.codec}
		opts.transformer, e.codec = transformer, codec
		e.failTransformer, e.failCodec = transformer.fail.Store, codec.fail.Store
	}
	e.opts = opts
	if opts.transformer == nil && opts.rawLists == nil {
		e.reads = newSwappable(e.transformer)
	}
	e.start(t)
	return e
}

// start makes the store. It may be done again, as a server does that starts again.
func (e *env) start(t testing.TB) {
	t.Helper()
	config := Config{
		Backend:          e.backend,
		Codec:            e.codec,
		New:              func() runtime.Object { return &example.Pod{} },
		NewList:          func() runtime.Object { return &example.PodList{} },
		RawLists:         e.opts.rawLists,
		Prefix:           e.opts.prefix,
		ResourcePrefix:   "/pods/",
		GroupResource:    pods,
		Transformer:      e.opts.transformer,
		ProgressInterval: time.Second,
	}
	if e.cached {
		config.Objects = objectcache.New(objectcache.DefaultSize)
	}
	if e.cached && e.opts.indexes {
		config.Triggers = storage.IndexerFuncs{
			"spec.nodeName": func(obj runtime.Object) string { return obj.(*example.Pod).Spec.NodeName }}
	}
	raw, err := New(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(raw.Close)
	if e.reads != nil {
		// Set here, its errors are not named corrupt: these tests expect that unless they bring
		// their own transformer.
		raw.transformer = e.reads
	}
	e.raw, e.store = raw, raw
}

// open makes a storage of pods as a server's registry has it. progress may be 0.
func open(t *testing.T, backend Backend, progress time.Duration) *Store {
	t.Helper()
	s, err := New(Config{
		Backend:          backend,
		Codec:            serverCodec(t),
		New:              func() runtime.Object { return &example.Pod{} },
		NewList:          func() runtime.Object { return &example.PodList{} },
		Objects:          objectcache.New(objectcache.DefaultSize),
		Prefix:           "/registry",
		ResourcePrefix:   "/pods",
		GroupResource:    pods,
		ProgressInterval: progress,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// serverCodec is a codec as a server makes it for the objects of a kind.
func serverCodec(t *testing.T) runtime.Codec {
	t.Helper()
	_, codecs := newExampleScheme()
	codec, _, err := serverstorage.NewStorageCodec(serverstorage.StorageCodecConfig{
		StorageMediaType:  runtime.ContentTypeProtobuf,
		StorageSerializer: codecs,
		StorageVersion:    examplev1.SchemeGroupVersion,
		MemoryVersion:     example.SchemeGroupVersion,
	})
	if err != nil {
		t.Fatal(err)
	}
	return codec
}

func podAttrs(obj runtime.Object) (labels.Set, fields.Set, error) {
	pod, ok := obj.(*example.Pod)
	if !ok {
		return nil, nil, fmt.Errorf("%T is not a pod", obj)
	}
	return pod.Labels, fields.Set{
		"metadata.name":      pod.Name,
		"metadata.namespace": pod.Namespace,
		"spec.nodeName":      pod.Spec.NodeName,
		"spec.restartPolicy": string(pod.Spec.RestartPolicy),
		"status.phase":       string(pod.Status.Phase),
	}, nil
}

// compact is a storagetesting.Compaction.
func (e *env) compact(ctx context.Context, t *testing.T, resourceVersion string) {
	t.Helper()
	revision, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	if err := e.backend.Compact(ctx, revision); err != nil {
		t.Fatal(err)
	}
	if !utilfeature.DefaultFeatureGate.Enabled(features.ListFromCacheSnapshot) {
		return
	}
	err = wait.PollUntilContextTimeout(ctx, 5*time.Millisecond, hang, true, func(context.Context) (bool, error) {
		return e.store.CompactRevision() == int64(revision), nil
	})
	if err != nil {
		t.Fatalf("compaction at %d was not observed: %v", revision, err)
	}
}

// compactAsWrite compacts as the API server does it with etcd, where that is itself a write.
func (e *env) compactAsWrite(ctx context.Context, t *testing.T, resourceVersion string) {
	t.Helper()
	e.compact(ctx, t, resourceVersion)
	e.increaseRV(ctx, t)
}

// increaseRV is a storagetesting.IncreaseRVFunc.
func (e *env) increaseRV(ctx context.Context, t *testing.T) int64 { return e.increase(ctx, t) }

// increase makes a write to a key outside of the store's objects and returns its revision.
func (e *env) increase(ctx context.Context, t testing.TB) int64 {
	t.Helper()
	result, err := e.backend.Commit(ctx,
		raftstore.Txn{
			Ops: []raftstore.Op{{Kind: raftstore.Put, Key: "/increaseRV", Value: []byte(time.Now().String())}}})
	if err != nil {
		t.Fatal(err)
	}
	return int64(result.Revision)
}

// checkStored is a storagetesting.KeyValidation: the stored value decodes, and has none of the
// fields that the store adds to a read.
func (e *env) checkStored(ctx context.Context, t *testing.T, key string) {
	t.Helper()
	view, err := e.backend.View(ctx, raftstore.ViewOptions{})
	if err != nil {
		t.Fatal(err)
	}
	item, ok := view.Get(key)
	if !ok {
		t.Fatalf("%s is not in the store", key)
	}
	obj, err := runtime.Decode(e.codec, item.Value[len(testValuePrefix):])
	if err != nil {
		t.Fatalf("%s does not decode: %v", key, err)
	}
	if m := obj.(metav1.Object); m.GetResourceVersion() != "" || m.GetSelfLink() != "" {
		t.Errorf("stored object has resourceVersion %q and selfLink %q, want neither", m.GetResourceVersion(),
			m.GetSelfLink())
	}
}

// checkReads is a storagetesting.CallsValidation: a page reads no more objects than it must.
func (e *env) checkReads(t *testing.T, _, objects uint64) {
	t.Helper()
	if e.cached {
		return // decoded objects are not read again
	}
	if reads := e.transformer.GetReadsAndReset(); reads != objects {
		t.Errorf("read %d objects, want %d", reads, objects)
	}
}

// withPrefixTransformer lets a test change how the store reads.
type withPrefixTransformer struct {
	storage.Interface
	env *env
}

// UpdatePrefixTransformer implements storagetesting.InterfaceWithPrefixTransformer.
func (s withPrefixTransformer) UpdatePrefixTransformer(modify storagetesting.PrefixTransformerModifier) func() {
	original := s.env.reads.swap(nil)
	s.env.reads.swap(modify(storagetesting.NewPrefixTransformer([]byte(testValuePrefix), false)))
	return func() { s.env.reads.swap(original) }
}

// UpdateTransformer implements storagetesting.InterfaceWithTransformerOverride.
func (s withPrefixTransformer) UpdateTransformer(modify storagetesting.TransformerModifier) func() {
	original := s.env.reads.swap(nil)
	s.env.reads.swap(modify(original))
	return func() { s.env.reads.swap(original) }
}

// swappable is a transformer that can be replaced while others read through it.
type swappable struct {
	mu  sync.RWMutex
	now value.Transformer
}

func newSwappable(t value.Transformer) *swappable { return &swappable{now: t} }

// swap returns the previous transformer. nil changes nothing.
func (s *swappable) swap(next value.Transformer) value.Transformer {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.now
	if next != nil {
		s.now = next
	}
	return was
}

func (s *swappable) get() value.Transformer {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.now
}

// TransformFromStorage implements value.Transformer.
func (s *swappable) TransformFromStorage(
	ctx context.Context, data []byte, dataCtx value.Context,
) ([]byte, bool, error) {
	return s.get().TransformFromStorage(ctx, data, dataCtx)
}

// TransformToStorage implements value.Transformer.
func (s *swappable) TransformToStorage(ctx context.Context, data []byte, dataCtx value.Context) ([]byte, error) {
	return s.get().TransformToStorage(ctx, data, dataCtx)
}
