package atomicdir

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

func read(t *testing.T, dir string) map[string]string {
	t.Helper()
	got := map[string]string{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "..") {
			continue
		}
		walk(t, filepath.Join(dir, e.Name()), e.Name(), got)
	}
	return got
}

func walk(t *testing.T, path, name string, into map[string]string) {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if !info.IsDir() {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		into[name] = string(data)
		return
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		walk(t, filepath.Join(path, e.Name()), name+"/"+e.Name(), into)
	}
}

// TestReplaceShowsExactlyThePayload replaces random payloads by random ones: the newest can be
// read, whatever was there, and one version is kept.
func TestReplaceShowsExactlyThePayload(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 7))
	dir := t.TempDir()
	for range 100 {
		payload, want := Payload{}, map[string]string{}
		for _, name := range []string{"a", "b", "deep/c", "deep/er/d", "e"} {
			if rng.IntN(2) == 0 {
				want[name] = fmt.Sprint(rng.IntN(3))
				payload[name] = File{Data: []byte(want[name]), Mode: 0o640}
			}
		}
		if err := Replace(dir, payload, nil); err != nil {
			t.Fatal(err)
		}
		if got := read(t, dir); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("shows %v, want %v", got, want)
		}
		if versions, _ := filepath.Glob(filepath.Join(dir, dirName+"*")); len(versions) != 1 {
			t.Fatalf("versions: %v", versions)
		}
	}
}

func TestReplaceTouchesNothingThatIsTheSame(t *testing.T) {
	dir := t.TempDir()
	payload := Payload{"k": {Data: []byte("v"), Mode: 0o644}}
	if err := Replace(dir, payload, nil); err != nil {
		t.Fatal(err)
	}
	before, _ := os.Readlink(filepath.Join(dir, dataLink))
	if err := Replace(dir, payload, nil); err != nil {
		t.Fatal(err)
	}
	if after, _ := os.Readlink(filepath.Join(dir, dataLink)); after != before {
		t.Error("a new version was written")
	}
	payload["k"] = File{Data: []byte("v"), Mode: 0o600}
	if err := Replace(dir, payload, nil); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(filepath.Join(dir, "k")); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v %v", info.Mode(), err)
	}
}

func TestReplaceRefusesToLeaveTheVolume(t *testing.T) {
	for _, path := range []string{"../x", "/etc/x", "a/../../x", "..data"} {
		if err := Replace(t.TempDir(), Payload{path: {}}, nil); err == nil {
			t.Errorf("%q was written", path)
		}
	}
}

// A reader that keeps looking sees both files of one version, never of two.
func TestReplaceIsAtomic(t *testing.T) {
	dir := t.TempDir()
	write := func(n int) {
		text := []byte(fmt.Sprint(n))
		if err := Replace(dir, Payload{"a": {Data: text, Mode: 0o644}, "b": {Data: text, Mode: 0o644}},
			nil); err != nil {
			t.Error(err)
		}
	}
	write(0)
	var writer sync.WaitGroup
	done := make(chan struct{})
	writer.Go(func() {
		defer close(done)
		for n := range 200 {
			write(n)
		}
	})
	for running := true; running; {
		select {
		case <-done:
			running = false
		default:
		}
		data, err := os.OpenRoot(filepath.Join(dir, dataLink))
		if errors.Is(err, os.ErrNotExist) {
			continue // it was replaced between the link and the directory
		}
		if err != nil {
			t.Fatal(err)
		}
		a, errA := data.ReadFile("a")
		b, errB := data.ReadFile("b")
		data.Close()
		if errA == nil && errB == nil && string(a) != string(b) {
			t.Fatalf("a is of version %s, b of %s", a, b)
		}
	}
	writer.Wait()
}
