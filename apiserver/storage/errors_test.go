package storage

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/barque/barque/apiserver/storeerror"
	"github.com/barque/barque/raftstore"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/storage"
	storeerr "k8s.io/apiserver/pkg/storage/errors"
)

// brokenBackend fails on demand.
type brokenBackend struct {
	Backend
	view, commit, watch error
}

func (b *brokenBackend) View(ctx context.Context, opts raftstore.ViewOptions) (raftstore.View, error) {
	if b.view != nil {
		return nil, b.view
	}
	return b.Backend.View(ctx, opts)
}

func (b *brokenBackend) Commit(ctx context.Context, txn raftstore.Txn) (raftstore.Result, error) {
	if b.commit != nil {
		return raftstore.Result{}, b.commit
	}
	return b.Backend.Commit(ctx, txn)
}

func (b *brokenBackend) Watch(opts raftstore.WatchOptions) (raftstore.Watcher, error) {
	if b.watch != nil {
		return nil, b.watch
	}
	return b.Backend.Watch(opts)
}

// answer returns a client's answer for an error that went through a registry's handler.
func answer(t *testing.T, err error) (*http.Response, *metav1.Status) {
	t.Helper()
	_, codecs := newExampleScheme()
	recorder := httptest.NewRecorder()
	request := httptest.NewRequest(http.MethodPut, "/", nil)
	responsewriters.ErrorNegotiated(err, codecs.WithoutConversion(), examplev1.SchemeGroupVersion, recorder, request)
	status := &metav1.Status{}
	if err := runtime.DecodeInto(codecs.UniversalDeserializer(), recorder.Body.Bytes(), status); err != nil {
		t.Fatal(err)
	}
	return recorder.Result(), status
}

func TestWriteErrors(t *testing.T) {
	tests := []struct {
		name       string
		err        error
		code       int
		reason     metav1.StatusReason
		cause      metav1.CauseType
		retryAfter string
	}{
		{"unavailable", fmt.Errorf("%w: no leader", raftstore.ErrUnavailable), 503,
			metav1.StatusReasonServiceUnavailable, storeerror.CauseStoreUnavailable, "1"},
		{"quarantined", fmt.Errorf("%w: why", raftstore.ErrQuarantined), 503, metav1.StatusReasonServiceUnavailable,
			storeerror.CauseStoreUnavailable, "1"},
		{"closed", raftstore.ErrClosed, 503, metav1.StatusReasonServiceUnavailable, storeerror.CauseStoreUnavailable, "1"},
		// Nor does a user learn that there is no leader from a client that comes back again and
		// again.
		{"no leader for long", leaderless(), 503, metav1.StatusReasonServiceUnavailable, storeerror.CauseNoLeader, ""},
		{"no leader for long, deadline", fmt.Errorf("%w (%w)", leaderless(), context.DeadlineExceeded), 503,
			metav1.StatusReasonServiceUnavailable, storeerror.CauseNoLeader, ""},
		{"no leader, and it was proposed", fmt.Errorf("%w; then: %v", raftstore.ErrUnknownOutcome, leaderless()), 504,
			metav1.StatusReasonTimeout, storeerror.CauseOutcomeUnknown, ""},
		// A client with a Retry-After repeats the write by itself. It must not.
		{"outcome unknown", raftstore.ErrUnknownOutcome, 504, metav1.StatusReasonTimeout,
			storeerror.CauseOutcomeUnknown, ""},
		{"deadline", context.DeadlineExceeded, 504, metav1.StatusReasonTimeout, storeerror.CauseOutcomeUnknown, ""},
		{"deadline before it was proposed", fmt.Errorf("%w: %w", raftstore.ErrUnavailable, context.DeadlineExceeded),
			503, metav1.StatusReasonServiceUnavailable, storeerror.CauseStoreUnavailable, "1"},
		{"fenced", raftstore.ErrFenced, 409, metav1.StatusReasonConflict, storeerror.CauseLeaderTermOver, ""},
		{"too large", raftstore.ErrTooLarge, 413, metav1.StatusReasonRequestEntityTooLarge, "", ""},
		// Nor must it come back by itself when the store is full: a user has to delete objects
		// first.
		{"full disk", raftstore.ErrDiskFull, 507, storeerror.StatusReasonInsufficientStorage,
			storeerror.CauseDiskFull, ""},
		{"full", &raftstore.NoSpaceError{Size: 9, Needed: 2, Limit: 10}, 507,
			storeerror.StatusReasonInsufficientStorage, storeerror.CauseStoreFull, ""},
		{"anything else", errors.New("disk on fire"), 500, metav1.StatusReasonInternalError, "", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := newEnv(t, envOptions{})
			broken := &brokenBackend{Backend: e.backend}
			e.raw.backend = broken
			pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}}
			if err := e.store.Create(e.ctx, "/pods/ns/p", pod, nil, 0); err != nil {
				t.Fatal(err)
			}
			broken.commit = tt.err
			other := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "other"}}
			calls := map[string]error{
				"create": storeerr.InterpretCreateError(e.store.Create(e.ctx, "/pods/ns/other", other, nil, 0), pods,
					"other"),
				"update": storeerr.InterpretUpdateError(
					e.store.GuaranteedUpdate(e.ctx, "/pods/ns/p", &example.Pod{}, false, nil, label("a"), nil), pods,
					"p"),
				"delete": storeerr.InterpretDeleteError(
					e.store.Delete(e.ctx, "/pods/ns/p", &example.Pod{}, nil, storage.ValidateAllObjectFunc, nil,
						storage.DeleteOptions{}), pods, "p"),
			}
			for verb, err := range calls {
				response, status := answer(t, err)
				if response.StatusCode != tt.code || status.Reason != tt.reason {
					t.Errorf("%s: answered %d %s, want %d %s: %v", verb, response.StatusCode, status.Reason, tt.code,
						tt.reason, err)
				}
				if got := response.Header.Get("Retry-After"); got != tt.retryAfter {
					t.Errorf("%s: Retry-After is %q, want %q", verb, got, tt.retryAfter)
				}
				if tt.cause != "" && !apierrors.HasStatusCause(err, tt.cause) {
					t.Errorf("%s: no cause %s in %#v", verb, tt.cause, status.Details)
				}
				if tt.code != 500 && !errors.Is(err, tt.err) {
					t.Errorf("%s: %v does not wrap %v", verb, err, tt.err)
				}
			}
		})
	}
}

func TestReadErrors(t *testing.T) {
	tests := []struct {
		name       string
		err        error
		code       int
		retryAfter string
	}{
		{"unavailable", raftstore.ErrUnavailable, 503, "1"},
		{"quarantined", raftstore.ErrQuarantined, 503, "1"},
		{"no leader for long", leaderless(), 503, ""},
		{"no leader for long, deadline", fmt.Errorf("%w (%w)", leaderless(), context.DeadlineExceeded), 503, ""},
		{"deadline", context.DeadlineExceeded, 504, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := newEnv(t, envOptions{})
			e.raw.backend = &brokenBackend{Backend: e.backend, view: tt.err}
			everything := storage.ListOptions{Predicate: storage.Everything, Recursive: true}
			_, rvErr := e.store.GetCurrentResourceVersion(e.ctx)
			calls := map[string]error{
				"get": storeerr.InterpretGetError(
					e.store.Get(e.ctx, "/pods/ns/p", storage.GetOptions{}, &example.Pod{}), pods, "p"),
				"list": storeerr.InterpretListError(e.store.GetList(e.ctx, "/pods/", everything, &example.PodList{}),
					pods),
				"rv": rvErr,
			}
			for verb, err := range calls {
				response, _ := answer(t, err)
				if response.StatusCode != tt.code || response.Header.Get("Retry-After") != tt.retryAfter {
					t.Errorf("%s: answered %d, Retry-After %q; want %d, %q: %v", verb, response.StatusCode,
						response.Header.Get("Retry-After"), tt.code, tt.retryAfter, err)
				}
			}
		})
	}
}

func TestWatchEndsWithAnError(t *testing.T) {
	tests := []struct {
		name string
		err  error
		code int32 // 0 for a stream that just ends
	}{
		{"compacted", raftstore.ErrCompacted, 410},
		{"unavailable", raftstore.ErrUnavailable, 503},
		{"quarantined", raftstore.ErrQuarantined, 503},
		{"closed", raftstore.ErrClosed, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := newEnv(t, envOptions{})
			e.raw.backend = &brokenBackend{Backend: e.backend, watch: tt.err}
			w, err := e.store.Watch(e.ctx, "/pods/",
				storage.ListOptions{ResourceVersion: "1", Predicate: storage.Everything, Recursive: true})
			if err != nil {
				t.Fatal(err)
			}
			event, ok := <-w.ResultChan()
			if tt.code == 0 {
				if ok {
					t.Fatalf("got %v, want the end", event)
				}
				return
			}
			if status, _ := event.Object.(*metav1.Status); event.Type != watch.Error || status == nil ||
				status.Code != tt.code {
				t.Fatalf("got %v, want an error %d", event, tt.code)
			}
			if event, ok := <-w.ResultChan(); ok {
				t.Fatalf("got %v after the error", event)
			}
		})
	}
}

// label returns an update that sets one label.
func label(value string) storage.UpdateFunc {
	return storage.SimpleUpdate(func(obj runtime.Object) (runtime.Object, error) {
		obj.(*example.Pod).Labels = map[string]string{"label": value}
		return obj, nil
	})
}
