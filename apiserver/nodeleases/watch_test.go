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

// sources are the sources of a watch of all namespaces; a test controls their events.
type sources struct {
	Nodes
	nodes, stored *watch.FakeWatcher
	asked         int // how often progress was wanted
	there         []corev1.Node
	listedAt      string
	hidden        map[string]string // the stored leases of members: their versions by name
	readAt        string
}

func (s *sources) storedAt(_ context.Context, name, revision string) (*coordinationv1.LeaseList, error) {
	s.readAt = revision
	list := &coordinationv1.LeaseList{}
	if version, is := s.hidden[name]; is {
		list.Items = append(list.Items, coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
			Namespace: corev1.NamespaceNodeLease, Name: name, ResourceVersion: version,
		}})
	}
	return list, nil
}

func (s *sources) TellProgress(context.Context) error { s.asked++; return nil }

func (s *sources) List(_ context.Context, o *metainternalversion.ListOptions) (runtime.Object, error) {
	s.listedAt = o.ResourceVersion
	return &corev1.NodeList{Items: s.there}, nil
}

func (s *sources) LastSeen(string) (time.Time, bool) { return time.Now(), true }

func member(name, revision string) corev1.Node {
	return corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: revision,
			Labels: map[string]string{MemberLabel: ""}}}
}

// tell has a source send an event of a lease or, if the name begins with "node/", of a member.
func (s *sources) tell(what watch.EventType, name string, revision int) {
	if from, isNode := strings.CutPrefix(name, "node/"); isNode {
		node := member(from, fmt.Sprint(revision))
		s.nodes.Action(what, &node)
	} else {
		s.stored.Action(what,
			&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name, ResourceVersion: fmt.Sprint(revision)}})
	}
	synctest.Wait()
}

// watching starts a watcher over sources, with the members that it knows of. It returns a function
// for the events sent since its last call, in order.
func watching(t *testing.T, bookmarks bool, from uint64, members ...string) (*sources, func() string) {
	s := &sources{nodes: watch.NewFakeWithChanSize(10, false), stored: watch.NewFakeWithChanSize(10, false)}
	w := &watcher{
		storage: New(nil, func() Nodes { return s }, s, time.Now), ctx: t.Context(),
		options:   &metainternalversion.ListOptions{},
		match:     storage.SelectionPredicate{Label: labels.Everything(), Field: fields.Everything()},
		bookmarks: bookmarks, renews: true, storedAt: s.storedAt, nodes: s.nodes, stored: s.stored,
		result: make(chan watch.Event, 100), done: make(chan struct{}), members: map[string]bool{},
		told:     map[string]time.Time{},
		position: from, ofNodes: from,
	}
	for _, m := range members {
		w.members[m] = true
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
			out = append(out, fmt.Sprintf("%s %s@%s", e.Type, l.Name, l.ResourceVersion))
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

// A stored lease waits for earlier events of nodes, and no further stored one is taken meanwhile.
func TestStoredLeasesWaitForNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, told := watching(t, true, 5, "n", "m")
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
		s.tell(watch.Modified, "node/m", 20)
		expect(t, told, "MODIFIED m@9, MODIFIED elect@12")
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

// Renewals are sent for members in their last sent version, from a list that is no older.
func TestRenewalsAreNotOlderThanTheWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, told := watching(t, false, 5, "n")
		s.there = []corev1.Node{
			member("n", "4"), member("new", "11"),
			{ObjectMeta: metav1.ObjectMeta{Name: "foreign", ResourceVersion: "3"}},
		}
		s.tell(watch.Bookmark, "node/", 10)
		time.Sleep(RenewEvery)
		expect(t, told, "MODIFIED n@5")
		if s.listedAt != "10" {
			t.Errorf("nodes were listed at %q, want 10", s.listedAt)
		}
	})
}

// A member that comes takes the place of the stored lease as the client knows it, and gives it back
// when it goes.
func TestMemberTakesThePlaceOfAStoredLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, told := watching(t, false, 5)
		s.hidden = map[string]string{"n": "3"}
		s.tell(watch.Modified, "node/n", 8)
		expect(t, told, "DELETED n@5, ADDED n@5")
		if s.readAt != "5" {
			t.Errorf("the stored lease was read at %s", s.readAt)
		}
		s.stored.Action(watch.Modified, &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{
			Namespace: corev1.NamespaceNodeLease, Name: "n", ResourceVersion: "7"}})
		expect(t, told, "") // written before the member came, and hidden now
		s.hidden["n"] = "7"
		s.nodes.Action(watch.Modified, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", ResourceVersion: "9"}})
		expect(t, told, "DELETED n@7, ADDED n@7")
		s.nodes.Action(watch.Deleted, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", ResourceVersion: "10"}})
		expect(t, told, "") // it was a foreign node's
	})
}

// An event that is not of a lease ends the watch with an error.
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
