package backup_test

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/barque/barque/raftstore/backup"
)

// writerDir has the directory in which this test's own binary, started once more, begins a backup
// that it never finishes.
const writerDir = "BARQUE_TEST_UNFINISHED_BACKUP"

func TestMain(m *testing.M) {
	if dir := os.Getenv(writerDir); dir != "" {
		save := backup.SaveIn
		if filepath.Ext(dir) != "" {
			save = backup.Save
		}
		_, err := save(dir, nil, func(w io.Writer) error {
			if _, err := w.Write(make([]byte, 1)); err != nil { // into the buffer: the file is empty
				return err
			}
			fmt.Println("writing")
			_, err := io.Copy(io.Discard, os.Stdin) // until it is killed
			return err
		})
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// entries returns the names in a directory.
func entries(t *testing.T, dir string) (names []string) {
	t.Helper()
	all, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		names = append(names, e.Name())
	}
	return names
}

// age makes the files of a directory look as if they had not been written for a while, and touch as
// if they just had been.
func age(t *testing.T, dir string)   { written(t, dir, time.Now().Add(-time.Hour)) }
func touch(t *testing.T, dir string) { written(t, dir, time.Now()) }

func written(t *testing.T, dir string, at time.Time) {
	t.Helper()
	for _, name := range entries(t, dir) {
		if err := os.Chtimes(filepath.Join(dir, name), at, at); err != nil {
			t.Fatal(err)
		}
	}
}

// TestAKilledSaveLeavesNothingForLong kills a process that writes a backup, of either kind.
// While it lives its file stays, and so it does right after that: where locks are those of one
// machine it may be another one's. Some time later the next backup, and Prune, remove it. Files
// of others stay.
func TestAKilledSaveLeavesNothingForLong(t *testing.T) {
	v := view(t, filled(t, 20, 9))
	for name, next := range map[string]func(dir string) error{
		"prune": func(dir string) error { return backup.Prune(dir, "", 1) },
		"the next save": func(dir string) error {
			_, err := backup.Save(filepath.Join(dir, "kept.backup"), nil,
				func(w io.Writer) error { _, err := backup.Write(w, source(v), nil); return err })
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for _, other := range []string{"download-1.unfinished", "kept.backup"} {
				if err := os.WriteFile(filepath.Join(dir, other), []byte("something else"), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			before := entries(t, dir)
			for _, where := range []string{dir, filepath.Join(dir, "by-hand.backup")} {
				writer := exec.Command(os.Args[0])
				writer.Env = append(os.Environ(), writerDir+"="+where)
				in, err := writer.StdinPipe()
				if err != nil {
					t.Fatal(err)
				}
				defer in.Close()
				out, err := writer.StdoutPipe()
				if err != nil {
					t.Fatal(err)
				}
				if err := writer.Start(); err != nil {
					t.Fatal(err)
				}
				word := make([]byte, len("writing"))
				if _, err := io.ReadFull(out, word); err != nil || string(word) != "writing" {
					t.Fatalf("%q, %v", word, err)
				}
				age(t, dir)
				if err := next(dir); err != nil {
					t.Fatal(err)
				}
				if now := entries(t, dir); len(now) != len(before)+1 {
					t.Errorf("while it is written: %q", now)
				}
				if err := writer.Process.Kill(); err != nil {
					t.Fatal(err)
				}
				if err := writer.Wait(); err == nil {
					t.Error("it was not killed")
				}
				touch(t, dir)
				if err := next(dir); err != nil {
					t.Fatal(err)
				}
				if now := entries(t, dir); len(now) != len(before)+1 {
					t.Errorf("right after it was written: %q", now)
				}
				age(t, dir)
				if err := next(dir); err != nil {
					t.Fatal(err)
				}
				if now := entries(t, dir); !slices.Equal(now, before) {
					t.Errorf("what is left: %q, and before there was %q", now, before)
				}
			}
		})
	}
}

// TestABackupIsNeverEmpty: a backup has its name from when it is whole, not before. Otherwise a
// removal of old ones at the wrong moment would count one that may never become one.
func TestABackupIsNeverEmpty(t *testing.T) {
	dir := t.TempDir()
	v := view(t, filled(t, 20, 9))
	saved := make(chan error)
	go func() {
		defer close(saved)
		for range 100 {
			if _, err := backup.SaveIn(dir, nil,
				func(w io.Writer) error { _, err := backup.Write(w, source(v), nil); return err }); err != nil {
				saved <- err
				return
			}
		}
	}()
	empty := ""
	for done := false; !done; {
		select {
		case err := <-saved:
			if err != nil {
				t.Fatal(err)
			}
			done = true
		default:
		}
		all, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range all {
			if info, err := e.Info(); err == nil && info.Size() == 0 && filepath.Ext(e.Name()) == ".backup" {
				empty = e.Name()
			}
		}
	}
	if empty != "" {
		t.Errorf("%s was empty", empty)
	}
	if files, err := backup.List(dir); err != nil || len(files) != 100 {
		t.Errorf("%d files, %v", len(files), err)
	}
}
