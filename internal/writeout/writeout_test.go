package writeout_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/barque/barque/internal/writeout"
	"github.com/barque/barque/internal/writeout/writeouttest"
)

func create(t *testing.T) *os.File {
	t.Helper()
	f, err := os.Create(filepath.Join(t.TempDir(), "large"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func TestTheDiskHasAllButAStep(t *testing.T) {
	writeouttest.Disk(t, t.TempDir())
	data := make([]byte, 5*writeout.Step+writeout.Step/2)
	for i := range data {
		data[i] = byte(i * 31 >> 8)
	}
	for _, piece := range []int{1000, 64 << 10, writeout.Step, len(data)} {
		f := create(t)
		w := writeout.New(f)
		for rest := data; len(rest) > 0; {
			n, err := w.Write(rest[:min(piece, len(rest))])
			if err != nil || n != min(piece, len(rest)) {
				t.Fatalf("in pieces of %d: %d bytes, %v", piece, n, err)
			}
			if rest = rest[n:]; writeouttest.Waiting(t, f) > writeout.Step {
				t.Fatalf("in pieces of %d: %d bytes wait", piece, writeouttest.Waiting(t, f))
			}
		}
		if got, err := os.ReadFile(f.Name()); err != nil || !bytes.Equal(got, data) {
			t.Errorf("in pieces of %d: the file has %d bytes, %v", piece, len(got), err)
		}
	}
}

func TestErrorsAreTold(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	if n, err := writeout.New(full).Write(make([]byte, 10)); n != 0 || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("on a full disk: %d bytes, %v", n, err)
	}
	closed := create(t)
	w := writeout.New(closed)
	if _, err := w.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	closed.Close()
	for range 2 {
		if n, err := w.Write(make([]byte, writeout.Step)); n != 0 || !errors.Is(err, os.ErrClosed) {
			t.Errorf("to a closed file: %d bytes, %v", n, err)
		}
	}
}

// TestWhatCannotBeWrittenOut: the final sync writes such files, as it did without this package.
func TestWhatCannotBeWrittenOut(t *testing.T) {
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	w := writeout.New(null)
	for range 3 {
		if n, err := w.Write(make([]byte, writeout.Step+1)); n != writeout.Step+1 || err != nil {
			t.Errorf("%d bytes, %v", n, err)
		}
	}
}
