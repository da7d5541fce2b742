package storage

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/storage"

	"github.com/barque/barque/raftstore"
)

// TestContinueTokensExpireInAQuietStore lists the first page and lets time pass without writes. The
// token must expire, within the ten minutes that upstream's conformance suite waits for it, and not
// before five. The error brings a token with which the list goes on behind the first page, at a
// newer revision.
func TestContinueTokensExpireInAQuietStore(t *testing.T) {
	for _, cached := range []bool{false, true} {
		t.Run(fmt.Sprintf("cached=%v", cached), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newEnv(t, envOptions{backend: newBackendWith(t, raftstore.Limits{}), cached: cached})
				const total, page = 40, 10
				for i := range total {
					pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprintf("p%02d", i)}}
					if err := e.store.Create(e.ctx, "/pods/ns/"+pod.Name, pod, nil, 0); err != nil {
						t.Fatal(err)
					}
				}
				list := func(token string) (*example.PodList, error) {
					all := storage.Everything
					all.Limit, all.Continue = page, token
					out := &example.PodList{}
					err := e.store.GetList(e.ctx, "/pods/", storage.ListOptions{Predicate: all, Recursive: true}, out)
					return out, err
				}
				first, err := list("")
				if err != nil || len(first.Items) != page {
					t.Fatalf("the first page has %d items: %v", len(first.Items), err)
				}
				began := time.Now()
				for {
					if _, err = list(first.Continue); err != nil {
						break
					}
					if time.Since(began) > 10*time.Minute {
						t.Fatal("the token has not expired in ten minutes")
					}
					<-time.After(20 * time.Second)
				}
				if lived := time.Since(began); lived < 5*time.Minute {
					t.Errorf("the token expired after %v", lived)
				}
				var status apierrors.APIStatus
				if !errors.As(err, &status) || !apierrors.IsResourceExpired(err) || status.Status().Continue == "" {
					t.Fatalf("the expired token: %v", err)
				}
				rest, seen := &example.PodList{}, page
				rest.Continue = status.Status().Continue
				for revision := ""; rest.Continue != ""; revision = rest.ResourceVersion {
					if rest, err = list(rest.Continue); err != nil {
						t.Fatal(err)
					}
					if rest.ResourceVersion == first.ResourceVersion ||
						revision != "" && rest.ResourceVersion != revision {
						t.Errorf("page %d is of revision %s, the one before of %q, the first of %s", seen/page,
							rest.ResourceVersion, revision, first.ResourceVersion)
					}
					for i := range rest.Items {
						if want := fmt.Sprintf("p%02d", seen+i); rest.Items[i].Name != want {
							t.Errorf("item %d is %s", seen+i, rest.Items[i].Name)
						}
					}
					seen += len(rest.Items)
				}
				if seen != total {
					t.Errorf("%d items, want %d", seen, total)
				}
			})
		})
	}
}

// TestExpiredTellsBothRevisions reads at a revision that has left history.
func TestExpiredTellsBothRevisions(t *testing.T) {
	e := newEnv(t, envOptions{})
	pod := &example.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "a"}}
	if err := e.store.Create(e.ctx, "/pods/ns/a", pod, pod, 0); err != nil {
		t.Fatal(err)
	}
	old := pod.ResourceVersion
	if err := e.store.GuaranteedUpdate(e.ctx, "/pods/ns/a", pod, false, nil,
		storage.SimpleUpdate(func(o runtime.Object) (runtime.Object, error) {
			o.(*example.Pod).Labels = map[string]string{"changed": "yes"}
			return o, nil
		}), nil); err != nil {
		t.Fatal(err)
	}
	e.compact(e.ctx, t, pod.ResourceVersion)
	revisions := fmt.Sprintf("%s (%s)", old, pod.ResourceVersion)

	opts := storage.ListOptions{ResourceVersion: old, ResourceVersionMatch: metav1.ResourceVersionMatchExact,
		Predicate: storage.Everything, Recursive: true}
	err := e.store.GetList(e.ctx, "/pods/", opts, &example.PodList{})
	if want := "The resourceVersion for the provided list is too old: " +
		revisions; !apierrors.IsResourceExpired(err) || err.Error() != want {
		t.Errorf("the list: %v, want %q", err, want)
	}
	w, err := e.store.Watch(e.ctx, "/pods/",
		storage.ListOptions{ResourceVersion: old, Predicate: storage.Everything, Recursive: true})
	if err != nil {
		t.Fatal(err)
	}
	event := <-w.ResultChan()
	err = apierrors.FromObject(event.Object)
	if want := "too old resource version: " + revisions; event.Type != watch.Error ||
		!apierrors.IsResourceExpired(err) || err.Error() != want {
		t.Errorf("the watch: %s %v, want %q", event.Type, err, want)
	}
}
