package storageversionmigration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	migrationv1 "k8s.io/api/storagemigration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"
	fakediscovery "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	fakemetadata "k8s.io/client-go/metadata/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/barque/barque/controllers/controllertest"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func newMigration(name string, conditions ...migrationv1.MigrationConditionType) *migrationv1.StorageVersionMigration {
	m := &migrationv1.StorageVersionMigration{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(now)},
		Spec: migrationv1.StorageVersionMigrationSpec{
			Resource: metav1.GroupResource{Group: "example.com", Resource: "tabs"}}}
	for _, c := range conditions {
		m.Status = with(m.Status, c, metav1.ConditionTrue, "r", "", now)
	}
	return m
}

func TestDecide(t *testing.T) {
	const running, succeeded, failed = migrationv1.MigrationRunning, migrationv1.MigrationSucceeded,
		migrationv1.MigrationFailed
	marked := newMigration("m", running)
	marked.Status.ResourceVersion = "5"
	younger, elsewhere := newMigration("a"), newMigration("a", running)
	younger.CreationTimestamp = metav1.NewTime(now.Add(time.Second))
	elsewhere.Spec.Resource.Resource = "others"
	for name, c := range map[string]struct {
		of     *migrationv1.StorageVersionMigration
		others []*migrationv1.StorageVersionMigration
		want   step
	}{
		"alone":  {newMigration("m"), nil, beginning},
		"runs":   {newMigration("m", running), nil, marking},
		"marked": {marked, nil, migrating},
		"done":   {newMigration("m", running, succeeded), nil, finishing},
		"failed": {newMigration("m", running, failed), nil, finishing},
		"over":   {newMigration("m", succeeded), nil, over},
		"behind a running": {newMigration("m"), []*migrationv1.StorageVersionMigration{newMigration("z", running)},
			waiting},
		"behind one that was": {newMigration("m"),
			[]*migrationv1.StorageVersionMigration{newMigration("z", running, succeeded)}, waiting},
		"behind an older":  {newMigration("m"), []*migrationv1.StorageVersionMigration{newMigration("a")}, waiting},
		"before a younger": {newMigration("m"), []*migrationv1.StorageVersionMigration{younger}, beginning},
		"after one": {newMigration("m"), []*migrationv1.StorageVersionMigration{newMigration("a", succeeded)},
			beginning},
		"of other things": {newMigration("m"), []*migrationv1.StorageVersionMigration{elsewhere}, beginning},
	} {
		if got := decide(c.of, append(c.others, c.of)); got != c.want {
			t.Errorf("%s: step %d, want %d", name, got, c.want)
		}
	}
}

func TestProgress(t *testing.T) {
	for want, p := range map[string]progress{
		"The migration is running":                               {},
		"The migration is running, 2/3 objects not yet migrated": {left: 2, total: 3},
		"The migration is running, 3 objects verified migrated":  {total: 3},
		"The migration is running, 2/3 objects not yet migrated; transient error: not now": {2, 3,
			errors.New("not now")},
	} {
		if got := p.running(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func definition() *apiextensionsv1.CustomResourceDefinition {
	return &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "tabs.example.com", Generation: 3},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1"}, {Name: "v2", Storage: true}}},
		Status: apiextensionsv1.CustomResourceDefinitionStatus{StoredVersions: []string{"v1", "v2"}}}
}

func TestStoredVersions(t *testing.T) {
	for name, c := range map[string]struct {
		changed, succeeded bool
		stored, message    string
	}{
		"all is well": {false, true, "v2", "The migration has succeeded and the stored versions have been updated"},
		"changed": {true, true, "v1 v2",
			"The migration has succeeded but the stored versions have not been updated due to a generation mismatch"},
		"failed": {false, false, "v1 v2", "The migration has failed"},
	} {
		crd := definition()
		begun(crd, "m", now)
		if c.changed {
			crd.Generation++
		}
		for range 2 { // the leader may end before it notes that it has done it
			finished(crd, c.succeeded, now)
			if got := strings.Join(crd.Status.StoredVersions, " "); got != c.stored ||
				len(crd.Status.Conditions) != 1 || crd.Status.Conditions[0].Message != c.message {
				t.Errorf("%s: %s are stored, %+v", name, got, crd.Status.Conditions)
			}
		}
	}
}

// definitions has one CustomResourceDefinition.
type definitions struct {
	mu      sync.Mutex
	crd     *apiextensionsv1.CustomResourceDefinition
	updates []string // the messages that were written
}

func (d *definitions) Get(
	_ context.Context, name string, _ metav1.GetOptions,
) (*apiextensionsv1.CustomResourceDefinition, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if name != d.crd.Name {
		return nil, apierrors.NewNotFound(schema.GroupResource{}, name)
	}
	return d.crd.DeepCopy(), nil
}

func (d *definitions) UpdateStatus(
	_ context.Context, crd *apiextensionsv1.CustomResourceDefinition, _ metav1.UpdateOptions,
) (*apiextensionsv1.CustomResourceDefinition, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if crd.ResourceVersion != d.crd.ResourceVersion {
		return nil, apierrors.NewConflict(schema.GroupResource{}, crd.Name, errors.New("it is newer"))
	}
	d.crd = crd.DeepCopy()
	d.crd.ResourceVersion += "1"
	d.updates = append(d.updates, crd.Status.Conditions[0].Message)
	return d.crd.DeepCopy(), nil
}

// stored is an object in a store.
type stored struct {
	version  string // in which it is stored
	revision int
}

// store has the tabs, and serves them like an API whose stored version is v2. Lists are paged and
// show one revision, and patches meet preconditions. A patch that changes neither an object nor its
// version is not written.
type store struct {
	mu       sync.Mutex
	revision int
	tabs     map[string]stored
	pages    map[string][]metav1.PartialObjectMetadata // the rest of lists, by continue token
	patches  []string
	// after is called after a listing has been made, before when a patch comes: the world does not
	// stand still.
	after  func()
	before func(name string) error
	// form is how the revision is written.
	form func(revision int) string
	// unknown is until when discovery does not know the tabs.
	unknown time.Time
}

func newStore() *store {
	s := &store{revision: 10, pages: map[string][]metav1.PartialObjectMetadata{}, form: strconv.Itoa, after: func() {},
		before: func(string) error { return nil }}
	s.tabs = map[string]stored{"gone": {"v1", 6}, "last": {"v1", 10}, "old": {"v1", 5}, "same": {"v2", 8},
		"written": {"v1", 7}}
	return s
}

// write stores an object in today's version.
func (s *store) write(name string) {
	s.revision++
	s.tabs[name] = stored{"v2", s.revision}
}

func (s *store) partial(name string) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{
		ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: name, ResourceVersion: s.form(s.tabs[name].revision)}}
}

// List is here because the fake metadata client does not pass the limit and the continue token to a
// reactor.
func (s *store) List(_ context.Context, opts metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	items, revision := []metav1.PartialObjectMetadata(nil), s.revision
	if opts.Continue != "" {
		left, exists := s.pages[opts.Continue]
		if !exists {
			return nil, apierrors.NewResourceExpired("no such page")
		}
		delete(s.pages, opts.Continue)
		items = left
		if _, err := fmt.Sscanf(opts.Continue, "%d/", &revision); err != nil {
			return nil, err
		}
	} else {
		for _, name := range slices.Sorted(maps.Keys(s.tabs)) {
			items = append(items, *s.partial(name))
		}
	}
	list := &metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{ResourceVersion: s.form(revision)},
		Items: items}
	if most := int(min(opts.Limit, 2)); opts.Limit > 0 && len(items) > most { // a server may send less than asked for
		list.Continue = fmt.Sprintf("%d/%d", revision, len(items)-most)
		list.Items, s.pages[list.Continue] = items[:most], items[most:]
	}
	if opts.Continue == "" {
		s.after()
	}
	return list, nil
}

func (s *store) patch(a clienttesting.Action) (bool, kruntime.Object, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p, gr := a.(clienttesting.PatchActionImpl), a.GetResource().GroupResource()
	name := p.GetName()
	s.patches = append(s.patches, fmt.Sprint(name, " ", p.GetPatchType(), " ", string(p.GetPatch())))
	if err := s.before(name); err != nil {
		return true, nil, err
	}
	var of metav1.PartialObjectMetadata
	if err := json.Unmarshal(p.GetPatch(), &of); err != nil || a.GetNamespace() != "d" ||
		a.GetResource().Version != "v2" {
		return true, nil,
			apierrors.NewBadRequest(fmt.Sprint("a patch of ", a.GetNamespace(), " ", a.GetResource(), ": ", err))
	}
	switch tab, exists := s.tabs[name]; {
	case !exists:
		return true, nil, apierrors.NewNotFound(gr, name)
	case of.ResourceVersion != s.form(tab.revision):
		return true, nil, apierrors.NewConflict(gr, name, errors.New("it is newer"))
	case tab.version != "v2":
		s.write(name)
	}
	return true, s.partial(name), nil
}

type tabs struct {
	metadata.Getter
	store *store
}

func (t tabs) List(ctx context.Context, opts metav1.ListOptions) (*metav1.PartialObjectMetadataList, error) {
	return t.store.List(ctx, opts)
}

// patched returns the names of the objects that were patched, in order.
func (s *store) patched() string {
	var names []string
	for _, p := range s.patches {
		name, _, _ := strings.Cut(p, " ")
		names = append(names, name)
	}
	return strings.Join(names, " ")
}

func (s *store) client() metadata.Interface {
	client := fakemetadata.NewSimpleMetadataClient(fakemetadata.NewTestScheme())
	client.PrependReactor("patch", "tabs", s.patch)
	return listing{client, s}
}

// listing is a metadata client whose lists of all namespaces are a store's.
type listing struct {
	metadata.Interface
	store *store
}

func (l listing) Resource(gvr schema.GroupVersionResource) metadata.Getter {
	return tabs{l.Interface.Resource(gvr), l.store}
}

type discovering struct {
	kubernetes.Interface
	known *known
}

func (d discovering) Discovery() discovery.DiscoveryInterfaces { return d.known }

type known struct {
	*fakediscovery.FakeDiscovery
	store *store
}

func (k known) ServerPreferredResources() ([]*metav1.APIResourceList, error) {
	k.store.mu.Lock()
	defer k.store.mu.Unlock()
	if time.Now().Before(k.store.unknown) {
		return nil, nil
	}
	return []*metav1.APIResourceList{{GroupVersion: "example.com/v2", APIResources: []metav1.APIResource{
		{Name: "tabs", Kind: "Tab", Namespaced: true, Verbs: metav1.Verbs{"list", "patch", "update"}},
		{Name: "views", Kind: "View", Namespaced: true, Verbs: metav1.Verbs{"list"}},
	}}}, nil
}

// migrate runs new migrations of a store for five minutes, and returns the result of each.
func migrate(
	t *testing.T, s *store, crds *definitions, migrations ...*migrationv1.StorageVersionMigration,
) map[string]migrationv1.StorageVersionMigrationStatus {
	t.Helper()
	c := controllertest.New(t)
	for _, m := range migrations {
		m.UID, m.CreationTimestamp = "", metav1.Now()
		c.Add(m)
	}
	ctrl, err := New(Config{Informers: c.Informers,
		MetadataFor:    func(context.Context) (metadata.Interface, error) { return s.client(), nil },
		DefinitionsFor: func(context.Context) (Definitions, error) { return crds, nil }})
	if err != nil {
		t.Fatal(err)
	}
	stop := c.Start(func(ctx context.Context, client kubernetes.Interface) error {
		return ctrl.Run(ctx, discovering{client, &known{&fakediscovery.FakeDiscovery{Fake: &c.Client.Fake}, s}})
	})
	time.Sleep(5 * time.Minute)
	stop()
	got := map[string]migrationv1.StorageVersionMigrationStatus{}
	list, err := c.Client.StoragemigrationV1().StorageVersionMigrations().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range list.Items {
		got[m.Name] = m.Status
	}
	return got
}

// message returns the message of a condition that is true.
func message(s migrationv1.StorageVersionMigrationStatus, condition string) string {
	if c := meta.FindStatusCondition(s.Conditions, condition); c != nil && c.Status == metav1.ConditionTrue {
		return c.Message
	}
	return ""
}

// isOver reports whether a migration no longer runs.
func isOver(s migrationv1.StorageVersionMigrationStatus) bool {
	c := meta.FindStatusCondition(s.Conditions, "Running")
	return c != nil && c.Status == metav1.ConditionFalse && c.Reason == reasonCompleted
}

// Objects older than the migration are written again; newer ones and those that change meanwhile
// are not. Transient errors are retried. The next migration of the resource waits for the end.
func TestMigrates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, crds := newStore(), &definitions{crd: definition()}
		lists, busy := 0, true
		s.after = func() {
			switch lists++; lists {
			case 1: // the revision is known; the next server does not know the definition yet
				s.write("new")
				s.unknown = time.Now().Add(10 * time.Second)
			case 2:
				delete(s.tabs, "gone")
				s.write("written")
			}
		}
		s.before = func(name string) error {
			if name == "written" && busy {
				busy = false
				return apierrors.NewTooManyRequests("not now", 1)
			}
			return nil
		}
		views, none := newMigration("views"), newMigration("none")
		views.Spec.Resource.Resource, none.Spec.Resource.Resource = "views", "none"
		got := migrate(t, s, crds, newMigration("first"), newMigration("second"), views, none)
		// new is 11, written 12, last 13, old 14.
		for name, revision := range map[string]string{"first": "10", "second": "14"} {
			if m := got[name]; message(m, "Succeeded") != "Migration completed" || !isOver(m) ||
				m.ResourceVersion != revision {
				t.Errorf("%s: %+v", name, m)
			}
		}
		if m := got["views"]; !strings.Contains(message(m, "Failed"),
			`does not support discovery operations: [update patch list]`) || !isOver(m) {
			t.Errorf("views: %+v", m)
		}
		if m := got["none"]; message(m, "Failed") != "resource does not exist in discovery" || !isOver(m) {
			t.Errorf("none: %+v", m)
		}
		// The first migration is interrupted and continues with the remaining older objects; for
		// the second all are older.
		if got, want := s.patched(), "gone last old same written"+" same"+" last new old same written"; got != want {
			t.Errorf("patched %s, want %s", got, want)
		}
		if len(s.patches) > 2 &&
			s.patches[2] != `old application/merge-patch+json {"apiVersion":"example.com/v2","kind":"Tab","metadata":{"resourceVersion":"5"}}` {
			t.Errorf("patch %s", s.patches[2])
		}
		for name, tab := range s.tabs {
			if tab.version != "v2" {
				t.Errorf("%s is stored in %s", name, tab.version)
			}
		}
		if got := crds.crd.Status; strings.Join(got.StoredVersions, " ") != "v2" || len(got.Conditions) != 1 ||
			got.Conditions[0].Status != apiextensionsv1.ConditionFalse {
			t.Errorf("definition: %+v", got)
		}
		// One after the other.
		const done = "The migration has succeeded and the stored versions have been updated"
		if want := []string{"Migration first is running", done, "Migration second is running",
			done}; !slices.Equal(crds.updates, want) {
			t.Errorf("definition: %q", crds.updates)
		}
	})
}

// A migration that cannot go on fails, leaves the stored versions as they are, and lets the next
// one begin.
func TestFails(t *testing.T) {
	for name, c := range map[string]struct {
		of   func(*store)
		want string
	}{
		"no revision": {func(s *store) { s.form = func(int) string { return "" } },
			"latest resourceVersion for example.com/v2, Resource=tabs is not valid: resource version is not well formed: "},
		"revisions without an order": {func(s *store) {
			s.form = func(n int) string {
				if n == 5 {
					return "v5"
				}
				return strconv.Itoa(n)
			}
		},
			"migration encountered unhandled error: comparing the resourceVersion of tabs old: resource version is not well formed: v5"},
		"an object is refused": {func(s *store) {
			s.before = func(name string) error {
				if name == "old" {
					return apierrors.NewBadRequest("no")
				}
				return nil
			}
		}, "3/5 not yet migrated. migration encountered unhandled error: no"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, crds := newStore(), &definitions{crd: definition()}
				c.of(s)
				for name, m := range migrate(t, s, crds, newMigration("first"), newMigration("second")) {
					got := message(m, "Failed")
					if name == "second" { // the first has written some
						got = strings.Replace(got, "1/5", "3/5", 1)
					}
					if got != c.want || !isOver(m) {
						t.Errorf("%s: %+v", name, m)
					}
				}
				if got := crds.crd.Status; strings.Join(got.StoredVersions, " ") != "v1 v2" ||
					len(got.Conditions) != 1 || got.Conditions[0].Message != "The migration has failed" {
					t.Errorf("definition: %+v", got)
				}
				if len(crds.updates) != 4 {
					t.Errorf("definition: %q", crds.updates)
				}
			})
		})
	}
}
