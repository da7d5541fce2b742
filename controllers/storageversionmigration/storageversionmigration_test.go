package storageversionmigration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
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
	m := &migrationv1.StorageVersionMigration{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), CreationTimestamp: metav1.NewTime(now)},
		Spec: migrationv1.StorageVersionMigrationSpec{Resource: metav1.GroupResource{Group: "example.com", Resource: "tabs"}}}
	for _, c := range conditions {
		m.Status = with(m.Status, c, metav1.ConditionTrue, "r", "", now)
	}
	return m
}

func TestDecide(t *testing.T) {
	const running, succeeded, failed = migrationv1.MigrationRunning, migrationv1.MigrationSucceeded, migrationv1.MigrationFailed
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
		"alone":               {newMigration("m"), nil, beginning},
		"runs":                {newMigration("m", running), nil, marking},
		"marked":              {marked, nil, migrating},
		"done":                {newMigration("m", running, succeeded), nil, finishing},
		"failed":              {newMigration("m", running, failed), nil, finishing},
		"over":                {newMigration("m", succeeded), nil, over},
		"behind a running":    {newMigration("m"), []*migrationv1.StorageVersionMigration{newMigration("z", running)}, waiting},
		"behind one that was": {newMigration("m"), []*migrationv1.StorageVersionMigration{newMigration("z", running, succeeded)}, waiting},
		"behind an older":     {newMigration("m"), []*migrationv1.StorageVersionMigration{newMigration("a")}, waiting},
		"before a younger":    {newMigration("m"), []*migrationv1.StorageVersionMigration{younger}, beginning},
		"after one":           {newMigration("m"), []*migrationv1.StorageVersionMigration{newMigration("a", succeeded)}, beginning},
		"of other things":     {newMigration("m"), []*migrationv1.StorageVersionMigration{elsewhere}, beginning},
	} {
		if got := decide(c.of, append(c.others, c.of)); got != c.want {
			t.Errorf("%s: step %d, want %d", name, got, c.want)
		}
	}
}

func TestProgress(t *testing.T) {
	for want, p := range map[string]progress{
		"The migration is running":                                                         {},
		"The migration is running, 2/3 objects not yet migrated":                           {left: 2, total: 3},
		"The migration is running, 3 objects verified migrated":                            {total: 3},
		"The migration is running, 2/3 objects not yet migrated; transient error: not now": {2, 3, errors.New("not now")},
	} {
		if got := p.running(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func definition() *apiextensionsv1.CustomResourceDefinition {
	return &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "tabs.example.com", Generation: 3},
		Spec:   apiextensionsv1.CustomResourceDefinitionSpec{Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{Name: "v1"}, {Name: "v2", Storage: true}}},
		Status: apiextensionsv1.CustomResourceDefinitionStatus{StoredVersions: []string{"v1", "v2"}}}
}

func TestStoredVersions(t *testing.T) {
	for name, c := range map[string]struct {
		changed, succeeded bool
		stored, message    string
	}{
		"all is well": {false, true, "v2", "The migration has succeeded and the stored versions have been updated"},
		"changed":     {true, true, "v1 v2", "The migration has succeeded but the stored versions have not been updated due to a generation mismatch"},
		"failed":      {false, false, "v1 v2", "The migration has failed"},
	} {
		crd := definition()
		begun(crd, "m", now)
		if c.changed {
			crd.Generation++
		}
		for range 2 { // the leader may end before it notes that it has done it
			finished(crd, c.succeeded, now)
			if got := strings.Join(crd.Status.StoredVersions, " "); got != c.stored || len(crd.Status.Conditions) != 1 || crd.Status.Conditions[0].Message != c.message {
				t.Errorf("%s: %s are stored, %+v", name, got, crd.Status.Conditions)
			}
		}
	}
}

// definitions has one CustomResourceDefinition.
type definitions struct {
	crd *apiextensionsv1.CustomResourceDefinition
}

func (d *definitions) Get(_ context.Context, name string, _ metav1.GetOptions) (*apiextensionsv1.CustomResourceDefinition, error) {
	if name != d.crd.Name {
		return nil, apierrors.NewNotFound(schema.GroupResource{}, name)
	}
	return d.crd.DeepCopy(), nil
}

func (d *definitions) UpdateStatus(_ context.Context, crd *apiextensionsv1.CustomResourceDefinition, _ metav1.UpdateOptions) (*apiextensionsv1.CustomResourceDefinition, error) {
	d.crd = crd.DeepCopy()
	return crd, nil
}

type discovering struct {
	kubernetes.Interface
	known *known
}

func (d discovering) Discovery() discovery.DiscoveryInterfaces { return d.known }

type known struct{ *fakediscovery.FakeDiscovery }

func (known) ServerPreferredResources() ([]*metav1.APIResourceList, error) {
	return []*metav1.APIResourceList{{GroupVersion: "example.com/v2", APIResources: []metav1.APIResource{
		{Name: "tabs", Kind: "Tab", Namespaced: true, Verbs: metav1.Verbs{"list", "patch", "update"}},
		{Name: "views", Kind: "View", Namespaced: true, Verbs: metav1.Verbs{"list"}},
	}}}, nil
}

func tab(name, revision string) metav1.PartialObjectMetadata {
	return metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: name, ResourceVersion: revision}}
}

// Objects that are older than the migration are written again, those that are newer or change meanwhile are not, what passes is
// tried again; the next migration of the resource waits for the end.
func TestMigrates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client := fakemetadata.NewSimpleMetadataClient(fakemetadata.NewTestScheme())
		client.PrependReactor("list", "tabs", func(a clienttesting.Action) (bool, kruntime.Object, error) {
			list := &metav1.PartialObjectMetadataList{ListMeta: metav1.ListMeta{ResourceVersion: "10"}, Items: []metav1.PartialObjectMetadata{tab("old", "5"), tab("gone", "6"), tab("written", "7"), tab("new", "11")}}
			return true, list, nil
		})
		var patches []string
		busy := true
		client.PrependReactor("patch", "tabs", func(a clienttesting.Action) (bool, kruntime.Object, error) {
			p := a.(clienttesting.PatchActionImpl)
			patches = append(patches, fmt.Sprint(p.GetName(), " ", p.GetPatchType(), " ", string(p.GetPatch())))
			switch {
			case p.GetName() == "gone":
				return true, nil, apierrors.NewNotFound(schema.GroupResource{}, "gone")
			case p.GetName() == "written" && busy:
				busy = false
				return true, nil, apierrors.NewTooManyRequests("not now", 1)
			case p.GetName() == "written":
				return true, nil, apierrors.NewConflict(schema.GroupResource{}, "written", errors.New("it is newer"))
			}
			obj := tab(p.GetName(), "5")
			return true, &obj, nil
		})
		first, second, views, none := newMigration("first"), newMigration("second"), newMigration("views"), newMigration("none")
		for _, m := range []*migrationv1.StorageVersionMigration{first, second, views, none} {
			m.UID, m.CreationTimestamp = "", metav1.Now()
		}
		views.Spec.Resource.Resource, none.Spec.Resource.Resource = "views", "none"
		c := controllertest.New(t, first, second, views, none)
		crds := &definitions{definition()}
		ctrl, err := New(Config{Informers: c.Informers,
			MetadataFor:    func(context.Context) (metadata.Interface, error) { return client, nil },
			DefinitionsFor: func(context.Context) (Definitions, error) { return crds, nil }})
		if err != nil {
			t.Fatal(err)
		}
		c.Start(func(ctx context.Context, client kubernetes.Interface) error {
			return ctrl.Run(ctx, discovering{client, &known{&fakediscovery.FakeDiscovery{Fake: &c.Client.Fake}}})
		})
		time.Sleep(5 * time.Minute)
		get := func(name string) migrationv1.StorageVersionMigrationStatus {
			m, err := c.Client.StoragemigrationV1().StorageVersionMigrations().Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return m.Status
		}
		for _, name := range []string{"first", "second"} {
			s := get(name)
			running := meta.FindStatusCondition(s.Conditions, "Running")
			if !meta.IsStatusConditionTrue(s.Conditions, "Succeeded") || running == nil || running.Status != metav1.ConditionFalse || running.Reason != reasonCompleted || s.ResourceVersion != "10" {
				t.Errorf("%s: %+v", name, s)
			}
		}
		if s := get("views"); !strings.Contains(meta.FindStatusCondition(s.Conditions, "Failed").Message, `does not support discovery operations: [update patch list]`) {
			t.Errorf("views: %+v", s)
		}
		if s := get("none"); !meta.IsStatusConditionTrue(s.Conditions, "Failed") || meta.FindStatusCondition(s.Conditions, "Failed").Message != "resource does not exist in discovery" {
			t.Errorf("none: %+v", s)
		}
		// Twice for the first migration, once for the second.
		if len(patches) != 9 || patches[0] != `old application/merge-patch+json {"apiVersion":"example.com/v2","kind":"Tab","metadata":{"resourceVersion":"5"}}` ||
			slices.ContainsFunc(patches, func(p string) bool { return strings.HasPrefix(p, "new ") }) {
			t.Errorf("%d patches: %s", len(patches), strings.Join(patches, "\n"))
		}
		if got := crds.crd.Status; strings.Join(got.StoredVersions, " ") != "v2" || len(got.Conditions) != 1 || got.Conditions[0].Status != apiextensionsv1.ConditionFalse {
			t.Errorf("definition: %+v", got)
		}
	})
}
