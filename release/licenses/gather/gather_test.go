package main

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/barque/barque/release/licenses"
)

func put(t *testing.T, path, content string) {
	t.Helper()
	err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o600))
	if err != nil {
		t.Fatal(err)
	}
}

// The texts of a module are those of its root and of the directories on the way to used packages.
func TestTextsOfAModule(t *testing.T) {
	root := t.TempDir()
	for name, content := range map[string]string{"LICENSE": "root", "NOTICE.txt": "notice",
		"used/inner/COPYING": "inner", "used/inner/deep/x.go": "package deep", "unused/LICENSE": "not compiled in",
		"license.go": "package x", "used/LICENSES/MIT": "in a directory", "used/relicense.md": "no licence"} {
		put(t, filepath.Join(root, name), content)
	}
	got, err := ofModules([]use{
		{program: "runc", path: "example.org/m", version: "v1.0.0", root: root,
			dir: filepath.Join(root, "used/inner/deep")},
		{program: "barque", path: "example.org/m", version: "v1.0.0", root: root, dir: root},
	})
	want := []licenses.Component{{Name: "example.org/m", Version: "v1.0.0", Programs: []string{"barque", "runc"},
		Texts: []licenses.Text{{File: "LICENSE", Content: "root"}, {File: "NOTICE.txt", Content: "notice"},
			{File: "used/inner/COPYING", Content: "inner"}}}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
}

// A module without a licence text fails the gathering, with its name. A notice, or an empty file,
// is no licence.
func TestModulesWithoutALicence(t *testing.T) {
	root := t.TempDir()
	put(t, filepath.Join(root, "a/NOTICE"), "by me")
	put(t, filepath.Join(root, "b/LICENSE"), " \n")
	put(t, filepath.Join(root, "c/LICENCE.md"), "free")
	var used []use
	for _, name := range []string{"a", "b", "c"} {
		dir := filepath.Join(root, name)
		used = append(used, use{program: "barque", path: "example.org/" + name, version: "v1.0.0", root: dir, dir: dir})
	}
	_, err := ofModules(used)
	if err == nil || !strings.Contains(err.Error(), "example.org/a v1.0.0 has no licence text") ||
		!strings.Contains(err.Error(), "example.org/b v1.0.0") || strings.Contains(err.Error(), "example.org/c") {
		t.Errorf("got %v", err)
	}
}

func TestTextsOfTheSystem(t *testing.T) {
	root, goRoot := t.TempDir(), t.TempDir()
	put(t, filepath.Join(goRoot, "LICENSE"), "go")
	put(t, filepath.Join(root, "usr/share/doc/libc6-dev/copyright"),
		"see /usr/share/common-licenses/LGPL-2.1, and again /usr/share/common-licenses/LGPL-2.1.")
	put(t, filepath.Join(root, "usr/share/common-licenses/LGPL-2.1"), "lesser")
	put(t, filepath.Join(root, "usr/share/doc/libgcc-12-dev/copyright"), "gcc")
	runc, ptp := program{name: "runc", tags: []string{"cgo"}}, program{name: "ptp"}
	got, missing := ofSystem(root, goRoot, []program{runc, ptp})
	if !reflect.DeepEqual(missing, []string{"libseccomp"}) || len(got) != 3 {
		t.Fatalf("got %+v, missing %v", got, missing)
	}
	if !reflect.DeepEqual(got[0].Programs, []string{"ptp", "runc"}) || got[0].Texts[0].Content != "go" {
		t.Errorf("got %+v", got[0])
	}
	if want := []licenses.Text{{File: "/usr/share/doc/libc6-dev/copyright",
		Content: "see /usr/share/common-licenses/LGPL-2.1, and again /usr/share/common-licenses/LGPL-2.1."},
		{File: "/usr/share/common-licenses/LGPL-2.1", Content: "lesser"}}; !reflect.DeepEqual(got[1].Texts, want) {
		t.Errorf("got %+v", got[1])
	}
	// Without cgo there is no library in C.
	if got, missing := ofSystem(root, goRoot, []program{ptp}); len(got) != 1 || missing != nil {
		t.Errorf("got %+v, missing %v", got, missing)
	}
}

// The packages are those of the build for which they are listed, and the file is written once.
func TestGathering(t *testing.T) {
	out := filepath.Join(t.TempDir(), licenses.File)
	args := []string{"-o", out, "shim=github.com/barque/barque/release/licenses"}
	if err := run(args); err != nil {
		t.Fatal(err)
	}
	packed, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	components, err := licenses.Unpack(packed)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, c := range components {
		names = append(names, c.Name)
	}
	if got := strings.Join(names, " "); !strings.HasSuffix(got, "github.com/klauspost/compress") {
		t.Errorf("got %s", got)
	}
	before, err := os.Stat(out)
	if err != nil {
		t.Fatal(err)
	}
	if err := run(args); err != nil {
		t.Fatal(err)
	}
	if after, err := os.Stat(out); err != nil || !os.SameFile(before, after) {
		t.Errorf("an unchanged file is written again (%v)", err)
	}
	for _, wrong := range [][]string{nil, {"-o", out}, {"-o", out, "barque"}, {"-o", out, "x=example.org/nowhere"}} {
		if err := run(wrong); err == nil {
			t.Errorf("%v is taken", wrong)
		}
	}
}
