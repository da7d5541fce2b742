package history

import (
	"encoding/json"
	"fmt"
	"reflect"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/barque/barque/controllers/controllertest"
)

var kind = appsv1.SchemeGroupVersion.WithKind("DaemonSet")

func owner() *appsv1.DaemonSet {
	return &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "o", UID: "o"}}
}

func template(image string) *corev1.PodTemplateSpec {
	return &corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "x"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: image, Args: []string{"<&>"}}}},
	}
}

func decide(t *testing.T, image string, collisions *int32, revisions ...*appsv1.ControllerRevision) Plan {
	t.Helper()
	p, err := Decide(owner(), kind, template(image), collisions, revisions)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestRevisionsGoBackAndForth(t *testing.T) {
	a := decide(t, "a", nil).Create
	if a == nil || a.Revision != 1 || a.Name != "o-"+a.Labels[appsv1.ControllerRevisionHashLabelKey] ||
		a.Labels["app"] != "x" || !metav1.IsControlledBy(a, owner()) {
		t.Fatalf("first revision %+v", a)
	}
	if p := decide(t, "a", nil, a); p.Current != a || p.Create != nil || p.Raise != nil || len(p.Old) != 0 {
		t.Errorf("the same again: %+v", p)
	}
	b := decide(t, "b", nil, a).Create
	if b.Revision != 2 || b.Name == a.Name {
		t.Errorf("second revision %+v", b)
	}
	p := decide(t, "a", nil, b, a)
	if p.Current != a || p.Raise == nil || p.Raise.Revision != 3 || a.Revision != 1 || len(p.Old) != 1 ||
		p.Old[0] != b {
		t.Errorf("back to the first: %+v", p)
	}
	if one := int32(1); decide(t, "a", &one).Create.Name == a.Name {
		t.Error("a collision does not change the name")
	}
	// The stored JSON may have another layout.
	var content any
	if err := json.Unmarshal(a.Data.Raw, &content); err != nil {
		t.Fatal(err)
	}
	var err error
	if a.Data.Raw, err = json.MarshalIndent(content, "", " "); err != nil {
		t.Fatal(err)
	}
	if p := decide(t, "a", nil, a); p.Current != a {
		t.Error("the same in other words is another revision")
	}
	back, err := Template(a)
	if err != nil || !equality.Semantic.DeepEqual(back, template("a")) {
		t.Errorf("template %+v, %v", back, err)
	}
}

// The snapshot is a patch that clients apply to the owner.
func TestSnapshotBringsTheTemplateBack(t *testing.T) {
	d := owner()
	d.Spec.Template = *template("new")
	d.Spec.Template.Spec.NodeSelector = map[string]string{"only": "in the new one"}
	text, err := json.Marshal(d)
	if err != nil {
		t.Fatal(err)
	}
	text, err = strategicpatch.StrategicMergePatch(text, decide(t, "old", nil).Create.Data.Raw, &appsv1.DaemonSet{})
	if err != nil {
		t.Fatal(err)
	}
	var back appsv1.DaemonSet
	if err := json.Unmarshal(text, &back); err != nil || !reflect.DeepEqual(&back.Spec.Template, template("old")) {
		t.Errorf("%+v, %v", back.Spec.Template, err)
	}
}

func TestBeyond(t *testing.T) {
	p := Plan{}
	for i, name := range []string{"r1", "r2", "r3", "r4"} {
		p.Old = append(p.Old, &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Name: name}, Revision: int64(i)})
	}
	one, nine := int32(1), int32(9)
	used := func(r *appsv1.ControllerRevision) bool { return r.Name == "r2" }
	for _, c := range []struct {
		limit *int32
		want  []string
	}{{nil, nil}, {&nine, nil}, {&one, []string{"r1", "r3", "r4"}}} {
		var got []string
		for _, r := range p.Beyond(c.limit, used) {
			got = append(got, r.Name)
		}
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("limit %v: %v, want %v", c.limit, got, c.want)
		}
	}
}

func TestTakenNames(t *testing.T) {
	made := decide(t, "a", nil).Create
	for _, c := range []struct {
		name  string
		there *appsv1.ControllerRevision
		taken bool
	}{
		{"free", nil, false},
		{"ours already", made, false},
		{"somebody else's",
			func() *appsv1.ControllerRevision { r := made.DeepCopy(); r.OwnerReferences = nil; return r }(), true},
		{"ours with other content",
			func() *appsv1.ControllerRevision { r := decide(t, "b", nil).Create; r.Name = made.Name; return r }(),
			true},
	} {
		cluster := controllertest.New(t)
		if c.there != nil {
			cluster.Add(c.there.DeepCopy())
		}
		wrote := 0
		now, taken, err := Act(t.Context(), cluster.Client, owner(), Plan{Create: made},
			func(*appsv1.ControllerRevision) { wrote++ })
		if taken != c.taken || (err != nil) != c.taken || (now == nil) != c.taken || (wrote == 1) == c.taken {
			t.Errorf("%s: %v, taken %v, wrote %d, %v", c.name, now, taken, wrote, err)
		}
	}
	raised := made.DeepCopy()
	raised.Revision = 7
	cluster := controllertest.New(t)
	if _, _, err := Act(t.Context(), cluster.Client, owner(), Plan{Current: made, Raise: raised},
		func(*appsv1.ControllerRevision) {}); err == nil {
		t.Error("raising what is not there succeeds")
	}
}

// TestSameMeaning: a snapshot that says the same in other words is no new revision.
func TestSameMeaning(t *testing.T) {
	const template = `{"spec":{"template":{"$patch":"replace","metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"%s","resources":{}}]}}}}`
	now := fmt.Appendf(nil, template, "i:1")
	for text, want := range map[string]bool{
		`{"spec":{"template":{"metadata":{"creationTimestamp":null,"labels":{"a":"b"}},"spec":{"containers":[{"image":"i:1","name":"c"}],"volumes":[]},"$patch":"replace"}}}`: true,
		fmt.Sprintf(template, "i:2"): false,
		`{`:                          false,
	} {
		if got := same(now, []byte(text)); got != want {
			t.Errorf("%v for %s", got, text)
		}
	}
}

// A status that has not been written yet, and one that counts no collision, give a template the
// same name: a new leader that sees the status before the revision would make a second one, and
// replace all pods.
func TestNoCollisionIsOneName(t *testing.T) {
	none := int32(0)
	if a, b := decide(t, "a", nil).Create.Name, decide(t, "a", &none).Create.Name; a != b {
		t.Errorf("names %s and %s", a, b)
	}
}
