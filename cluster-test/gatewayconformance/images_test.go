package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func manifests(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestImagesOf(t *testing.T) {
	dir := manifests(t, map[string]string{
		"base/manifests.yaml": "containers:\n  - name: a\n    image: registry.k8s.io/a/b:v1\n  - image: \"registry.k8s.io/c:v2\"\n",
		"tests/one.yaml":      "  image: registry.k8s.io/a/b:v1\n  imagePullPolicy: Always\n",
		"mesh/manifests.yaml": "  image: registry.k8s.io/mesh:v1\n",
	})
	names, err := imagesOf(dir)
	if want := []string{"registry.k8s.io/a/b:v1", "registry.k8s.io/c:v2"}; err != nil || !slices.Equal(names, want) {
		t.Errorf("%q, %v", names, err)
	}
	if _, err := imagesOf(t.TempDir()); err == nil {
		t.Error("a directory without manifests has images")
	}
}

func TestUnknownImage(t *testing.T) {
	p := &programs{dir: t.TempDir()}
	if _, err := p.images(t.Context(), []string{"registry.k8s.io/new:v1"}); err == nil ||
		!strings.Contains(err.Error(), "there is no stand-in") {
		t.Errorf("%v", err)
	}
}
