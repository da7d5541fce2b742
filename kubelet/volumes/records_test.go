package volumes

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// stubborn shows a file where something is bound, and does not always let go of it.
type stubborn struct {
	noMounts
	busy, lies bool
}

func (*stubborn) Bind(_, target string, _ Bind) error {
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

// TestUnmountIsPatient: nothing of a volume is removed that is still mounted, even if that is not
// told. The pod keeps its record until it is rid of the volume.
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

// TestUnreadableRecord: what is not understood is not taken for nothing.
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
