package netname

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/barque/barque/internal/apart"
)

// TestBesideIP: the first namespace that ip makes hides no existing one, and all can be removed.
func TestBesideIP(t *testing.T) {
	if !apart.Run(t, apart.Mounts, 5*time.Minute, "named network namespaces beside those of ip") {
		return
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	// A machine whose mounts are private, as those of minimal systems and of containers are.
	must(unix.Mount("none", "/run", "tmpfs", 0, ""))
	must(Make("first"))
	must(Make("first")) // it exists
	once := mounts(t)

	// As `ip netns add` does (iproute2, ip/ipnetns.c).
	if err := unix.Mount("", dir, "none", unix.MS_SHARED|unix.MS_REC, ""); errors.Is(err, unix.EINVAL) {
		must(unix.Mount(dir, dir, "none", unix.MS_BIND|unix.MS_REC, ""))
		must(unix.Mount("", dir, "none", unix.MS_SHARED|unix.MS_REC, ""))
	} else {
		must(err)
	}
	must(Make("second"))
	if again := mounts(t); again != once {
		t.Errorf("%s is mounted %d times, and was %d times", dir, again, once)
	}

	for _, name := range []string{"first", "second"} {
		if err := Remove(name); err != nil {
			t.Error(err)
		}
		must(Remove(name)) // it is gone
	}
	left, err := os.ReadDir(dir)
	must(err)
	for _, file := range left {
		t.Errorf("%s is left", file.Name())
	}
}

// Names that others made without a mount at the directory are not mounted over.
func TestBesideOthers(t *testing.T) {
	if !apart.Run(t, apart.Mounts, 5*time.Minute, "named network namespaces beside those of others") {
		return
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(unix.Mount("none", "/run", "tmpfs", 0, ""))
	hidden := mounts(t) // of the machine, below the new /run
	must(os.Mkdir(dir, 0o755))
	theirs := filepath.Join(dir, "theirs")
	must(os.WriteFile(theirs, nil, 0o600))
	must(unix.Mount("/proc/self/ns/net", theirs, "", unix.MS_BIND, ""))
	must(Make("ours"))
	if n := mounts(t) - hidden; n != 0 {
		t.Errorf("%s is mounted", dir)
	}
	must(unix.Unmount(theirs, 0))
	must(os.Remove(theirs))
	must(Remove("ours"))
	must(Make("ours"))
	if n := mounts(t) - hidden; n != 1 {
		t.Errorf("%s is mounted %d times when nobody has names there any more", dir, n)
	}
	must(Remove("ours"))
}

// A file without a namespace, left by a maker that did not finish, is no obstacle.
func TestUnfinished(t *testing.T) {
	if !apart.Run(t, apart.Mounts, 5*time.Minute, "named network namespaces that were begun") {
		return
	}
	err := unix.Mount("none", "/run", "tmpfs", 0, "")
	if err == nil {
		err = os.Mkdir(dir, 0o755)
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "begun"), nil, 0o600)
	}
	if err == nil {
		err = Make("begun")
	}
	if err != nil {
		t.Fatal(err)
	}
	var stat unix.Statfs_t
	if err := unix.Statfs(filepath.Join(dir, "begun"), &stat); err != nil || stat.Type != unix.NSFS_MAGIC {
		t.Errorf("it is on a file system of kind %#x, %v", stat.Type, err)
	}
	if err := Remove("begun"); err != nil {
		t.Error(err)
	}
}

// mounts counts how often something is mounted at the directory itself.
func mounts(t *testing.T) int {
	t.Helper()
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Count(data, []byte(" "+dir+" "))
}
