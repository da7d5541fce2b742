package snapdir

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hashicorp/raft"
	"golang.org/x/sys/unix"

	"github.com/barque/barque/internal/needs"
	"github.com/barque/barque/internal/writeout"
	"github.com/barque/barque/internal/writeout/writeouttest"
	"github.com/barque/barque/raftstore/faultpoint"
	"github.com/barque/barque/raftstore/snapshot"
)

func write(t *testing.T, s *Store, index uint64, text string) string {
	t.Helper()
	sink, err := s.Create(1, index, 2, raft.Configuration{}, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(sink, text); err != nil {
		t.Fatal(err)
	}
	if err := sink.Close(); err != nil {
		t.Fatal(err)
	}
	return sink.ID()
}

func indexes(t *testing.T, s *Store) (all []uint64) {
	t.Helper()
	list, err := s.List()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range list {
		all = append(all, m.Index)
	}
	return all
}

// TestKept: the newest ones stay; one that was cancelled, or cut by a crash, leaves nothing.
func TestKept(t *testing.T) {
	dir := t.TempDir()
	var points []string
	var done []uint64
	opts := Options{Dir: dir, Keep: 2, Fault: func(name string) { points = append(points, name) },
		Done: func(index uint64) error { done = append(done, index); return nil }}
	s, err := Open(opts)
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint64(4) {
		write(t, s, 10+i, strings.Repeat("x", int(i)*1000))
	}
	if got := indexes(t, s); len(got) != 2 || got[0] != 13 || got[1] != 12 {
		t.Errorf("there are %d", got)
	}
	if len(done) != 4 ||
		strings.Join(points[:3], " ") != faultpoint.SnapshotBeforeSync+" "+faultpoint.SnapshotBeforeRename+" "+
			faultpoint.SnapshotAfterRename {
		t.Errorf("done %d, points %q", done, points)
	}
	sink, err := s.Create(1, 20, 2, raft.Configuration{}, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := sink.Cancel(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Create(1, 21, 2, raft.Configuration{}, 1, nil); err != nil { // and the process dies
		t.Fatal(err)
	}
	if s, err = Open(opts); err != nil {
		t.Fatal(err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(left) != 2 {
		t.Errorf("%q is left, %v", left, err)
	}
	meta, state, err := s.Open(mustList(t, s)[0].ID)
	if err != nil {
		t.Fatal(err)
	}
	defer state.Close()
	if text, err := io.ReadAll(state); err != nil || len(text) != 3000 || meta.Size != 3000 || meta.Term != 2 {
		t.Errorf("%d bytes, %+v, %v", len(text), meta, err)
	}
}

func mustList(t *testing.T, s *Store) []*raft.SnapshotMeta {
	t.Helper()
	list, err := s.List()
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// TestDamagedDescription: a snapshot whose description was changed is not listed.
func TestDamagedDescription(t *testing.T) {
	s, err := Open(Options{Dir: t.TempDir(), Keep: 2})
	if err != nil {
		t.Fatal(err)
	}
	write(t, s, 1, "one")
	id := write(t, s, 2, "two")
	path := filepath.Join(s.path(id), metaFile)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(data), `"Index":2`, `"Index":3`, 1)),
		0o600); err != nil {
		t.Fatal(err)
	}
	if got := indexes(t, s); len(got) != 1 || got[0] != 1 {
		t.Errorf("there are %d", got)
	}
	if _, err := os.Stat(s.path(id) + damaged); err != nil {
		t.Error(err)
	}
}

// TestSnapshotOfAnotherProgram: one of a newer format is left alone, and so is one that cannot be
// read for a reason that is not its own.
func TestSnapshotOfAnotherProgram(t *testing.T) {
	s, err := Open(Options{Dir: t.TempDir(), Keep: 2})
	if err != nil {
		t.Fatal(err)
	}
	id := write(t, s, 1, "one")
	path := filepath.Join(s.path(id), metaFile)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(data), `"format":1`, `"format":2`, 1)),
		0o600); err != nil {
		t.Fatal(err)
	}
	if list, err := s.List(); !errors.Is(err, ErrVersion) {
		t.Errorf("%d are listed, %v", len(list), err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("it was not left where it was: %v", err)
	}
	for err, want := range map[error]bool{
		syscall.EMFILE: false, syscall.EACCES: false, snapshot.ErrVersion: false, snapshot.ErrCorrupt: true,
		syscall.EIO: true, os.ErrNotExist: true,
	} {
		if Damaged(&os.PathError{Op: "open", Path: path, Err: err}) != want {
			t.Errorf("%v: a snapshot is taken for damaged: %t", err, !want)
		}
	}
}

// TestAbandon: a snapshot that is being written gives its room back when that is wanted, and leaves
// nothing; one that is on disk does not.
func TestAbandon(t *testing.T) {
	dir := t.TempDir()
	var s *Store
	abandonAt := ""
	var freed bool
	s, err := Open(Options{Dir: dir, Keep: 2, Fault: func(name string) {
		if name == abandonAt {
			freed = s.Abandon()
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	if s.Abandon() {
		t.Error("there is nothing to abandon")
	}
	write(t, s, 10, "the one before")
	begin := func(index uint64) raft.SnapshotSink {
		t.Helper()
		sink, err := s.Create(1, index, 2, raft.Configuration{}, 1, nil)
		if err != nil {
			t.Fatal(err)
		}
		return sink
	}
	fill := func(sink raft.SnapshotSink) {
		t.Helper()
		if _, err := io.WriteString(sink, strings.Repeat("x", 4*bufferBytes)); err != nil {
			t.Fatal(err)
		}
	}
	nothingLeft := func(what string) {
		t.Helper()
		if left, err := filepath.Glob(filepath.Join(dir, "*")); err != nil || len(left) != 1 {
			t.Errorf("%s: %q is there, %v", what, left, err)
		}
	}

	sink := begin(11)
	if s.Abandon() {
		t.Error("one that has taken no room was abandoned")
	}
	fill(sink)
	if !s.Abandon() {
		t.Error("there was room to give back")
	}
	if info, err := os.Stat(filepath.Join(dir, sink.ID()+temporary, stateFile)); err != nil || info.Size() != 0 {
		t.Errorf("the room was not given back at once: %+v, %v", info, err)
	}
	if _, err := io.WriteString(sink, "more"); !errors.Is(err, ErrAbandoned) {
		t.Errorf("it is written on: %v", err)
	}
	if err := sink.Cancel(); err != nil {
		t.Error(err)
	}
	nothingLeft("cancelled")
	if s.Abandon() {
		t.Error("one that has ended was abandoned")
	}

	sink, abandonAt = begin(12), faultpoint.SnapshotBeforeSync
	fill(sink)
	if err := sink.Close(); !errors.Is(err, ErrAbandoned) || !freed {
		t.Errorf("abandoned (%v) while it is synced: %v", freed, err)
	}
	nothingLeft("abandoned while it is synced")

	sink, abandonAt = begin(13), faultpoint.SnapshotBeforeRename
	fill(sink)
	if err := sink.Close(); err != nil || freed {
		t.Errorf("abandoned (%v) when it was on disk: %v", freed, err)
	}
	if got := indexes(t, s); len(got) != 2 || got[0] != 13 {
		t.Errorf("there are %d", got)
	}
}

// TestWhatCannotBeRemoved: a part of an abandoned snapshot that stays is reported, and the next one
// removes it. A snapshot that is being written stays.
func TestWhatCannotBeRemoved(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(Options{Dir: dir, Keep: 2})
	if err != nil {
		t.Fatal(err)
	}
	begin := func(index uint64) *sink {
		t.Helper()
		k, err := s.Create(1, index, 2, raft.Configuration{}, 1, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(k, strings.Repeat("x", 4*bufferBytes)); err != nil {
			t.Fatal(err)
		}
		return k.(*sink)
	}
	left := begin(10)
	if !s.Abandon() {
		t.Fatal("nothing was abandoned")
	}
	other := begin(11)
	volume := filepath.Join(left.dir, "volume")
	if err := os.Mkdir(volume, 0o700); err != nil {
		t.Fatal(err)
	}
	needs.NoError(t, unix.Mount("tmpfs", volume, "tmpfs", 0, ""), "a directory that cannot be removed")
	t.Cleanup(func() { unix.Unmount(volume, unix.MNT_DETACH) })
	if err := left.Cancel(); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("what cannot be removed: %v", err)
	}
	if err := unix.Unmount(volume, 0); err != nil {
		t.Fatal(err)
	}
	write(t, s, 12, "the next one")
	for k, there := range map[*sink]bool{left: false, other: true} {
		if _, err := os.Stat(k.dir); (err == nil) != there {
			t.Errorf("%s: %v", k.dir, err)
		}
	}
	if err := other.Cancel(); err != nil {
		t.Error(err)
	}
}

// TestALargeSnapshotDoesNotWaitForItsSync: the log, which is on the same disk, would wait with it.
func TestALargeSnapshotDoesNotWaitForItsSync(t *testing.T) {
	dir := t.TempDir()
	writeouttest.Disk(t, dir)
	s, err := Open(Options{Dir: dir, Keep: 2})
	if err != nil {
		t.Fatal(err)
	}
	created, err := s.Create(1, 10, 2, raft.Configuration{}, 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer created.Cancel()
	block := make([]byte, 100<<10)
	for range 80 {
		if _, err := created.Write(block); err != nil {
			t.Fatal(err)
		}
		if n := writeouttest.Waiting(t, created.(*sink).file); n > writeout.Step {
			t.Fatalf("%d bytes wait", n)
		}
	}
}
