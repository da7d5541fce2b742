package storage

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
)

// Why a test of the suite is not run in one of the two ways.
const (
	changesTransformer = "changes the transformer while the watch cache reads through it"
	storesProgress     = "progress is between the store and the watch cache; clients of the cache do not get it"
	cachesBookmarks    = "bookmarks that a client asks for are made by the watch cache"
	cacheSurvives      = "the cache keeps serving what the test compacts away in the store"
	cacheDecodes       = "the cache answers lists from decoded objects, which do not become corrupt"
	cacheOpensLater    = "the cache refuses a watch whose request is already over"
)

// conformance is one test of the API machinery's suite for storages.
type conformance struct {
	name string
	opts envOptions
	run  func(t *testing.T, e *env)
	// notRaw and notCached say why the test is not run against the store alone, or against the
	// watch cache over it.
	notRaw, notCached string
	// alone is set for tests that change feature gates, which all tests of a process share, and
	// for those that are in a hurry.
	alone bool
}

// simple wraps a test that wants nothing but a store.
func simple(name string, run func(context.Context, *testing.T, storage.Interface)) conformance {
	return conformance{name: name, run: func(t *testing.T, e *env) { run(e.ctx, t, e.store) }}
}

// withTransformer wraps a test that changes the store's transformer.
func withTransformer(name string, run func(context.Context, *testing.T, storagetesting.InterfaceWithPrefixTransformer)) conformance {
	return conformance{name: name, notCached: changesTransformer, run: func(t *testing.T, e *env) {
		run(e.ctx, t, withPrefixTransformer{e.store, e})
	}}
}

func alone(c conformance) conformance {
	c.alone = true
	return c
}

func writeTests() []conformance {
	return []conformance{
		{name: "Create", run: func(t *testing.T, e *env) { storagetesting.RunTestCreate(e.ctx, t, e.store, e.checkStored) }},
		simple("CreateWithTTL", storagetesting.RunTestCreateWithTTL),
		simple("CreateWithKeyExist", storagetesting.RunTestCreateWithKeyExist),
		simple("UnconditionalDelete", storagetesting.RunTestUnconditionalDelete),
		simple("ConditionalDelete", storagetesting.RunTestConditionalDelete),
		simple("DeleteWithSuggestion", storagetesting.RunTestDeleteWithSuggestion),
		simple("DeleteWithSuggestionAndConflict", storagetesting.RunTestDeleteWithSuggestionAndConflict),
		simple("DeleteWithConflict", storagetesting.RunTestDeleteWithConflict),
		simple("DeleteWithSuggestionOfDeletedObject", storagetesting.RunTestDeleteWithSuggestionOfDeletedObject),
		simple("ValidateDeletionWithSuggestion", storagetesting.RunTestValidateDeletionWithSuggestion),
		simple("ValidateDeletionWithOnlySuggestionValid", storagetesting.RunTestValidateDeletionWithOnlySuggestionValid),
		simple("PreconditionalDeleteWithSuggestion", storagetesting.RunTestPreconditionalDeleteWithSuggestion),
		simple("PreconditionalDeleteWithOnlySuggestionPass", storagetesting.RunTestPreconditionalDeleteWithOnlySuggestionPass),
		{
			name: "GuaranteedUpdate", notCached: changesTransformer,
			run: func(t *testing.T, e *env) {
				storagetesting.RunTestGuaranteedUpdate(e.ctx, t, withPrefixTransformer{e.store, e}, e.checkStored)
			},
		},
		simple("GuaranteedUpdateWithTTL", storagetesting.RunTestGuaranteedUpdateWithTTL),
		withTransformer("GuaranteedUpdateChecksStoredData", storagetesting.RunTestGuaranteedUpdateChecksStoredData),
		simple("GuaranteedUpdateWithConflict", storagetesting.RunTestGuaranteedUpdateWithConflict),
		simple("GuaranteedUpdateWithSuggestionAndConflict", storagetesting.RunTestGuaranteedUpdateWithSuggestionAndConflict),
		withTransformer("TransformationFailure", storagetesting.RunTestTransformationFailure),
		simple("KeySchema", storagetesting.RunTestKeySchema),
	}
}

func readTests() []conformance {
	return []conformance{
		// Its object lives for a second, which is not for sharing with other tests.
		alone(simple("Get", storagetesting.RunTestGet)),
		{name: "List", opts: envOptions{prefix: "/registry"}, run: func(t *testing.T, e *env) {
			storagetesting.RunTestList(e.ctx, t, e.store, e.compactAsWrite, e.cached, e.recorder)
		}},
		simple("ListPaging", storagetesting.RunTestListPaging),
		{name: "ConsistentList", run: func(t *testing.T, e *env) {
			snapshots := e.cached && utilfeature.DefaultFeatureGate.Enabled(features.ListFromCacheSnapshot)
			storagetesting.RunTestConsistentList(e.ctx, t, e.store, e.increaseRV, e.cached, true, snapshots)
		}},
		{name: "GetListNonRecursive", run: func(t *testing.T, e *env) {
			storagetesting.RunTestGetListNonRecursive(e.ctx, t, e.increaseRV, e.store)
		}},
		simple("GetListRecursivePrefix", storagetesting.RunTestGetListRecursivePrefix),
		{name: "ListContinuation", run: func(t *testing.T, e *env) {
			storagetesting.RunTestListContinuation(e.ctx, t, e.store, e.checkReads)
		}},
		{name: "ListPaginationRareObject", run: func(t *testing.T, e *env) {
			storagetesting.RunTestListPaginationRareObject(e.ctx, t, e.store, e.checkReads)
		}},
		{name: "ListContinuationWithFilter", run: func(t *testing.T, e *env) {
			storagetesting.RunTestListContinuationWithFilter(e.ctx, t, e.store, e.checkReads)
		}},
		{name: "ListInconsistentContinuation", notCached: cacheSurvives, run: func(t *testing.T, e *env) {
			storagetesting.RunTestListInconsistentContinuation(e.ctx, t, e.store, e.compact)
		}},
		withTransformer("ListResourceVersionMatch", storagetesting.RunTestListResourceVersionMatch),
		{name: "NamespaceScopedList", opts: envOptions{indexes: true}, run: func(t *testing.T, e *env) {
			storagetesting.RunTestNamespaceScopedList(e.ctx, t, e.store)
		}},
		{name: "CompactRevision", run: func(t *testing.T, e *env) {
			storagetesting.RunTestCompactRevision(e.ctx, t, e.store, e.increaseRV, e.compact)
		}},
		{name: "Stats", run: func(t *testing.T, e *env) {
			if !e.cached { // the cache enables it by itself
				if err := e.raw.EnableResourceSizeEstimation(func(context.Context) ([]string, error) { return nil, nil }); err != nil {
					t.Fatal(err)
				}
			}
			storagetesting.RunTestStats(e.ctx, t, e.store, e.codec, e.transformer, true)
		}},
		{name: "StatsWithoutSize", notCached: "the cache enables the estimation of sizes", run: func(t *testing.T, e *env) {
			storagetesting.RunTestStats(e.ctx, t, e.store, e.codec, e.transformer, false)
		}},
	}
}

func watchTests() []conformance {
	return []conformance{
		simple("Watch", storagetesting.RunTestWatch),
		{name: "WatchFromZero", run: func(t *testing.T, e *env) {
			if e.cached { // the cache keeps a history of its own, which nothing outside can compact
				storagetesting.RunTestWatchFromZero(e.ctx, t, e.store, nil)
				return
			}
			storagetesting.RunTestWatchFromZero(e.ctx, t, e.store, e.compact)
		}},
		simple("DeleteTriggerWatch", storagetesting.RunTestDeleteTriggerWatch),
		simple("WatchFromNonZero", storagetesting.RunTestWatchFromNonZero),
		simple("DelayedWatchDelivery", storagetesting.RunTestDelayedWatchDelivery),
		withTransformer("WatchError", storagetesting.RunTestWatchError),
		{name: "WatchContextCancel", notCached: cacheOpensLater, run: func(t *testing.T, e *env) {
			storagetesting.RunTestWatchContextCancel(e.ctx, t, e.store)
		}},
		simple("WatcherTimeout", storagetesting.RunTestWatcherTimeout),
		simple("WatchDeleteEventObjectHaveLatestRV", storagetesting.RunTestWatchDeleteEventObjectHaveLatestRV),
		simple("WatchInitializationSignal", storagetesting.RunTestWatchInitializationSignal),
		{name: "ProgressNotify", notCached: storesProgress, run: func(t *testing.T, e *env) {
			storagetesting.RunOptionalTestProgressNotify(e.ctx, t, e.store, e.increaseRV)
		}},
		{name: "ClusterScopedWatch", opts: envOptions{clusterScoped: true}, run: func(t *testing.T, e *env) {
			storagetesting.RunTestClusterScopedWatch(e.ctx, t, e.store)
		}},
		simple("NamespaceScopedWatch", storagetesting.RunTestNamespaceScopedWatch),
		{name: "WatchDispatchBookmarkEvents", run: func(t *testing.T, e *env) {
			storagetesting.RunTestWatchDispatchBookmarkEvents(e.ctx, t, e.store, e.cached)
		}},
		{name: "WatchBookmarksWithCorrectResourceVersion", notRaw: cachesBookmarks, run: func(t *testing.T, e *env) {
			storagetesting.RunTestOptionalWatchBookmarksWithCorrectResourceVersion(e.ctx, t, e.store)
		}},
		simple("SendInitialEventsBackwardCompatibility", storagetesting.RunSendInitialEventsBackwardCompatibility),
		alone(simple("WatchSemantics", storagetesting.RunWatchSemantics)),
		alone(simple("WatchSemanticInitialEventsExtended", storagetesting.RunWatchSemanticInitialEventsExtended)),
		alone(simple("WatchListMatchSingle", storagetesting.RunWatchListMatchSingle)),
		withTransformer("WatchErrorIsBlockingFurtherEvents", storagetesting.RunWatchErrorIsBlockingFurtherEvents),
	}
}

func TestConformance(t *testing.T) {
	for _, tt := range slices.Concat(writeTests(), readTests(), watchTests()) {
		if tt.notRaw == "" {
			tt.start(t, tt.name+"/raw", tt.opts)
		}
		if tt.notCached == "" {
			opts := tt.opts
			opts.cached = true
			tt.start(t, tt.name+"/cached", opts)
		}
	}
}

func (tt conformance) start(t *testing.T, name string, opts envOptions) {
	t.Run(name, func(t *testing.T) {
		if !tt.alone {
			t.Parallel() // most of their time is spent waiting
		}
		tt.run(t, newEnv(t, opts))
	})
}

// TestConformanceWithoutSnapshots runs lists again with a watch cache that keeps no snapshots, so
// that the store answers those of older revisions. RunTestList is not among them: it then counts
// the pages in which etcd is read, and a list here is one read.
func TestConformanceWithoutSnapshots(t *testing.T) {
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.ListFromCacheSnapshot, false)
	for _, tt := range readTests() {
		switch tt.name {
		case "ConsistentList", "GetListNonRecursive", "ListPaging", "ListContinuation", "ListContinuationWithFilter":
			opts := tt.opts
			opts.cached = true
			tt.start(t, tt.name, opts)
		}
	}
}

var errBitsFlipped = &corruptError{what: "it cannot be transformed", err: errors.New("bits flipped")}

// TestConformanceCorruptObjects runs the tests about objects that cannot be read.
func TestConformanceCorruptObjects(t *testing.T) {
	t.Run("GetListWithErrorAggregation", func(t *testing.T) {
		e := newEnv(t, envOptions{})
		storagetesting.RunTestGetListWithErrorAggregation(e.ctx, t, withPrefixTransformer{e.store, e}, errBitsFlipped)
	})
	t.Run("GetListWithoutErrorAggregation", func(t *testing.T) {
		featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.AllowUnsafeMalformedObjectDeletion, false)
		e := newEnv(t, envOptions{})
		storagetesting.RunTestGetListWithoutErrorAggregation(e.ctx, t, withPrefixTransformer{e.store, e}, errBitsFlipped)
	})
	t.Run("WatchWithUnsafeDelete", func(t *testing.T) {
		e := newEnv(t, envOptions{})
		storagetesting.RunTestWatchWithUnsafeDelete(e.ctx, t, withPrefixTransformer{e.store, e}, errBitsFlipped)
	})
	for _, cached := range []bool{false, true} {
		t.Run(fmt.Sprintf("cached=%v", cached), func(t *testing.T) {
			t.Run("DeleteExpectedTransformError", func(t *testing.T) {
				transformer := &failingTransformer{Transformer: identity.NewEncryptCheckTransformer()}
				e := newEnv(t, envOptions{cached: cached, transformer: transformer})
				storagetesting.RunTestDeleteExpectedTransformOrDecodeError(e.ctx, t, e.store, transformer.fail.Store)
			})
			t.Run("DeleteExpectedDecodeError", func(t *testing.T) {
				codec := &failingCodec{Codec: exampleCodec()}
				e := newEnv(t, envOptions{cached: cached, codec: codec})
				storagetesting.RunTestDeleteExpectedTransformOrDecodeError(e.ctx, t, e.store, codec.fail.Store)
			})
			t.Run("DeleteWithConflictAndMissingExpectedError", func(t *testing.T) {
				transformer := &failingTransformer{Transformer: identity.NewEncryptCheckTransformer()}
				e := newEnv(t, envOptions{cached: cached, transformer: transformer})
				storagetesting.RunTestDeleteWithConflictAndMissingExpectedTransformOrDecodeError(e.ctx, t, e.store, transformer.fail.Store)
			})
			t.Run("DeleteWithSuggestionAndMissingExpectedError", func(t *testing.T) {
				e := newEnv(t, envOptions{cached: cached})
				storagetesting.RunTestDeleteWithSuggestionAndMissingExpectedTransformOrDecodeError(e.ctx, t, e.store)
			})
		})
	}
}

// failingTransformer fails to read while it is told to.
type failingTransformer struct {
	value.Transformer
	fail atomic.Bool
}

func (f *failingTransformer) TransformFromStorage(ctx context.Context, data []byte, dataCtx value.Context) ([]byte, bool, error) {
	if f.fail.Load() {
		return nil, false, errors.New("cannot be transformed for the test")
	}
	return f.Transformer.TransformFromStorage(ctx, data, dataCtx)
}

// failingCodec fails to decode while it is told to.
type failingCodec struct {
	runtime.Codec
	fail atomic.Bool
}

func (f *failingCodec) Decode(data []byte, defaults *schema.GroupVersionKind, into runtime.Object) (runtime.Object, *schema.GroupVersionKind, error) {
	if f.fail.Load() {
		return nil, nil, errors.New("cannot be decoded for the test")
	}
	return f.Codec.Decode(data, defaults, into)
}
