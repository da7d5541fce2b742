package rootdir

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/barque/barque/internal/apart"
)

// TestIsOf: a directory is the node's that it names. One of before the file was there is in the
// data directory.
func TestIsOf(t *testing.T) {
	dataDir, dir := t.TempDir(), t.TempDir()
	if is, err := IsOf(dir, dataDir); is || err != nil {
		t.Errorf("without a file: %t %v", is, err)
	}
	if is, err := IsOf(former(dataDir), dataDir); !is || err != nil {
		t.Errorf("the former directory: %t %v", is, err)
	}
	for owner, want := range map[string]bool{dataDir: true, "/another": false} {
		if err := os.WriteFile(filepath.Join(dir, Owner), []byte(owner+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if is, err := IsOf(dir, dataDir); is != want || err != nil {
			t.Errorf("of %s: %t %v", owner, is, err)
		}
	}
}

// TestRemains: mounts of volumes and plugins are found, and no others.
func TestRemains(t *testing.T) {
	if !apart.Run(t, apart.Mounts, time.Minute, "mounts that a kubelet leaves") {
		return
	}
	dir := t.TempDir()
	kinds := Remains(dir, func(string) error { return nil })
	if found, err := kinds[0].Find(t.Context()); err != nil || len(found) > 0 {
		t.Errorf("in an empty directory: %q %v", found, err)
	}
	var want []string
	for _, d := range []string{"pods/a/volumes/v", "plugins/p/globalmount", "other"} {
		at := filepath.Join(dir, d)
		if err := os.MkdirAll(at, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("tmpfs", at, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(at, 0); err != nil {
				t.Error(err)
			}
		})
		if d != "other" {
			want = append(want, at)
		}
	}
	if found, err := kinds[0].Find(t.Context()); err != nil || !slices.Equal(found, want) {
		t.Errorf("%q, want %q: %v", found, want, err)
	}
}
