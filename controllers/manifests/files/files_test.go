package files

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/controllers/manifests"
)

// store is a cluster that shows at once what was written.
type store struct {
	manifests, secrets cache.SharedIndexInformer
	writes             []string
	fail               error
}

func (s *store) Content(_ context.Context, secret *corev1.Secret) error {
	if s.fail != nil {
		return s.fail
	}
	s.writes = append(s.writes, "content")
	return s.secrets.GetStore().Add(secret)
}

// Describe merges as server-side apply does for one manager of each server.
func (s *store) Describe(_ context.Context, name string, spec manifests.Spec) error {
	if s.fail != nil {
		return s.fail
	}
	if spec.Path == "" {
		return errors.New("spec: Invalid value: null: spec must be of type object")
	}
	s.writes = append(s.writes, name)
	var o manifests.Object
	if obj, exists, _ := s.manifests.GetStore().GetByKey(name); exists {
		was, err := manifests.Read(obj.(*unstructured.Unstructured))
		if err != nil {
			return err
		}
		o = *was
	}
	o.Name = name
	o.Spec.Path = spec.Path
	o.Spec.Sources = slices.DeleteFunc(o.Spec.Sources, func(x manifests.Source) bool { return x.Server == "s1" })
	o.Spec.Sources = append(o.Spec.Sources, spec.Sources...)
	return s.add(&o)
}

func (s *store) add(o *manifests.Object) error {
	raw, err := json.Marshal(o)
	if err != nil {
		return err
	}
	u := &unstructured.Unstructured{}
	if err := json.Unmarshal(raw, &u.Object); err != nil {
		return err
	}
	return s.manifests.GetStore().Add(u)
}

func (s *store) sources(t *testing.T, name string) []manifests.Source {
	t.Helper()
	obj, exists, _ := s.manifests.GetStore().GetByKey(name)
	if !exists {
		return nil
	}
	o, err := manifests.Read(obj.(*unstructured.Unstructured))
	if err != nil {
		t.Fatal(err)
	}
	return o.Spec.Sources
}

type rig struct {
	*testing.T
	*store
	reader *Reader
	dir    string
}

func newRig(t *testing.T) *rig {
	s := &store{manifests: cache.NewSharedIndexInformer(nil, &unstructured.Unstructured{}, 0, cache.Indexers{}),
		secrets: cache.NewSharedIndexInformer(nil, &corev1.Secret{}, 0, cache.Indexers{})}
	dir := filepath.Join(t.TempDir(), "manifests")
	r, err := NewReader(Config{Dir: dir, Server: "s1", API: s, Manifests: s.manifests, Secrets: s.secrets,
		Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return &rig{t, s, r, dir}
}

func (r *rig) put(name, text string) {
	r.Helper()
	path := filepath.Join(r.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		r.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		r.Fatal(err)
	}
}

func (r *rig) remove(name string) {
	r.Helper()
	if err := os.Remove(filepath.Join(r.dir, name)); err != nil {
		r.Fatal(err)
	}
}

// looks takes some looks at the directory, and returns what was written.
func (r *rig) looks(n int) []string {
	r.Helper()
	r.writes = nil
	for range n {
		r.reader.step(r.Context())
	}
	return r.writes
}

const text = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n"

func TestAFileIsToldOnceItRests(t *testing.T) {
	r := newRig(t)
	r.looks(1)
	r.put("a.yaml", text)
	if got := r.looks(1); len(got) > 0 {
		t.Fatalf("a file that was seen once is told: %q", got)
	}
	if got := r.looks(1); !slices.Equal(got, []string{"content", "a.yaml"}) {
		t.Fatalf("written were %q", got)
	}
	want := []manifests.Source{{Server: "s1", Hash: manifests.Hash([]byte(text)), Turn: 1}}
	if got := r.sources(t, "a.yaml"); !slices.Equal(got, want) {
		t.Fatalf("the sources are %v", got)
	}
	if got := r.looks(3); len(got) > 0 {
		t.Fatalf("an idle directory writes %q", got)
	}
	r.put("a.yaml", text+"data: {a: b}\n")
	if got := r.looks(1); len(got) > 0 {
		t.Fatalf("half a change is told: %q", got)
	}
	if got := r.looks(1); !slices.Equal(got, []string{"content", "a.yaml"}) || r.sources(t, "a.yaml")[0].Turn != 2 {
		t.Fatalf("written were %q", got)
	}
	r.remove("a.yaml")
	if got := r.looks(1); len(got) > 0 {
		t.Fatalf("a file that is away for a moment is told: %q", got)
	}
	if got := r.looks(1); !slices.Equal(got, []string{"a.yaml"}) || len(r.sources(t, "a.yaml")) > 0 {
		t.Fatalf("written were %q", got)
	}
}

func TestFilesOfOthers(t *testing.T) {
	r := newRig(t)
	other := &manifests.Object{Spec: manifests.Spec{Path: "a.yaml", Sources: []manifests.Source{
		{Server: "s2", Hash: manifests.Hash([]byte(text)), Turn: 4}}}}
	other.Name = "a.yaml"
	if err := r.add(other); err != nil {
		t.Fatal(err)
	}
	if got := r.looks(3); len(got) > 0 {
		t.Fatalf("a file of another server is answered: %q", got)
	}
	r.put("a.yaml", "other: text\n")
	r.looks(2)
	if got := r.sources(t, "a.yaml"); len(got) != 2 || got[1].Turn != 5 {
		t.Fatalf("the sources are %v", got)
	}
}

func TestWhatCannotBeReadHasNotGone(t *testing.T) {
	r := newRig(t)
	r.put("a.yaml", text)
	r.looks(2)
	for name, how := range map[string]struct{ spoil, mend func() }{
		"the directory": {func() { r.move(r.dir, r.dir+".away") }, func() { r.move(r.dir+".away", r.dir) }},
		"an empty file": {func() { r.put("a.yaml", "") }, func() { r.put("a.yaml", text) }},
		"a file that everybody may write": {
			func() { r.mode("a.yaml", 0o666) }, func() { r.mode("a.yaml", 0o600) }},
		"a file too large": {func() { r.put("a.yaml", strings.Repeat(" ", manifests.MaxBytes+1)) },
			func() { r.put("a.yaml", text) }},
	} {
		t.Run(name, func(t *testing.T) {
			how.spoil()
			if got := r.looks(3); len(got) > 0 {
				t.Errorf("written were %q", got)
			}
			how.mend()
			if got := r.looks(3); len(got) > 0 {
				t.Errorf("when it is back, %q were written", got)
			}
		})
	}
}

func (r *rig) move(from, to string) {
	if err := os.Rename(from, to); err != nil {
		r.Fatal(err)
	}
}

func (r *rig) mode(name string, mode os.FileMode) {
	if err := os.Chmod(filepath.Join(r.dir, name), mode); err != nil {
		r.Fatal(err)
	}
}

func TestSkippedFilesStay(t *testing.T) {
	r := newRig(t)
	r.put("a.yaml", text)
	r.looks(2)
	r.put("a.yaml.skip", "")
	r.put("a.yaml", text+"# changed\n")
	r.put("b.yaml", text)
	r.put("b.yaml.skip", "")
	if got := r.looks(3); len(got) > 0 {
		t.Fatalf("written were %q", got)
	}
	r.remove("a.yaml")
	if got := r.looks(3); len(got) > 0 {
		t.Fatalf("a skipped file that has gone: %q", got)
	}
	r.remove("a.yaml.skip")
	if got := r.looks(3); !slices.Equal(got, []string{"a.yaml"}) {
		t.Fatalf("written were %q", got)
	}
}

func TestAFailedWriteIsTriedAgain(t *testing.T) {
	r := newRig(t)
	r.put("a.yaml", text)
	r.fail = errors.New("no leader")
	r.looks(3)
	if r.reader.pause == 0 {
		t.Fatal("no pause follows a failure")
	}
	r.fail, r.reader.until = nil, r.reader.until.Add(-longest)
	if got := r.looks(1); !slices.Equal(got, []string{"content", "a.yaml"}) {
		t.Fatalf("written were %q", got)
	}
}

func TestNames(t *testing.T) {
	seen := map[string]string{}
	for _, path := range []string{"a.yaml", "sub/a.yaml", "sub-a.yaml", "A.yaml", "a_b.yaml", "-.yaml", "é.yml",
		"a..b.yaml", strings.Repeat("x", 300) + ".yaml", strings.Repeat("x", 300) + "2.yaml"} {
		name := NameOf(path)
		if errs := validation.IsDNS1123Subdomain(name); len(errs) > 0 {
			t.Errorf("%q is the name of %q: %v", name, path, errs)
		}
		if seen[name] != "" {
			t.Errorf("%q is the name of %q and %q", name, seen[name], path)
		}
		seen[name] = path
	}
	if NameOf("a.yaml") != "a.yaml" {
		t.Error("a plain name is changed")
	}
}
