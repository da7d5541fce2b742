package images

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// fakeTool puts a program on the PATH, alone.
func fakeTool(t *testing.T, name, script string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
}

// TestClosure: libraries of libraries come along, each once; programs and alternatives do not.
func TestClosure(t *testing.T) {
	fakeTool(t, "apt-cache", `
for p; do
	case $p in
	curl) printf 'curl\n  Depends: libcurl4\n  Depends: perl\n |Depends: libother\n  Depends: <libvirtual>\n' ;;
	libcurl4) printf 'libcurl4\n  PreDepends: libssl3\n  Depends: zlib1g\n' ;;
	libssl3) printf 'libssl3\n  Depends: libcurl4\n  Depends: libc6\n' ;;
	esac
done
`)
	got, err := (&apt{}).closure(t.Context(), "curl", "bash")
	if want := []string{"bash", "curl", "libc6", "libcurl4", "libssl3", "zlib1g"}; err != nil ||
		!slices.Equal(got, want) {
		t.Errorf("got %q, %v; want %q", got, err, want)
	}
}

// TestArchive: the source is looked for in the release, not among its updates.
func TestArchive(t *testing.T) {
	fakeTool(t, "apt-get",
		`printf 'http://deb/debian-security bookworm-security\nhttp://deb/debian-archive/ bookworm\n'`)
	if got, err := (&apt{}).archive(t.Context()); err != nil || got != "http://deb/debian-archive/ bookworm" {
		t.Errorf("got %q, %v", got, err)
	}
	fakeTool(t, "apt-get", `true`)
	if got, err := (&apt{}).archive(t.Context()); err == nil {
		t.Errorf("got %q of apt without sources", got)
	}
}
