package registry

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

func newRegistry(t *testing.T) (*Registry, v1.Image, name.Reference) {
	t.Helper()
	img, err := random.Image(1000, 2)
	if err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag("docker.io/library/thing:7")
	if err != nil {
		t.Fatal(err)
	}
	r, err := New(t.Context(), map[name.Tag]v1.Image{tag: img})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(r)
	t.Cleanup(server.Close)
	ref, err := name.ParseReference(strings.TrimPrefix(server.URL, "http://") + "/library/thing:7")
	if err != nil {
		t.Fatal(err)
	}
	return r, img, ref
}

func TestPullIsCounted(t *testing.T) {
	r, img, ref := newRegistry(t)
	if n := r.Requests(); n != 0 {
		t.Fatalf("%d requests before the first", n)
	}
	got, err := remote.Image(ref)
	if err != nil {
		t.Fatal(err)
	}
	want, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	if digest, err := got.Digest(); err != nil || digest != want {
		t.Fatalf("pulled %s, want %s (%v)", digest, want, err)
	}
	layers, err := got.Layers()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range layers {
		content, err := l.Compressed()
		if err != nil {
			t.Fatal(err)
		}
		content.Close()
	}
	if manifests, blobs := r.Pulls("library/thing:7"); manifests == 0 || blobs < len(layers) {
		t.Fatalf("counted %d manifests and %d blobs", manifests, blobs)
	}
	if manifests, _ := r.Pulls("library/other:1"); manifests != 0 {
		t.Fatalf("counted %d manifests of another image", manifests)
	}
}

func TestOff(t *testing.T) {
	r, _, ref := newRegistry(t)
	r.Off()
	if _, err := remote.Image(ref, remote.WithRetryStatusCodes(http.StatusTeapot)); err == nil {
		t.Fatal("pulled from a registry that is off")
	}
	r.On()
	if _, err := remote.Image(ref); err != nil {
		t.Fatal(err)
	}
	other, err := random.Image(1000, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(ref, other); err == nil {
		t.Fatal("wrote to the registry")
	}
}

func TestMirrors(t *testing.T) {
	dir := t.TempDir()
	if err := WriteMirrors(dir); err != nil {
		t.Fatal(err)
	}
	for _, host := range []string{"docker.io", "registry.k8s.io"} {
		data, err := os.ReadFile(filepath.Join(dir, host, "hosts.toml"))
		if err != nil || strings.Count(string(data), "http://127.0.0.1:5000") != 2 {
			t.Fatalf("%s: %s, %v", host, data, err)
		}
	}
}

func TestServeNeedsTheNamespace(t *testing.T) {
	r, _, _ := newRegistry(t)
	if err := r.Serve("barque-no-such-namespace"); err == nil ||
		!strings.Contains(err.Error(), "barque-no-such-namespace") {
		t.Fatalf("got %v", err)
	}
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
}
