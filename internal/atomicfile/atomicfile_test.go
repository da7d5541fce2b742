package atomicfile_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/barque/barque/internal/atomicfile"
)

func TestWriteReplaces(t *testing.T) {
	path := filepath.Join(t.TempDir(), "new", "file")
	for _, text := range []string{"one", "two"} {
		if err := atomicfile.Write(path, []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != text {
			t.Fatalf("got %q, %v; want %q", got, err, text)
		}
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o640 {
		t.Fatalf("mode %v, %v", info.Mode(), err)
	}
	only(t, filepath.Dir(path), "file")
}

func TestSweepRemovesWhatAKilledWriteLeft(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{".file.123", ".file.456", ".other.123", "file"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := atomicfile.Sweep(filepath.Join(dir, "file")); err != nil {
		t.Fatal(err)
	}
	only(t, dir, ".other.123", "file")
}

func TestSweepDirRemovesWhatKilledWritesLeft(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dir")
	if err := atomicfile.SweepDir(dir); err != nil {
		t.Fatal("a directory that is not there:", err)
	}
	stay := []string{".123", ".file", ".file.", ".file.12x", "file", "file.123"}
	for _, name := range append([]string{".file.123", ".file.key.4", ".old.456"}, stay...) {
		if err := atomicfile.Write(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, ".dir.1"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := atomicfile.SweepDir(dir); err != nil {
		t.Fatal(err)
	}
	only(t, dir, append([]string{".123", ".dir.1"}, stay[1:]...)...)
	half := errors.New("half")
	err := atomicfile.WriteFrom(filepath.Join(dir, "file"), 0o600, func(io.Writer) error {
		return errors.Join(half, atomicfile.SweepDir(dir)) // a killed Write leaves such a file
	})
	if !errors.Is(err, half) || !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the file of a Write under way was not removed: %v", err)
	}
}

// only checks the directory's entries, sorted by name.
func only(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if len(got) != len(want) {
		t.Fatalf("%s has %v; want %v", dir, got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("%s has %v; want %v", dir, got, want)
		}
	}
}

func TestFailedWriteLeavesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := atomicfile.Write(path, []byte("one"), 0o600); err != nil {
		t.Fatal(err)
	}
	full := errors.New("no room")
	err := atomicfile.WriteFrom(path, 0o600, func(w io.Writer) error {
		_, err := io.WriteString(w, "a par")
		return errors.Join(err, full)
	})
	if !errors.Is(err, full) {
		t.Fatalf("it says %v", err)
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != "one" {
		t.Errorf("the file has %q, %v", got, err)
	}
	only(t, filepath.Dir(path), "file")
}

func TestRemove(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	for range 2 { // the second time there is nothing to remove
		if err := atomicfile.Remove(path); err != nil {
			t.Fatal(err)
		}
		only(t, filepath.Dir(path))
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func TestMakeDir(t *testing.T) {
	root := t.TempDir()
	path := filepath.Join(root, "a", "b", "c")
	for range 2 {
		if err := atomicfile.MakeDir(path); err != nil {
			t.Fatal(err)
		}
	}
	for dir := path; dir != root; dir = filepath.Dir(dir) {
		if info, err := os.Stat(dir); err != nil || info.Mode() != os.ModeDir|0o700 {
			t.Errorf("%s: %v, %v", dir, info, err)
		}
	}
	if err := os.WriteFile(filepath.Join(root, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := atomicfile.MakeDir(filepath.Join(root, "file")); err == nil {
		t.Error("a file counts as a directory")
	}
}
