package raftstore_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"

	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/transport/memnet"
)

// filesWith returns the files below a directory that have the bytes.
func filesWith(t *testing.T, dir string, what []byte) (files []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(path)
		if bytes.Contains(data, what) {
			files = append(files, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// TestPurge: values that were replaced or deleted are gone from the disk, and all others stay, also
// over a restart. It may be done again at once.
func TestPurge(t *testing.T) {
	for _, kind := range []string{"boltdb", "wal"} {
		t.Run(kind, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dir := t.TempDir()
				open := func() *raftstore.Server {
					s, err := raftstore.Open(
						raftstore.Config{Dir: dir, Bootstrap: true, Stream: new(memnet.Network).Host("alone"),
							LogStore: kind})
					if err != nil {
						t.Fatal(err)
					}
					return s
				}
				s := open()
				rnd := rand.NewChaCha8([32]byte{1})
				secret := make([]byte, 64)
				rnd.Read(secret)
				write := func(key, value string) {
					t.Helper()
					if _, err := s.Commit(limited(t), put(key, value)); err != nil {
						t.Fatal(err)
					}
				}
				for i := range 30 {
					write(fmt.Sprintf("/%d", i), string(secret))
				}
				if err := s.Snapshot(); err != nil {
					t.Fatal(err)
				}
				for i := range 30 {
					write(fmt.Sprintf("/%d", i), "sealed")
				}
				write("/kept", "kept")
				if len(filesWith(t, dir, secret)) == 0 {
					t.Fatal("the search is no good")
				}
				for range 2 {
					if err := s.Compact(limited(t), s.Revision()); err != nil {
						t.Fatal(err)
					}
					if err := s.Purge(limited(t), s.Revision()); err != nil {
						t.Fatal(err)
					}
					if files := filesWith(t, dir, secret); len(files) > 0 {
						t.Errorf("it is in %q yet", files)
					}
				}
				write("/after", "after")
				for range 2 {
					if err := s.Close(); err != nil {
						t.Fatal(err)
					}
					s = open()
					for key, want := range map[string]string{"/0": "sealed", "/kept": "kept", "/after": "after"} {
						view, err := s.View(limited(t), raftstore.ViewOptions{})
						if err != nil {
							t.Fatal(err)
						}
						if item, _ := view.Get(key); string(item.Value) != want {
							t.Errorf("%s is %q", key, item.Value)
						}
					}
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}
