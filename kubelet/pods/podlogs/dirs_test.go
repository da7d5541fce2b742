package podlogs

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	list := []string{}
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list
}

func logPod(name, uid string) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(uid)}}
}

// Collectors find the log of a container by the link that every Kubernetes node has.
func TestLinksToLogs(t *testing.T) {
	dir := t.TempDir()
	d := &Dirs{Dir: filepath.Join(dir, "pods"), LinkDir: filepath.Join(dir, "containers"), Owner: "/k"}
	p := logPod("web-1", "u1")
	if err := d.Make(p); err != nil {
		t.Fatal(err)
	}
	write(t, d.Path(p, "c", 3), "said")
	for range 2 { // a second time changes nothing
		if err := d.Link(p, "c", "abc", 3); err != nil {
			t.Fatal(err)
		}
	}
	link := filepath.Join(dir, "containers", "web-1_ns_c-abc.log")
	if said, err := os.ReadFile(link); err != nil || string(said) != "said" {
		t.Errorf("by the link: %q, %v", said, err)
	}
	foreign := filepath.Join(d.LinkDir, "foreign.log")
	if err := os.Symlink(filepath.Join(dir, "elsewhere"), foreign); err != nil {
		t.Fatal(err)
	}
	if err := d.RemoveDeadLinks(); err != nil {
		t.Fatal(err)
	}
	if got := names(t, d.LinkDir); !slices.Equal(got, []string{"foreign.log", "web-1_ns_c-abc.log"}) {
		t.Errorf("while the log is there: %v", got)
	}
	if err := errors.Join(d.RemoveOwn("u1"), d.RemoveDeadLinks()); err != nil {
		t.Fatal(err)
	}
	if got := names(t, d.LinkDir); !slices.Equal(got, []string{"foreign.log"}) {
		t.Errorf("when the log has gone: %v", got)
	}
	long := linkName(logPod(strings.Repeat("n", 253), "u"), "c", strings.Repeat("1", 64))
	if len(long) != 255 || !strings.HasSuffix(long, ".log") {
		t.Errorf("%d bytes: %s", len(long), long)
	}
}

// Two kubelets that share the directory clean up their own pods' logs only.
func TestLogsOfAnotherKubelet(t *testing.T) {
	dir := t.TempDir()
	own, other := &Dirs{Dir: dir, Owner: "/a"}, &Dirs{Dir: dir, Owner: "/b"}
	if err := errors.Join(own.Make(logPod("own", "u1")), other.Make(logPod("other", "u2"))); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "ns_upstream_u3", "c", "0.log"), "of a kubelet that notes nothing")
	uids, err := own.Pods()
	if err != nil || !slices.Equal(uids, []types.UID{"u1"}) {
		t.Errorf("%v, %v", uids, err)
	}
	for _, uid := range []types.UID{"u1", "u2", "u3"} {
		if err := own.RemoveOwn(uid); err != nil {
			t.Error(err)
		}
	}
	if got := names(t, dir); !slices.Equal(got, []string{"ns_other_u2", "ns_upstream_u3"}) {
		t.Errorf("left: %v", got)
	}
}

// Pods that an earlier version has started go on writing where they did, and are found in the new
// place.
func TestAdoptLogs(t *testing.T) {
	dir := t.TempDir()
	old, d := filepath.Join(dir, "old"), &Dirs{Dir: filepath.Join(dir, "pods"), Owner: "/k"}
	p := logPod("web", "u1")
	write(t, filepath.Join(old, "ns_web_u1", "c", "0.log"), "said")
	if err := os.Mkdir(d.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := d.Adopt(old); err != nil {
			t.Fatal(err)
		}
	}
	if said, err := os.ReadFile(d.Path(p, "c", 0)); err != nil || string(said) != "said" {
		t.Errorf("%q, %v", said, err)
	}
	uids, err := d.Pods()
	if err != nil || !slices.Equal(uids, []types.UID{"u1"}) {
		t.Errorf("%v, %v", uids, err)
	}
	if err := errors.Join(d.RemoveOwn("u1"), d.Adopt(old), d.Adopt(old)); err != nil {
		t.Error(err)
	}
	if got := names(t, dir); !slices.Equal(got, []string{"pods"}) || len(names(t, d.Dir)) > 0 {
		t.Errorf("left: %v, %v", got, names(t, d.Dir))
	}
}

// The logs of a container go with it, those that were rotated as well; those of the next one stay.
func TestLogsGoWithTheContainer(t *testing.T) {
	dir := t.TempDir()
	d := &Dirs{Dir: dir}
	p := logPod("web", "u1")
	for _, file := range []string{"1.log", "1.log.20261125-190000", "1.log.20261125-180000.gz", "10.log", "11.log"} {
		write(t, filepath.Join(d.PodDir(p), "c", file), "x")
	}
	if err := d.RemoveLog(d.Path(p, "c", 1)); err != nil {
		t.Fatal(err)
	}
	if got := names(t, filepath.Join(d.PodDir(p), "c")); !slices.Equal(got, []string{"10.log", "11.log"}) {
		t.Errorf("left: %v", got)
	}
	elsewhere := filepath.Join(t.TempDir(), "0.log")
	write(t, elsewhere, "x")
	if err := d.RemoveLog(elsewhere); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(elsewhere); err != nil {
		t.Errorf("a file that is no log of a pod has gone: %v", err)
	}
}

// The logs of a node that is taken off its machine go, with the directories unless others have logs
// there.
func TestRemains(t *testing.T) {
	for name, others := range map[string]bool{"alone": false, "beside another": true} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			d := &Dirs{Dir: filepath.Join(dir, "pods"), LinkDir: filepath.Join(dir, "containers"), Owner: "/a"}
			pod := logPod("web", "u1")
			write(t, d.Path(pod, "c", 0), "said")
			if err := errors.Join(d.Make(pod), d.Link(pod, "c", "abc", 0)); err != nil {
				t.Fatal(err)
			}
			if others {
				write(t, filepath.Join(d.Dir, "ns_upstream_u3", "c", "0.log"), "of another")
			}
			kind := d.Remains()[0]
			if found, err := kind.Find(t.Context()); err != nil || !slices.Equal(found, []string{d.PodDir(pod)}) {
				t.Errorf("%q %v", found, err)
			}
			for range 2 {
				if err := kind.Remove(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := os.Stat(d.Dir); (err == nil) != others {
				t.Errorf("after it: %v", err)
			}
			if found, err := kind.Find(t.Context()); err != nil || len(found) > 0 {
				t.Errorf("%q stay: %v", found, err)
			}
		})
	}
}
