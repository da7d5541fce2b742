package manifests

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

func TestParse(t *testing.T) {
	const good = `# a comment
---
apiVersion: v1
kind: ConfigMap
metadata: {name: a, uid: x, resourceVersion: "1"}
status: {of: another cluster}
---
{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"n"}}]}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: c}
`
	got, err := Parse([]byte(good))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, u := range got {
		names = append(names, u.GetKind()+" "+u.GetName())
	}
	if want := []string{"Namespace n", "CustomResourceDefinition c", "ConfigMap a"}; !slices.Equal(names, want) {
		t.Errorf("got %q, want %q", names, want)
	}
	if m := got[2]; m.GetUID() != "" || m.GetResourceVersion() != "" || m.Object["status"] != nil {
		t.Errorf("fields of another cluster are left: %v", m.Object)
	}
	for name, c := range map[string]struct{ text, want string }{
		"nothing":       {"# nothing\n---\n", "has no object"},
		"no name":       {"apiVersion: v1\nkind: Pod\n", "without metadata.name"},
		"no kind":       {"metadata: {name: a}\n", "without apiVersion or kind"},
		"a text":        {"hello\n", "document 1"},
		"twice a key":   {"apiVersion: v1\nkind: A\nkind: B\nmetadata: {name: a}\n", "already set"},
		"twice":         {strings.Repeat("---\napiVersion: v1\nkind: A\nmetadata: {name: a}\n", 2), "twice"},
		"a Manifest":    {"apiVersion: barque.io/v1\nkind: Manifest\nmetadata: {name: a}\n", "cannot be in a file"},
		"half a secret": {"apiVersion: v1\nkind: Secret\nmetadata: {name: a}\ndata: {a: \n", "document 1"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Parse([]byte(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
}

func TestContentsOfSecrets(t *testing.T) {
	secret, err := Pack([]byte("hello"))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := unpack(secret); err != nil || string(got) != "hello" {
		t.Fatalf("got %q, %v", got, err)
	}
	other, err := Pack([]byte("hello!"))
	if err != nil {
		t.Fatal(err)
	}
	other.Name = secret.Name
	if _, err := unpack(other); err == nil || !strings.Contains(err.Error(), "delete it") {
		t.Errorf("a Secret with another content gives %v", err)
	}
	if _, err := Pack(make([]byte, MaxBytes+1)); err == nil {
		t.Error("a file that is too long is packed")
	}
}

func TestCounted(t *testing.T) {
	a, b, c := Source{"s1", "a", 1}, Source{"s2", "b", 2}, Source{"s3", "a", 1}
	if got, ok := counted([]Source{a, b, c}); !ok || got != b {
		t.Errorf("%v counts", got)
	}
	if _, ok := counted(nil); ok {
		t.Error("a content of no server counts")
	}
	if got := NextTurn([]Source{a, b, c}); got != 3 {
		t.Errorf("the next turn is %d", got)
	}
	if got := differing([]Source{a, b, c}, b); !strings.Contains(got, "of s2 counts") ||
		!strings.Contains(got, "on s1, s3") {
		t.Errorf("got %q", got)
	}
	if got := differing([]Source{a, c}, a); got != "" {
		t.Errorf("the same contents differ: %q", got)
	}
	if got := gone([]Source{a, b}, []string{"s1", "s3"}, "s1"); !slices.Equal(got, []Source{b}) {
		t.Errorf("gone are %v", got)
	}
	if got := gone([]Source{a, b}, []string{"s1"}, "s9"); got != nil {
		t.Errorf("a list without this server is believed: %v", got)
	}
}

// fakeCluster is an API whose kinds are known after their definition was applied.
type fakeCluster struct {
	cluster
	kinds   map[string]bool // whether they are in namespaces
	refuse  string          // the name of an object that is refused
	applied []string
	pruned  []string
	noted   [][]Ref
}

func (f *fakeCluster) Namespaced(kind schema.GroupVersionKind) (bool, error) {
	namespaced, known := f.kinds[kind.Kind]
	if !known {
		return false, errors.New("no matches for kind")
	}
	return namespaced, nil
}

func (f *fakeCluster) Apply(_ context.Context, u *unstructured.Unstructured) error {
	if u.GetName() == f.refuse {
		return errors.New("refused")
	}
	if !slices.ContainsFunc(f.noted[len(f.noted)-1], func(r Ref) bool { return r == refOf(u) }) {
		return fmt.Errorf("%s is applied before it was noted", refOf(u))
	}
	if u.GetAnnotations()[Owner] != "m" {
		return errors.New("it does not name its Manifest")
	}
	if u.GetKind() == "CustomResourceDefinition" {
		f.kinds["Custom"] = true
	}
	f.applied = append(f.applied, refOf(u).String())
	return nil
}

func (f *fakeCluster) Prune(_ context.Context, r Ref, _ string) error {
	f.pruned = append(f.pruned, r.String())
	return nil
}

func (f *fakeCluster) WriteStatus(_ context.Context, o *Object) (string, error) {
	f.noted = append(f.noted, slices.Clone(o.Status.Objects))
	return "1", nil
}

const withCustom = `apiVersion: example.com/v1
kind: Custom
metadata: {name: c}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: d}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: m}
`

func applied(t *testing.T, f *fakeCluster, had []Ref, text string) (*Object, error) {
	t.Helper()
	wanted, err := Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	o := &Object{Status: Status{Objects: had}}
	o.Name = "m"
	f.noted = append(f.noted, had)
	return o, (&term{cluster: f}).apply(t.Context(), o, wanted)
}

func TestApplyAndPrune(t *testing.T) {
	kinds := func() map[string]bool { return map[string]bool{"ConfigMap": true, "CustomResourceDefinition": false} }
	old := Ref{"v1", "ConfigMap", "default", "old"}
	t.Run("a kind of the same file", func(t *testing.T) {
		f := &fakeCluster{kinds: kinds()}
		o, err := applied(t, f, []Ref{old}, withCustom)
		if err != nil {
			t.Fatal(err)
		}
		if want := []string{"CustomResourceDefinition d", "ConfigMap default/m", "Custom default/c"}; !slices.Equal(
			f.applied, want) {
			t.Errorf("applied were %q, want %q", f.applied, want)
		}
		if want := []string{"ConfigMap default/old"}; !slices.Equal(f.pruned, want) {
			t.Errorf("pruned were %q, want %q", f.pruned, want)
		}
		want := []Ref{{"apiextensions.k8s.io/v1", "CustomResourceDefinition", "", "d"},
			{"v1", "ConfigMap", "default", "m"}, {"example.com/v1", "Custom", "default", "c"}}
		if !reflect.DeepEqual(o.Status.Objects, want) {
			t.Errorf("the objects are %v, want %v", o.Status.Objects, want)
		}
	})
	t.Run("nothing goes before all is applied", func(t *testing.T) {
		f := &fakeCluster{kinds: kinds(), refuse: "m"}
		o, err := applied(t, f, []Ref{old}, withCustom)
		if err == nil || !strings.Contains(err.Error(), "ConfigMap default/m: refused") {
			t.Errorf("got %v", err)
		}
		if len(f.pruned) > 0 {
			t.Errorf("pruned were %q", f.pruned)
		}
		if !slices.Contains(o.Status.Objects, old) {
			t.Errorf("nobody will prune %v: %v", old, o.Status.Objects)
		}
	})
	t.Run("an unknown kind", func(t *testing.T) {
		f := &fakeCluster{kinds: kinds()}
		_, err := applied(t, f, nil, strings.Replace(withCustom, "Custom\n", "Unknown\n", 1))
		if err == nil || !strings.Contains(err.Error(), "no matches for kind") || len(f.applied) != 2 {
			t.Errorf("got %v, applied were %q", err, f.applied)
		}
	})
}
