package nodeleases

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage"
)

// sources are what a watch of all namespaces is made from; a test says what they tell, and when.
type sources struct {
	Nodes
	nodes, stored *watch.FakeWatcher
	asked         int // how often progress was wanted
	there         []corev1.Node
	listedAt      string
}

func (s *sources) TellProgress(context.Context) error { s.asked++; return nil }

func (s *sources) List(_ context.Context, o *metainternalversion.ListOptions) (runtime.Object, error) {
	s.listedAt = o.ResourceVersion
	return &corev1.NodeList{Items: s.there}, nil
}

func (s *sources) LastSeen(string) (time.Time, bool) { return time.Now(), true }

func (s *sources) tell(what watch.EventType, name string, revision int) {
	m := metav1.ObjectMeta{Name: name, ResourceVersion: fmt.Sprint(revision)}
	if from, isNode := strings.CutPrefix(name, "node/"); isNode {
		m.Name = from
		s.nodes.Action(what, &corev1.Node{ObjectMeta: m})
	} else {
		s.stored.Action(what, &coordinationv1.Lease{ObjectMeta: m})
	}
	synctest.Wait()
}

// watching starts a watcher over sources and returns what it has told since the last call, in order.
func watching(t *testing.T, bookmarks bool, from uint64) (*sources, func() string) {
	s := &sources{nodes: watch.NewFakeWithChanSize(10, false), stored: watch.NewFakeWithChanSize(10, false)}
	w := &watcher{
		storage: New(nil, func() Nodes { return s }, s, time.Now), ctx: t.Context(),
		options:   &metainternalversion.ListOptions{},
		match:     storage.SelectionPredicate{Label: labels.Everything(), Field: fields.Everything()},
		bookmarks: bookmarks, nodes: s.nodes, stored: s.stored,
		result: make(chan watch.Event, 100), done: make(chan struct{}), told: map[string]time.Time{}, beginnings: 2,
		position: from, ofNodes: from,
	}
	ended := make(chan struct{})
	go func() { defer close(ended); w.run() }()
	t.Cleanup(func() { w.Stop(); <-ended })
	return s, func() string {
		synctest.Wait()
		var out []string
		for len(w.result) > 0 {
			e := <-w.result
			if status, ok := e.Object.(*metav1.Status); ok {
				out = append(out, "ERROR "+status.Message)
				continue
			}
			l := e.Object.(*coordinationv1.Lease)
			text := fmt.Sprintf("%s %s@%s", e.Type, l.Name, l.ResourceVersion)
			if len(l.Annotations) > 0 {
				text += " (initial)"
			}
			out = append(out, text)
		}
		return strings.Join(out, ", ")
	}
}

func expect(t *testing.T, told func() string, want string) {
	t.Helper()
	if got := told(); got != want {
		t.Errorf("told %q, want %q", got, want)
	}
}

// A stored lease waits for what happened to nodes before it, and nothing more is taken from there meanwhile.
func TestStoredLeasesWaitForNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, told := watching(t, true, 5)
		s.tell(watch.Modified, "elect", 9)
		s.tell(watch.Modified, "elect", 12)
		expect(t, told, "")
		if s.asked != 1 {
			t.Errorf("nodes were asked for progress %d times, want once", s.asked)
		}
		s.tell(watch.Deleted, "node/n", 7)
		expect(t, told, "DELETED n@5")
		s.tell(watch.Bookmark, "node/", 9)
		expect(t, told, "MODIFIED elect@9")
		if s.asked != 2 {
			t.Errorf("nodes were asked for progress %d times, want twice", s.asked)
		}
		s.tell(watch.Added, "node/m", 20)
		expect(t, told, "ADDED m@9, MODIFIED elect@12")
		s.tell(watch.Modified, "elect", 15) // the nodes are further already
		s.tell(watch.Bookmark, "", 30)
		expect(t, told, "MODIFIED elect@15")
		s.tell(watch.Bookmark, "node/", 31)
		expect(t, told, "BOOKMARK @30")
		if s.asked != 3 {
			t.Errorf("nodes were asked for progress %d times, want three", s.asked)
		}
	})
}

// The end of what was there at the beginning is told once both have told theirs, to who wants bookmarks.
func TestBeginningOfBoth(t *testing.T) {
	initial := func(w *watch.FakeWatcher, object metav1.Object, revision string) {
		object.SetResourceVersion(revision)
		object.SetAnnotations(map[string]string{metav1.InitialEventsAnnotationKey: "true"})
		w.Action(watch.Bookmark, object.(runtime.Object))
		synctest.Wait()
	}
	for bookmarks, want := range map[bool]string{true: "BOOKMARK @8 (initial)", false: ""} {
		synctest.Test(t, func(t *testing.T) {
			s, told := watching(t, bookmarks, 0)
			s.tell(watch.Added, "elect", 3)
			initial(s.stored, &coordinationv1.Lease{}, "8")
			s.tell(watch.Added, "node/n", 4)
			expect(t, told, "ADDED n@4, ADDED elect@3")
			initial(s.nodes, &corev1.Node{}, "7")
			expect(t, told, "")
			s.tell(watch.Bookmark, "node/", 8)
			expect(t, told, want)
		})
	}
}

// Renewals are told of nodes as they were told of last, from a list that is no older.
func TestRenewalsAreNotOlderThanTheWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, told := watching(t, false, 5)
		s.there = []corev1.Node{
			{ObjectMeta: metav1.ObjectMeta{Name: "n", ResourceVersion: "4"}},
			{ObjectMeta: metav1.ObjectMeta{Name: "new", ResourceVersion: "11"}},
		}
		s.tell(watch.Bookmark, "node/", 10)
		time.Sleep(RenewEvery)
		expect(t, told, "MODIFIED n@5")
		if s.listedAt != "10" {
			t.Errorf("nodes were listed at %q, want 10", s.listedAt)
		}
	})
}

// What is no event of a lease ends the watch with a word.
func TestWatchEndsWithAWord(t *testing.T) {
	for what, object := range map[string]runtime.Object{
		"without a revision": &corev1.Node{},
		"no object":          &metav1.Status{Status: metav1.StatusFailure},
	} {
		synctest.Test(t, func(t *testing.T) {
			s, told := watching(t, false, 5)
			s.nodes.Action(watch.Modified, object)
			if got := told(); !strings.HasPrefix(got, "ERROR ") {
				t.Errorf("%s: told %q", what, got)
			}
		})
	}
}
