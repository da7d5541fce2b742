package machines

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/barque/barque/cluster-test/disk"
	"github.com/barque/barque/internal/needs"
)

func TestMain(m *testing.M) {
	InitIfAsked()
	os.Exit(m.Run())
}

// TestDisksOfOthers: a disk that somebody else had mounted when a machine was switched on can be unmounted, and used again,
// while the machine is on. Its own disk it has.
func TestDisksOfOthers(t *testing.T) {
	needs.NoError(t, disk.Possible(), "machines beside other programs that have disks of their own")
	dir := t.TempDir()
	other, err := disk.New(filepath.Join(dir, "image"), filepath.Join(dir, "mount"), 8)
	if err != nil {
		t.Fatal(err)
	}
	attached := true
	t.Cleanup(func() {
		if attached {
			if err := other.Detach(); err != nil {
				t.Error(err)
			}
		}
	})
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	lab, err := New(filepath.Join(dir, "lab"), binary, netip.MustParsePrefix("10.0.0.254/24"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := lab.Close(); err != nil {
			t.Error(err)
		}
	})
	m, err := lab.NewMachine("m1", netip.MustParsePrefix("10.0.0.1/24"), 16)
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Detach(); err != nil {
		t.Fatal(err)
	}
	attached = false
	if err := other.Attach(); err != nil { // it waits until nobody has the disk any more
		t.Fatal(err)
	}
	attached = true
	for _, path := range []string{filepath.Join(DataDir, "lost+found"), command, Home} {
		if _, err := os.Stat(m.Path(path)); err != nil {
			t.Error(err)
		}
	}
}
