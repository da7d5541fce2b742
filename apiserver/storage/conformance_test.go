package storage

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/storage"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/component-base/featuregate"
)

// gates are feature gates.
type gates map[featuregate.Feature]bool

// conformance is a test of the API machinery's suite for storages. Its name is the suite's; a test
// that is run in several ways has a variant, too.
type conformance struct {
	name    string
	variant string
	opts    envOptions
	run     func(t *testing.T, e *env)
	// gates are set for the test.
	gates gates
	// alone is set for tests that change feature gates themselves, and for those that are in a
	// hurry.
	alone bool
	// inMemory is set for a test that bounds the time of its writes, although it does not test
	// them: a disk may be slow.
	inMemory bool
}

// simple is a test that wants nothing but a store.
func simple(name string, run func(context.Context, *testing.T, storage.Interface)) conformance {
	return conformance{name: name, run: func(t *testing.T, e *env) { run(e.ctx, t, e.store) }}
}

// corrupting is a test in which stored values cannot be read.
func corrupting(
	name string, run func(context.Context, *testing.T, storagetesting.InterfaceWithPrefixTransformer),
) conformance {
	return conformance{name: name, run: func(t *testing.T, e *env) { run(e.ctx, t, newStartingOver(t, e)) }}
}

// transforming is a test that changes the store's transformer.
func transforming(
	name string, run func(context.Context, *testing.T, storagetesting.InterfaceWithPrefixTransformer),
) conformance {
	return conformance{name: name, run: func(t *testing.T, e *env) {
		run(e.ctx, t, withPrefixTransformer{e.store, e})
	}}
}

func (c conformance) alsoAlone() conformance {
	c.alone = true
	return c
}

func writeTests() []conformance {
	return []conformance{
		{name: "RunTestCreate",
			run: func(t *testing.T, e *env) { storagetesting.RunTestCreate(e.ctx, t, e.store, e.checkStored) }},
		simple("RunTestCreateWithTTL", storagetesting.RunTestCreateWithTTL),
		simple("RunTestCreateWithKeyExist", storagetesting.RunTestCreateWithKeyExist),
		simple("RunTestUnconditionalDelete", storagetesting.RunTestUnconditionalDelete),
		simple("RunTestConditionalDelete", storagetesting.RunTestConditionalDelete),
		simple("RunTestDeleteWithSuggestion", storagetesting.RunTestDeleteWithSuggestion),
		simple("RunTestDeleteWithSuggestionAndConflict", storagetesting.RunTestDeleteWithSuggestionAndConflict),
		simple("RunTestDeleteWithConflict", storagetesting.RunTestDeleteWithConflict),
		simple("RunTestDeleteWithSuggestionOfDeletedObject", storagetesting.RunTestDeleteWithSuggestionOfDeletedObject),
		simple("RunTestValidateDeletionWithSuggestion", storagetesting.RunTestValidateDeletionWithSuggestion),
		simple("RunTestValidateDeletionWithOnlySuggestionValid",
			storagetesting.RunTestValidateDeletionWithOnlySuggestionValid),
		simple("RunTestPreconditionalDeleteWithSuggestion", storagetesting.RunTestPreconditionalDeleteWithSuggestion),
		simple("RunTestPreconditionalDeleteWithOnlySuggestionPass",
			storagetesting.RunTestPreconditionalDeleteWithOnlySuggestionPass),
		{name: "RunTestGuaranteedUpdate", run: func(t *testing.T, e *env) {
			storagetesting.RunTestGuaranteedUpdate(e.ctx, t, withPrefixTransformer{e.store, e}, e.checkStored)
		}},
		simple("RunTestGuaranteedUpdateWithTTL", storagetesting.RunTestGuaranteedUpdateWithTTL),
		transforming("RunTestGuaranteedUpdateChecksStoredData", storagetesting.RunTestGuaranteedUpdateChecksStoredData),
		simple("RunTestGuaranteedUpdateWithConflict", storagetesting.RunTestGuaranteedUpdateWithConflict),
		simple("RunTestGuaranteedUpdateWithSuggestionAndConflict",
			storagetesting.RunTestGuaranteedUpdateWithSuggestionAndConflict),
		corrupting("RunTestTransformationFailure", storagetesting.RunTestTransformationFailure),
		simple("RunTestKeySchema", storagetesting.RunTestKeySchema),
	}
}

func readTests() []conformance {
	return []conformance{
		{name: "RunTestGet", run: func(t *testing.T, e *env) { storagetesting.RunTestGet(e.ctx, t, lasting{e.store}) }},
		{name: "RunTestList", opts: envOptions{prefix: "/registry"}, run: func(t *testing.T, e *env) {
			if e.cached {
				e.store = paged{e.store}
			}
			storagetesting.RunTestList(e.ctx, t, e.store, e.compactAsWrite, false, nil)
		}},
		simple("RunTestListPaging", storagetesting.RunTestListPaging),
		{name: "RunTestConsistentList", run: func(t *testing.T, e *env) {
			storagetesting.RunTestConsistentList(e.ctx, t, settled{e.store, e}, e.increaseRV, false, true, false)
		}},
		{name: "RunTestGetListNonRecursive", run: func(t *testing.T, e *env) {
			storagetesting.RunTestGetListNonRecursive(e.ctx, t, e.increaseRV, e.store)
		}},
		simple("RunTestGetListRecursivePrefix", storagetesting.RunTestGetListRecursivePrefix),
		{name: "RunTestListContinuation", run: func(t *testing.T, e *env) {
			storagetesting.RunTestListContinuation(e.ctx, t, e.store, e.checkReads)
		}},
		{name: "RunTestListPaginationRareObject", run: func(t *testing.T, e *env) {
			storagetesting.RunTestListPaginationRareObject(e.ctx, t, e.store, e.checkReads)
		}},
		{name: "RunTestListContinuationWithFilter", run: func(t *testing.T, e *env) {
			storagetesting.RunTestListContinuationWithFilter(e.ctx, t, e.store, e.checkReads)
		}},
		{name: "RunTestListInconsistentContinuation", run: func(t *testing.T, e *env) {
			if e.cached {
				e.store = paged{e.store}
			}
			storagetesting.RunTestListInconsistentContinuation(e.ctx, t, e.store, e.compact)
		}},
		transforming("RunTestListResourceVersionMatch", storagetesting.RunTestListResourceVersionMatch),
		{name: "RunTestNamespaceScopedList", opts: envOptions{indexes: true}, run: func(t *testing.T, e *env) {
			storagetesting.RunTestNamespaceScopedList(e.ctx, t, e.store)
		}},
		{name: "RunTestCompactRevision", run: func(t *testing.T, e *env) {
			storagetesting.RunTestCompactRevision(e.ctx, t, e.store, e.increaseRV, e.compact)
		}},
		{name: "RunTestStats", run: func(t *testing.T, e *env) {
			if err := e.raw.EnableResourceSizeEstimation(
				func(context.Context) ([]string, error) { return nil, nil }); err != nil {
				t.Fatal(err)
			}
			storagetesting.RunTestStats(e.ctx, t, e.store, e.codec, e.transformer, true)
		}},
		{
			name: "RunTestStats", variant: "WithoutSize", gates: gates{features.SizeBasedListCostEstimate: false},
			run: func(t *testing.T, e *env) {
				storagetesting.RunTestStats(e.ctx, t, e.store, e.codec, e.transformer, false)
			},
		},
	}
}

func watchTests() []conformance {
	return []conformance{
		simple("RunTestWatch", storagetesting.RunTestWatch),
		{name: "RunTestWatchFromZero", run: func(t *testing.T, e *env) {
			storagetesting.RunTestWatchFromZero(e.ctx, t, e.store, e.compact)
		}},
		simple("RunTestDeleteTriggerWatch", storagetesting.RunTestDeleteTriggerWatch),
		simple("RunTestWatchFromNonZero", storagetesting.RunTestWatchFromNonZero),
		simple("RunTestDelayedWatchDelivery", storagetesting.RunTestDelayedWatchDelivery),
		corrupting("RunTestWatchError", storagetesting.RunTestWatchError),
		{name: "RunTestWatchContextCancel", run: func(t *testing.T, e *env) {
			storagetesting.RunTestWatchContextCancel(e.ctx, t, e.store)
		}},
		{name: "RunTestWatcherTimeout", inMemory: true, run: func(t *testing.T, e *env) {
			storagetesting.RunTestWatcherTimeout(e.ctx, t, e.store)
		}},
		simple("RunTestWatchDeleteEventObjectHaveLatestRV", storagetesting.RunTestWatchDeleteEventObjectHaveLatestRV),
		{name: "RunTestWatchInitializationSignal", run: func(t *testing.T, e *env) {
			storagetesting.RunTestWatchInitializationSignal(e.ctx, t, unlimited{unhurried{e.store}, t})
		}},
		{name: "RunOptionalTestProgressNotify", run: func(t *testing.T, e *env) {
			storagetesting.RunOptionalTestProgressNotify(e.ctx, t, e.store, e.increaseRV)
		}},
		{name: "RunTestClusterScopedWatch", opts: envOptions{indexes: true}, run: func(t *testing.T, e *env) {
			storagetesting.RunTestClusterScopedWatch(e.ctx, t, e.store)
		}},
		{name: "RunTestNamespaceScopedWatch", opts: envOptions{indexes: true}, run: func(t *testing.T, e *env) {
			storagetesting.RunTestNamespaceScopedWatch(e.ctx, t, e.store)
		}},
		{name: "RunTestWatchDispatchBookmarkEvents", alone: true, run: func(t *testing.T, e *env) {
			store := e.store
			if e.cached {
				store = untilBookmark{store, e, t}
			}
			storagetesting.RunTestWatchDispatchBookmarkEvents(e.ctx, t, store, e.cached)
		}},
		{name: "RunTestOptionalWatchBookmarksWithCorrectResourceVersion", run: func(t *testing.T, e *env) {
			store := storage.Interface(unhurried{untilBookmark{e.store, e, t}})
			if !e.cached {
				store = progressing{unhurried{e.store}}
			}
			storagetesting.RunTestOptionalWatchBookmarksWithCorrectResourceVersion(e.ctx, t, store)
		}},
		simple("RunSendInitialEventsBackwardCompatibility", storagetesting.RunSendInitialEventsBackwardCompatibility),
		{name: "RunWatchSemantics", alone: true, run: func(t *testing.T, e *env) {
			storagetesting.RunWatchSemantics(e.ctx, t, newTurns(e.store))
		}},
		simple("RunWatchSemanticInitialEventsExtended",
			storagetesting.RunWatchSemanticInitialEventsExtended).alsoAlone(),
		simple("RunWatchListMatchSingle", storagetesting.RunWatchListMatchSingle).alsoAlone(),
		corrupting("RunWatchErrorIsBlockingFurtherEvents", storagetesting.RunWatchErrorIsBlockingFurtherEvents),
	}
}

var errBitsFlipped = &corruptError{what: "it cannot be transformed", err: errors.New("bits flipped")}

// corruptTests are about objects that cannot be read.
func corruptTests() []conformance {
	on := gates{features.AllowUnsafeMalformedObjectDeletion: true}
	off := gates{features.AllowUnsafeMalformedObjectDeletion: false}
	return []conformance{
		{name: "RunTestGetListWithErrorAggregation", gates: on, run: func(t *testing.T, e *env) {
			storagetesting.RunTestGetListWithErrorAggregation(e.ctx, t, newStartingOver(t, e), errBitsFlipped)
		}},
		{name: "RunTestGetListWithoutErrorAggregation", gates: off, run: func(t *testing.T, e *env) {
			storagetesting.RunTestGetListWithoutErrorAggregation(e.ctx, t, newStartingOver(t, e), errBitsFlipped)
		}},
		{name: "RunTestWatchWithUnsafeDelete", gates: on, run: func(t *testing.T, e *env) {
			storagetesting.RunTestWatchWithUnsafeDelete(e.ctx, t, newStartingOver(t, e), errBitsFlipped)
		}},
		{name: "RunTestDeleteExpectedTransformOrDecodeError", variant: "Transform", gates: on,
			opts: envOptions{failing: true}, run: func(t *testing.T, e *env) {
				storagetesting.RunTestDeleteExpectedTransformOrDecodeError(e.ctx, t, e.store, e.failTransformer)
			}},
		{name: "RunTestDeleteExpectedTransformOrDecodeError", variant: "Decode", gates: on,
			opts: envOptions{failing: true}, run: func(t *testing.T, e *env) {
				storagetesting.RunTestDeleteExpectedTransformOrDecodeError(e.ctx, t, e.store, e.failCodec)
			}},
		{name: "RunTestDeleteWithConflictAndMissingExpectedTransformOrDecodeError", gates: on,
			opts: envOptions{failing: true}, run: func(t *testing.T, e *env) {
				storagetesting.RunTestDeleteWithConflictAndMissingExpectedTransformOrDecodeError(e.ctx, t, e.store,
					e.failTransformer)
			}},
		{name: "RunTestDeleteWithSuggestionAndMissingExpectedTransformOrDecodeError", gates: on,
			run: func(t *testing.T, e *env) {
				storagetesting.RunTestDeleteWithSuggestionAndMissingExpectedTransformOrDecodeError(e.ctx, t, e.store)
			}},
	}
}

// failingTransformer fails to read on demand.
type failingTransformer struct {
	value.Transformer
	fail atomic.Bool
}

func (f *failingTransformer) TransformFromStorage(
	ctx context.Context, data []byte, dataCtx value.Context,
) ([]byte, bool, error) {
	if f.fail.Load() {
		return nil, false, errors.New("cannot be transformed for the test")
	}
	return f.Transformer.TransformFromStorage(ctx, data, dataCtx)
}

// failingCodec fails to decode on demand.
type failingCodec struct {
	runtime.Codec
	fail atomic.Bool
}

func (f *failingCodec) Decode(
	data []byte, defaults *schema.GroupVersionKind, into runtime.Object,
) (runtime.Object, *schema.GroupVersionKind, error) {
	if f.fail.Load() {
		return nil, nil, errors.New("cannot be decoded for the test")
	}
	return f.Codec.Decode(data, defaults, into)
}
