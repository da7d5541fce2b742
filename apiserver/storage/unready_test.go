package storage

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/barque/barque/apiserver/storeerror"
	"github.com/barque/barque/raftstore"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"
	storeerr "k8s.io/apiserver/pkg/storage/errors"
)

// cutOff is a backend that cannot be read for as long as there is a reason.
type cutOff struct {
	Backend
	why   atomic.Pointer[error]
	stale bool // this server's state can be read all the same
}

func (c *cutOff) View(ctx context.Context, opts raftstore.ViewOptions) (raftstore.View, error) {
	if why := c.why.Load(); why != nil && !(c.stale && opts.Stale) {
		return nil, *why
	}
	return c.Backend.View(ctx, opts)
}

// TestListsWithoutALeaderFromTheStart lists at a server that has not read the newest state yet. A
// list of the newest state gets the error that there is no leader, and no Retry-After, which
// clients obey without a word. Informers, which accept any state, get a Retry-After: the server's
// state may be older than theirs.
func TestListsWithoutALeaderFromTheStart(t *testing.T) {
	t.Parallel()
	backend := &cutOff{Backend: newBackend(t)}
	cut := func(err error) { backend.why.Store(&err) }
	cut(leaderless())
	store := open(t, backend, 0)
	everything, labelled, first := storage.Everything, storage.Everything, storage.Everything
	labelled.Label = labels.SelectorFromSet(labels.Set{"label": "a"})
	first.Limit = 500
	list := func(opts storage.ListOptions) (*http.Response, error) {
		t.Helper()
		opts.Recursive = true
		err := storeerr.InterpretListError(store.GetList(t.Context(), "/pods/", opts, &example.PodList{}), pods)
		if err == nil {
			t.Fatalf("%+v: it is listed", opts)
		}
		response, _ := answer(t, err)
		return response, err
	}
	for name, opts := range map[string]storage.ListOptions{
		"all":           {Predicate: everything},
		"some":          {Predicate: labelled},
		"the first 500": {Predicate: first},
	} {
		response, err := list(opts)
		if response.StatusCode != http.StatusServiceUnavailable || response.Header.Get("Retry-After") != "" ||
			!apierrors.HasStatusCause(err, storeerror.CauseNoLeader) {
			t.Errorf("%s: answered %d, Retry-After %q: %v", name, response.StatusCode,
				response.Header.Get("Retry-After"), err)
		}
	}
	informer := storage.ListOptions{Predicate: labelled, ResourceVersion: "0"}
	if response, err := list(informer); response.StatusCode != http.StatusTooManyRequests ||
		response.Header.Get("Retry-After") == "" {
		t.Errorf("an informer: answered %d, Retry-After %q: %v", response.StatusCode,
			response.Header.Get("Retry-After"), err)
	}
	cut(fmt.Errorf("%w: an election is under way", raftstore.ErrUnavailable))
	if response, err := list(
		storage.ListOptions{Predicate: labelled}); response.StatusCode != http.StatusServiceUnavailable ||
		response.Header.Get("Retry-After") == "" {
		t.Errorf("in an election: answered %d, Retry-After %q: %v", response.StatusCode,
			response.Header.Get("Retry-After"), err)
	}
	backend.why.Store(nil)
	for _, revision := range []string{"", "0"} {
		opts := storage.ListOptions{Predicate: labelled, Recursive: true, ResourceVersion: revision}
		if err := store.GetList(t.Context(), "/pods/", opts, &example.PodList{}); err != nil {
			t.Errorf("with a leader, at %q: %v", revision, err)
		}
	}
	// Its state is no older now than the one that it has shown.
	cut(leaderless())
	backend.stale = true
	if err := store.GetList(t.Context(), "/pods/",
		storage.ListOptions{Predicate: labelled, Recursive: true, ResourceVersion: "0"},
		&example.PodList{}); err != nil {
		t.Errorf("any state, when the leader is gone again: %v", err)
	}
}

// leaderless is the store's error when there has been no leader for long.
func leaderless() error {
	return &raftstore.LeaderlessError{For: time.Minute, Reason: "no leader has been known for 1m0s"}
}
