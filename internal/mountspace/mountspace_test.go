package mountspace

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/internal/child"
	"github.com/barque/barque/internal/needs"
)

// keepVariable in the environment makes the program stay in a new mount namespace until its input
// ends. Its value is a path to keep.
const keepVariable = "BARQUE_MOUNTSPACE_KEEP"

func TestMain(m *testing.M) {
	if keep := os.Getenv(keepVariable); keep != "" {
		if err := Own(keep); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		fmt.Println("ready")
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// image makes a small file system in a file.
func image(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 8<<20); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mkfs.ext4", "-q", "-F", path).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.ext4: %v: %s", err, out)
	}
}

// mounted mounts something at a directory that it makes, until the test ends or it is unmounted.
func mounted(t *testing.T, point string, args ...string) {
	t.Helper()
	if err := os.MkdirAll(point, 0o700); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mount", append(args, point)...).CombinedOutput(); err != nil {
		t.Fatalf("mount %s: %v: %s", point, err, out)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(point, unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) &&
			!errors.Is(err, unix.ENOENT) {
			t.Error(err)
		}
	})
}

// points are where something is mounted for a process.
func points(t *testing.T, pid int) (all []string) {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		t.Fatal(err)
	}
	mounts, err := parse(data)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mounts {
		all = append(all, m.point)
	}
	return all
}

// device is the loop device that an image is on; empty when there is none.
func device(t *testing.T, image string) string {
	t.Helper()
	files, err := filepath.Glob("/sys/block/loop*/loop/backing_file")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENXIO) { // it goes while we look
			t.Fatal(err)
		}
		if strings.TrimSpace(string(data)) == image {
			return f
		}
	}
	return ""
}

// TestOthers: another program's mounts can be unmounted at any time after a namespace began, and
// nothing changes outside.
func TestOthers(t *testing.T) {
	needs.Root(t, "mount namespaces that hold nothing of others")
	for _, program := range []string{"mkfs.ext4", "mount"} {
		if _, err := exec.LookPath(program); err != nil {
			needs.Missing(t, program, "mount namespaces that hold nothing of others")
		}
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	image(t, at("image"))
	image(t, at("kept image"))
	theirs, inner, over, kept, net := at("their disk"), at("their disk/inner"), at("over"), at("kept"), at("net")
	mounted(t, theirs, "-o", "loop", at("image"))
	mounted(t, inner, "-t", "tmpfs", "tmpfs")
	for _, name := range []string{"upper", "work"} {
		if err := os.Mkdir(filepath.Join(theirs, name), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	mounted(t, over, "-t", "overlay", "-o",
		strings.NewReplacer("THEIRS", theirs).Replace("lowerdir=/usr,upperdir=THEIRS/upper,workdir=THEIRS/work"),
		"overlay")
	mounted(t, kept, "-o", "loop", at("kept image"))
	if err := os.WriteFile(net, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("/proc/self/ns/net", net, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(net, unix.MNT_DETACH)

	runtime.LockOSThread() // Pdeathsig is sent when the thread ends that has started the process
	defer runtime.UnlockOSThread()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), keepVariable+"="+filepath.Join(kept, "lost+found"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	input, said := child.Start(t, cmd, cmd.Start)
	defer func() {
		input.Close()
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}()
	if line := <-said; line != "ready\n" {
		t.Fatalf("it says %q", line)
	}

	outside, inside := points(t, os.Getpid()), points(t, cmd.Process.Pid)
	for _, point := range []string{theirs, inner, over, net} {
		if slices.Contains(inside, point) {
			t.Errorf("%s is still mounted inside", point)
		}
		if !slices.Contains(outside, point) {
			t.Errorf("%s is not mounted outside any more", point)
		}
	}
	for _, point := range []string{kept, "/", "/proc"} {
		if !slices.Contains(inside, point) || !slices.Contains(outside, point) {
			t.Errorf("%s is not mounted inside and outside", point)
		}
	}
	// A program that scans all mounts, or new disks, may use these just now.
	for _, point := range []string{over, inner, theirs} {
		await.NoError(t, "unmount "+point, func(context.Context) error { return unix.Unmount(point, 0) })
	}
	await.True(t, "nobody keeps the disk busy", func() bool { return device(t, at("image")) == "" })
}

// TestParse: the kernel's lines are read or refused.
func TestParse(t *testing.T) {
	mounts, err := parse([]byte("27 1 254:0 / / rw,relatime - ext4 /dev/vda rw\n" +
		"42 27 7:3 / /a\\040b rw shared:1 master:2 - ext4 /dev/loop3 rw\n" +
		"43 27 0:4 net:[1] /run/netns/x rw master:3 - nsfs nsfs rw\n"))
	want := []mount{{id: 27, major: 254, point: "/", kind: "ext4"},
		{id: 42, major: 7, point: "/a b", shared: true, kind: "ext4"}, {id: 43, point: "/run/netns/x", kind: "nsfs"}}
	if err != nil || !slices.Equal(mounts, want) {
		t.Errorf("%+v, %v", mounts, err)
	}
	for _, wrong := range []string{"27 1 254:0 / /\n", "x 1 254:0 / / rw - ext4 d rw\n", "1 1 x:0 / / rw - ext4 d rw\n",
		"1 1 1:0 / / rw -\n"} {
		if mounts, err := parse([]byte(wrong)); err == nil {
			t.Errorf("%q is read as %+v", wrong, mounts)
		}
	}
}
