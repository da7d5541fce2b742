package images

import (
	"archive/tar"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// everyStandIn names an image of each repository that has a stand-in, and two that have none.
func everyStandIn() []string {
	refs := []string{"registry.k8s.io/e2e-test-images/volume/nfs:1", "invalid.registry.k8s.io/invalid/alpine:3.1"}
	for repository := range standIns {
		refs = append(refs, "registry.k8s.io/"+repository+":7")
	}
	return refs
}

func noLayers(t *testing.T) map[string]v1.Layer {
	t.Helper()
	empty, err := tree{}.layer()
	if err != nil {
		t.Fatal(err)
	}
	layers := map[string]v1.Layer{}
	for _, s := range standIns {
		for _, l := range s.layers {
			layers[l] = empty
		}
	}
	return layers
}

// TestStandIns: images have the tags that the suite asks for.
func TestStandIns(t *testing.T) {
	refs := append(everyStandIn(), "registry.k8s.io/e2e-test-images/agnhost:8")
	all, err := standInImages(refs, noLayers(t))
	if err != nil {
		t.Fatal(err)
	}
	if want := len(standIns) + 1; len(all) != want {
		t.Errorf("%d images, want %d", len(all), want)
	}
	for _, ref := range []string{"registry.k8s.io/e2e-test-images/agnhost:7",
		"registry.k8s.io/e2e-test-images/agnhost:8"} {
		tag, err := name.NewTag(ref)
		if err != nil {
			t.Fatal(err)
		}
		if all[tag] == nil {
			t.Errorf("there is no %s", ref)
			continue
		}
		file, err := all[tag].ConfigFile()
		if err != nil || !slices.Equal(file.Config.Entrypoint, []string{"/agnhost"}) || len(file.RootFS.DiffIDs) != 3 {
			t.Errorf("%s: %+v, %v", ref, file, err)
		}
	}
}

func TestStandInsThatNobodyUses(t *testing.T) {
	refs := slices.DeleteFunc(everyStandIn(), func(ref string) bool { return strings.Contains(ref, "kitten") })
	if _, err := standInImages(refs, noLayers(t)); err == nil ||
		!strings.Contains(err.Error(), "no image e2e-test-images/kitten") {
		t.Errorf("got %v", err)
	}
}

// TestSetUserID: the one program that runs as root for any caller has the set-user-ID bit in the
// layer, too.
func TestSetUserID(t *testing.T) {
	programs := t.TempDir()
	if err := os.WriteFile(filepath.Join(programs, "nonewprivs"), []byte("ELF"), 0o644); err != nil {
		t.Fatal(err)
	}
	made, err := Suite{Programs: programs}.nonewprivs(nil)
	if err != nil {
		t.Fatal(err)
	}
	data, err := made.tar()
	if err != nil {
		t.Fatal(err)
	}
	for r := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := r.Next()
		if err != nil {
			t.Fatalf("usr/local/bin/nnp: %v", err)
		}
		if h.Name == "usr/local/bin/nnp" {
			if h.Mode != 0o6755 {
				t.Errorf("mode %o", h.Mode)
			}
			return
		}
	}
}

func TestSuiteWithoutItsPrograms(t *testing.T) {
	s := Suite{Programs: t.TempDir(), Source: t.TempDir()}
	for name, make := range map[string]func(tree) (tree, error){
		"agnhost": s.agnhost, "kitten": s.kitten, "nautilus": s.nautilus, "nonewprivs": s.nonewprivs, "pause": s.pause,
	} {
		if _, err := make(tree{}); err == nil {
			t.Errorf("%s is made of nothing", name)
		}
	}
}

// TestProxyMode: the stand-in for hostpathplugin hands the arguments of its proxy mode to socat.
func TestProxyMode(t *testing.T) {
	dir := t.TempDir()
	for name, script := range map[string]string{"socat": "#!/bin/sh\necho \"$@\"\n", "plugin": proxyMode} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(script), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	run := func(args ...string) (string, error) {
		cmd := exec.Command(filepath.Join(dir, "plugin"), args...)
		cmd.Env = []string{"PATH=" + dir}
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	const want = "UNIX-LISTEN:/csi/a.sock,fork,unlink-early TCP-LISTEN:9001,reuseaddr,reuseport\n"
	for _, args := range [][]string{
		{"--v=5", "--endpoint=/csi/a.sock", "--proxy-endpoint=tcp://:9001"},
		{"-v=5", "-nodeid=n1", "-endpoint=/csi/a.sock", "-proxy-endpoint=tcp://:9001"},
	} {
		if got, err := run(args...); err != nil || got != want {
			t.Errorf("%q: got %q, %v", args, got, err)
		}
	}
	if got, err := run("--endpoint=/csi/a.sock"); err == nil ||
		!strings.Contains(got, "needs -endpoint and -proxy-endpoint") {
		t.Errorf("outside of the proxy mode: %q, %v", got, err)
	}
}
