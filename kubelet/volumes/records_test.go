package volumes

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/barque/barque/kubelet/volumes/hostmount"
)

// stubborn shows a file where something is bound, and does not always let go of it.
type stubborn struct {
	noMounts
	busy, lies bool
}

func (*stubborn) Bind(_, target string, _ hostmount.Bind) error {
	if err := os.MkdirAll(target, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(target, "precious"), nil, 0o600)
}

var errBusy = errors.New("device or resource busy")

func (s *stubborn) Release(dir string) error {
	switch {
	case s.busy:
		return errBusy
	case s.lies:
		return nil
	}
	if err := os.Remove(filepath.Join(dir, "precious")); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// TestUnmountIsPatient: nothing of a volume is removed that is still mounted, even if the unmount
// returned no error. The pod keeps its record until it is rid of the volume.
func TestUnmountIsPatient(t *testing.T) {
	root, disk := t.TempDir(), t.TempDir()
	mounts := &stubborn{busy: true}
	m := newManager(t, root, boundTo(localPV("pv", disk)), nil)
	m.mounts, m.kinds = mounts, []Plugin{locals{mounts, nil}}
	paths, _, err := m.Mount(t.Context(), claimant("a"))
	if err != nil {
		t.Fatal(err)
	}
	precious := filepath.Join(paths["v"], "precious")
	stays := func(what string) {
		t.Helper()
		if err := m.Unmount("a"); err == nil {
			t.Errorf("%s: the pod is said to be rid of its volume", what)
		}
		if _, err := os.Stat(precious); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if used, err := m.InUse("pv"); err != nil || !used {
			t.Errorf("%s: in use: %t %v", what, used, err)
		}
	}
	stays("busy")
	mounts.busy, mounts.lies = false, true
	stays("still mounted")
	mounts.lies = false
	if err := m.Unmount("a"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(m.PodDir("a")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left: %v", err)
	}
}

// TestUnreadableRecord: an unreadable record is no missing one.
func TestUnreadableRecord(t *testing.T) {
	m := newManager(t, t.TempDir(), claimsOf{}, nil)
	m.mounts = &noMounts{}
	path := m.recordPath("a", "v")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, content := range []string{"{", `{"plugin":"kubernetes.io/unknown","pv":"pv"}`} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := m.Unmount("a"); err == nil {
			t.Errorf("%s: the pod's directory was removed", content)
		}
		if used, err := m.InUse("other"); err == nil || !used {
			t.Errorf("%s: in use: %t %v", content, used, err)
		}
	}
}

// binding is a host on which binding may fail.
type binding struct {
	noMounts
	bound map[string]bool
	err   error
}

func (b *binding) Mounted(dir string) (bool, error) { return b.bound[dir], nil }

func (b *binding) Bind(_, target string, _ hostmount.Bind) error {
	if b.err == nil {
		b.bound[target] = true
	}
	return b.err
}

// TestFirstPodGetsItsGroup: the first pod for which a volume is mounted decides whose its files
// are, whoever else waits for it.
func TestFirstPodGetsItsGroup(t *testing.T) {
	root, disk := t.TempDir(), t.TempDir()
	group := int64(os.Getgid())
	mounts := &binding{bound: map[string]bool{}, err: errBusy}
	m := newManager(t, root, boundTo(localPV("pv", disk)), nil)
	m.mounts, m.kinds = mounts, []Plugin{locals{mounts, nil}}
	a, b := claimant("a"), claimant("b")
	for _, pod := range []*v1.Pod{a, b} {
		pod.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: &group}
	}
	given := func(what string, want bool) {
		t.Helper()
		info, err := os.Stat(disk)
		if err != nil {
			t.Fatal(err)
		}
		if got := info.Mode()&os.ModeSetgid != 0; got != want {
			t.Errorf("%s: the volume is the group's: %t, want %t", what, got, want)
		}
		if err := os.Chmod(disk, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for _, pod := range []*v1.Pod{a, b} {
		if _, _, err := m.Mount(t.Context(), pod); err == nil {
			t.Fatal("a volume that cannot be bound is mounted")
		}
		given("pod "+string(pod.UID)+", for which nothing could be mounted", true)
	}
	mounts.err = nil
	if _, _, err := m.Mount(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	given("the first pod", true)
	if _, _, err := m.Mount(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	given("the second pod", false)
}
