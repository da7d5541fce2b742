package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

// Lines that are added are printed once, those of before are not, and a line without its end waits
// for it.
func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		write := func(name, text string, flags int) {
			t.Helper()
			if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755); err != nil {
				t.Fatal(err)
			}
			f, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_WRONLY|flags, 0o644)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := f.WriteString(text); err != nil {
				t.Fatal(err)
			}
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
		}
		write("a/0.log", "before\n", 0)
		ctx, cancel := context.WithCancel(t.Context())
		var out bytes.Buffer
		done := make(chan error, 1)
		go func() { done <- follow(ctx, dir, &out) }()
		pause := func() { time.Sleep(2 * time.Second) }
		pause()
		write("a/0.log", "one\ntw", os.O_APPEND)
		write("b/0.log", "new\n", 0)
		write("b/0.log.20261125", "of before\n", 0)
		pause()
		write("a/0.log", "o\n", os.O_APPEND)
		pause()
		write("a/0.log", "again\n", os.O_TRUNC)
		pause()
		write("a/0.log", "more\n", os.O_APPEND)
		pause()
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if want := "a: one\nb: new\na: two\na: again\na: more\n"; out.String() != want {
			t.Errorf("%q, want %q", out.String(), want)
		}
	})
}
