package damage

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestTearSnapshot: the newest snapshot that is finished, and was not set aside, is cut off, and no
// other file is touched.
func TestTearSnapshot(t *testing.T) {
	dir, rnd := t.TempDir(), rand.New(rand.NewPCG(1, 2))
	if _, err := TearSnapshot(rnd, dir); !errors.Is(err, ErrNothing) {
		t.Errorf("of no snapshots: %v", err)
	}
	const size = 1000
	now := time.Now()
	for age, name := range []string{"2-9-4.tmp", "2-8-3.damaged", "2-7-2", "1-5-1"} {
		path := filepath.Join(dir, "snapshots", name, "state.bin")
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, make([]byte, size), 0o600),
			os.Chtimes(path, now, now.Add(-time.Duration(age)*time.Minute))); err != nil {
			t.Fatal(err)
		}
	}
	note, err := TearSnapshot(rnd, dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"2-9-4.tmp", "2-8-3.damaged", "2-7-2", "1-5-1"} {
		info, err := os.Stat(filepath.Join(dir, "snapshots", name, "state.bin"))
		if err != nil {
			t.Fatal(err)
		}
		if torn := info.Size() < size; torn != (name == "2-7-2") {
			t.Errorf("%s has %d bytes; it tells %q", name, info.Size(), note)
		}
	}
}
