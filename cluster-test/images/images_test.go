package images

import (
	"archive/tar"
	"bytes"
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"github.com/barque/barque/internal/needs"
)

func TestImages(t *testing.T) {
	needs.Root(t, "the images of the end-to-end tests")
	images, err := Build(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, ref := range []string{Busybox, Nginx, NginxNew} {
		tag, err := name.NewTag(ref)
		if err != nil {
			t.Fatal(err)
		}
		img, ok := images[tag]
		if !ok {
			t.Fatalf("there is no %s", ref)
		}
		layers, err := img.Layers()
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range layers {
			if err := validate.Layer(l); err != nil {
				t.Errorf("%s: %v", ref, err)
			}
		}
	}
	again, err := Build(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for ref, img := range images {
		first, err := img.Digest()
		if err != nil {
			t.Fatal(err)
		}
		if second, err := again[ref].Digest(); err != nil || first != second {
			t.Errorf("%s was %s, then %s (%v)", ref, first, second, err)
		}
	}
}

func TestTarIsDeterministicAndOrdered(t *testing.T) {
	make := func() []byte {
		l := tree{}
		l.file("usr/share/x/index.html", "hello")
		l.link("bin/sh", "busybox")
		l.dir("tmp", 0o777|fs.ModeSticky)
		l["bin/busybox"] = entry{mode: 0o755, data: []byte("ELF")}
		data, err := l.tar()
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	data := make()
	if !bytes.Equal(data, make()) {
		t.Fatal("the same tree gave different bytes")
	}
	var names []string
	for r := tar.NewReader(bytes.NewReader(data)); ; {
		h, err := r.Next()
		if err != nil {
			break
		}
		names = append(names, h.Name)
		if !h.ModTime.IsZero() && h.ModTime.Unix() != 0 {
			t.Errorf("%s has a time: %v", h.Name, h.ModTime)
		}
		if h.Name == "tmp/" && h.Mode != 0o1777 {
			t.Errorf("tmp has mode %o", h.Mode)
		}
	}
	if got, want := strings.Join(names, " "),
		"bin/ bin/busybox bin/sh tmp/ usr/ usr/share/ usr/share/x/ usr/share/x/index.html"; got != want {
		t.Fatalf("got  %s\nwant %s", got, want)
	}
}

func TestMissingLibraryIsNamed(t *testing.T) {
	self, err := os.ReadFile("/bin/ls") // any dynamic executable
	needs.NoError(t, err, "that a library which an image lacks is named")
	l := tree{"usr/bin/ls": entry{mode: 0o755, data: self}}
	if err := l.checkLibraries("usr/bin/ls"); err == nil ||
		!strings.Contains(err.Error(), "libc.so") && !strings.Contains(err.Error(), "libselinux") {
		t.Fatalf("got %v", err)
	}
}

func TestAptAbsent(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	if _, err := build(t.Context(), t.TempDir()); err == nil ||
		!strings.Contains(err.Error(), "apt-get is not on this machine") {
		t.Fatalf("got %v", err)
	}
}
