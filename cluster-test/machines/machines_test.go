package machines

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/barque/barque/cluster-test/disk"
	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/internal/needs"
	"github.com/barque/barque/internal/osthread"
)

func TestMain(m *testing.M) {
	InitIfAsked()
	os.Exit(m.Run())
}

// TestDisksOfOthers: another program's disk that was mounted when a machine was switched on can be
// unmounted, and used again, while the machine is on. Its own disk it has.
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
	if err := other.Attach(); err != nil { // it waits until the disk has no user any more
		t.Fatal(err)
	}
	attached = true
	for _, path := range []string{filepath.Join(DataDir, "lost+found"), command, Home} {
		if _, err := os.Stat(m.Path(path)); err != nil {
			t.Error(err)
		}
	}
}

// TestSegments: machines of two layer-2 networks reach each other by routers, and not while one of
// these is off.
func TestSegments(t *testing.T) {
	needs.Root(t, "machines in several layer-2 networks")
	dir := t.TempDir()
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
	var segments []*Segment
	var all []*Machine
	for i := range 2 {
		s, err := lab.NewSegment(netip.MustParsePrefix(fmt.Sprintf("10.1.%d.254/24", i)))
		if err != nil {
			t.Fatal(err)
		}
		m, err := s.NewMachine(fmt.Sprintf("m%d", i), netip.MustParsePrefix(fmt.Sprintf("10.1.%d.1/24", i)), 0)
		if err != nil {
			t.Fatal(err)
		}
		segments, all = append(segments, s), append(all, m)
	}
	reaches := func(from *Machine, to string) bool {
		err := osthread.Do(func() error {
			if err := from.enter(); err != nil {
				return err
			}
			conn, err := net.DialTimeout("tcp", net.JoinHostPort(to, "9"), time.Second) // brief: one try of several
			if err == nil {
				err = conn.Close()
			}
			return err
		})
		return errors.Is(err, unix.ECONNREFUSED) // nothing listens there
	}
	both := func() bool { return reaches(all[0], "10.1.1.1") && reaches(all[1], "10.1.0.1") }
	await.True(t, "both machines reach each other", both)
	for range 2 {
		if err := segments[1].LoseRouter(); err != nil {
			t.Fatal(err)
		}
		if reaches(all[0], "10.1.1.1") || reaches(all[1], "10.1.0.1") || reaches(all[1], "10.1.1.254") {
			t.Error("a router that is off lets packets pass")
		}
		if err := segments[1].ReturnRouter(); err != nil {
			t.Fatal(err)
		}
		await.True(t, "both machines reach each other again", both)
	}
}
