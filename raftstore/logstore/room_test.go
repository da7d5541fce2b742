package logstore

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"golang.org/x/sys/unix"

	"github.com/barque/barque/internal/atomicfile"
	"github.com/barque/barque/internal/needs"
)

// onDisk is how many bytes of its volume the file of a log has.
func onDisk(t *testing.T, l *Log) int64 {
	t.Helper()
	info, err := os.Stat(l.home.path(l.home.rec))
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Blocks * 512
}

// TestRoomOfItsOwn: the writes of a server that is elected, and some deletions after that, fit into
// the file that it has, whether that was made anew or not, and however large its last entries are.
// Where not a byte is free there is no other room.
func TestRoomOfItsOwn(t *testing.T) {
	random := rand.NewChaCha8([32]byte{})
	for name, c := range map[string]struct {
		entries, cut uint64
		bytes        int
		anew         bool
	}{
		"small entries":                  {3000, 0, 500, false},
		"small entries, made anew":       {9000, 8984, 500, true},
		"large entries":                  {20, 2, 700 << 10, false},
		"large entries, most of them go": {40, 36, 700 << 10, true},
		"nothing in it":                  {0, 0, 0, false},
		"the largest entries":            {4, 0, 1536 << 10, false},
	} {
		t.Run(name, func(t *testing.T) {
			opts := Options{Dir: t.TempDir(), Timeout: time.Hour}
			l := open(t, opts)
			add := func(index uint64, size int) {
				t.Helper()
				e := &raft.Log{Index: index, Term: 1, Data: make([]byte, size)}
				random.Read(e.Data)
				if err := l.StoreLog(e); err != nil {
					t.Fatal(err)
				}
			}
			if c.entries > 100 { // at once: one by one they would leave free pages
				var batch []*raft.Log
				for i := range c.entries {
					batch = append(batch,
						&raft.Log{Index: i + 1, Term: 1, Data: bytes.Repeat([]byte{byte(i)}, c.bytes)})
				}
				if err := l.StoreLogs(batch); err != nil {
					t.Fatal(err)
				}
			} else {
				for i := range c.entries {
					add(i+1, c.bytes)
				}
			}
			if c.cut > 0 {
				if err := errors.Join(l.Snapshotted(c.cut), l.DeleteRange(1, c.cut)); err != nil {
					t.Fatal(err)
				}
			}
			before := l.home.rec.Generation
			if err := l.Trim(); err != nil {
				t.Fatal(err)
			}
			if anew := l.home.rec.Generation != before; anew != c.anew {
				t.Errorf("it was made anew: %v", anew)
			}
			shut(t, l)
			opts.Covered = c.cut
			l = open(t, opts)
			has := onDisk(t, l)
			if err := errors.Join(l.SetUint64([]byte(keyCurrentTerm), 7), l.SetUint64([]byte(keyVoteTerm), 7),
				l.Set([]byte(keyVote), []byte("somebody"))); err != nil {
				t.Fatal(err)
			}
			for i := range uint64(100) {
				add(c.entries+1+i, 300)
			}
			if now := onDisk(t, l); now > has {
				t.Errorf("the file had %d bytes of the volume and took %d more", has, now-has)
			}
			if last, err := l.LastIndex(); err != nil || last != c.entries+100 {
				t.Errorf("the log ends with entry %d, %v", last, err)
			}
			shut(t, l)
		})
	}
}

// TestANewLogHasRoom: a log that was just made has room of its own, before the first trim.
func TestANewLogHasRoom(t *testing.T) {
	l := open(t, Options{Dir: t.TempDir(), Timeout: time.Hour})
	defer shut(t, l)
	has := onDisk(t, l)
	if err := l.SetUint64([]byte(keyCurrentTerm), 1); err != nil {
		t.Fatal(err)
	}
	for i := range uint64(100) {
		store(t, l, 1+i, 1+i)
	}
	if now := onDisk(t, l); now > has {
		t.Errorf("the file had %d bytes of the volume and took %d more", has, now-has)
	}
}

// TestWhoMakesRoom: for a write all is given up that takes room, one after the other; for room to
// spare nothing is.
func TestWhoMakesRoom(t *testing.T) {
	var disk error
	asked, helps := 0, 2
	l := open(t, Options{
		Dir: t.TempDir(), Timeout: time.Hour, Wrap: func(s Store) Store { return sickDisk{s, &disk} },
		MakeRoom: func() bool {
			if asked++; asked == helps {
				disk = nil
			}
			return true
		},
	})
	defer shut(t, l)
	store(t, l, 1, 5)
	disk = syscall.ENOSPC
	if err := l.Trim(); !errors.Is(err, ErrFull) || asked > 0 {
		t.Errorf("room to spare: %v, and it was asked for %d times", err, asked)
	}
	if err := l.StoreLog(entry(6)); err != nil || asked != helps {
		t.Errorf("a write: %v, and room was asked for %d times", err, asked)
	}
	disk, asked, helps = syscall.ENOSPC, 0, 100
	if err := l.StoreLog(entry(7)); !errors.Is(err, ErrFull) || asked != roomTries {
		t.Errorf("a write for which there is never enough: %v, and room was asked for %d times", err, asked)
	}
	expect(t, l, 1, 6)
}

// TestNoRoomForTheRoom: a log that is made anew on a disk that has nothing to spare is the log all
// the same.
func TestNoRoomForTheRoom(t *testing.T) {
	opts := Options{Dir: t.TempDir(), Timeout: time.Hour}
	l := open(t, opts)
	defer shut(t, l)
	store(t, l, 1, 50)
	full := &os.PathError{Op: "write", Path: "log", Err: syscall.ENOSPC}
	if err := l.furnish(roomless{l.store, full}, Boltdb, 50); err != nil {
		t.Errorf("a disk without room: %v", err)
	}
	full.Err = syscall.EIO
	if err := l.furnish(roomless{l.store, full}, Boltdb, 50); !errors.Is(err, syscall.EIO) {
		t.Errorf("a disk that fails: %v", err)
	}
	expect(t, l, 1, 50)
}

// roomless is a Store on a disk that takes no more values.
type roomless struct {
	Store
	err error
}

func (r roomless) Set([]byte, []byte) error { return r.err }

// TestRoomThatIsNotThere: a log is made anew without room to spare when the record of the switch
// would not fit otherwise: that is how a full disk becomes less full.
func TestRoomThatIsNotThere(t *testing.T) {
	l := open(t, Options{Dir: t.TempDir(), Timeout: time.Hour})
	defer func() { shut(t, l) }()
	store(t, l, 1, 10)
	fits := int64(roomBytes) / 2 // the room for the new file; the rest of the disk is full
	l.home.put = func(path string, data []byte, mode os.FileMode) error {
		next := record{Kind: Boltdb, Generation: l.home.rec.Generation + 1}
		info, err := os.Stat(l.home.path(next))
		if err != nil {
			return err
		}
		if info.Sys().(*syscall.Stat_t).Blocks*512 > fits {
			return &os.PathError{Op: "write", Path: path, Err: syscall.ENOSPC}
		}
		return atomicfile.Write(path, data, mode)
	}
	before := l.home.rec.Generation
	if err := l.rebuild(10); err != nil {
		t.Fatal(err)
	}
	if l.home.rec.Generation == before {
		t.Error("the log is the one of before")
	}
	expect(t, l, 1, 10)
	if err := l.StoreLog(entry(11)); err != nil {
		t.Error(err)
	}
}

// volume mounts a file system of so many bytes.
func volume(t *testing.T, bytes int64) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprintf("size=%d", bytes)); err != nil {
		if os.Geteuid() == 0 && !errors.Is(err, unix.EPERM) {
			t.Fatal(err)
		}
		needs.NoError(t, err, "the room of a log on a volume that is full")
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

// available is how many bytes of a volume are free.
func available(t *testing.T, dir string) int64 {
	t.Helper()
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		t.Fatal(err)
	}
	return int64(fs.Bavail) * fs.Bsize
}

// fill takes all that a volume has, until the file is removed.
func fill(t *testing.T, dir string, but int64) (ballast string) {
	t.Helper()
	f, err := os.Create(filepath.Join(dir, "ballast"))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(unix.Fallocate(int(f.Fd()), 0, 0, available(t, dir)-but), f.Close()); err != nil {
		t.Fatal(err)
	}
	return f.Name()
}

// TestNotAByteFree: a log whose volume has nothing left takes terms, votes and many entries in the
// room that it has, says so when that is used up, keeps what it has taken, is opened again, votes
// still, and goes on when there is room.
func TestNotAByteFree(t *testing.T) {
	forEachKind(t, func(t *testing.T, opts Options) {
		dir := volume(t, 8<<20)
		opts.Dir, opts.segment = filepath.Join(dir, "log"), 256<<10
		l := open(t, opts)
		defer func() { shut(t, l) }()
		store(t, l, 1, 5)
		ballast := fill(t, dir, 0)
		term := uint64(3)
		votes := func() {
			t.Helper()
			term++
			err := errors.Join(l.SetUint64([]byte(keyCurrentTerm), term), l.SetUint64([]byte(keyVoteTerm), term),
				l.Set([]byte(keyVote), []byte("somebody")))
			if on, e := l.GetUint64([]byte(keyVoteTerm)); err != nil || e != nil || on != term || l.pending() != 0 {
				t.Errorf("a vote in term %d: %v; it is %d, %v, and term %d is not on disk", term, err, on, e,
					l.pending())
			}
		}
		votes()
		last := uint64(5)
		for ; last < 5000; last++ {
			if err := l.StoreLog(entry(last + 1)); errors.Is(err, ErrFull) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
		}
		if last < 200 || last == 5000 {
			t.Errorf("%d entries were taken", last)
		}
		votes()
		shut(t, l)
		l = open(t, opts)
		expect(t, l, 1, last)
		votes()
		if err := l.StoreLog(entry(last + 1)); !errors.Is(err, ErrFull) {
			t.Errorf("an entry for which there is no room: %v", err)
		}
		if err := os.Remove(ballast); err != nil {
			t.Fatal(err)
		}
		store(t, l, last+1, last+50)
		expect(t, l, 1, last+50)
	})
}

// takings counts how often a Store is asked for room.
type takings struct {
	Store
	n *int
}

func (s takings) Set(key, value []byte) error {
	if string(key) == keyRoom && value != nil {
		*s.n++
	}
	return s.Store.Set(key, value)
}

// TestTooLittleRoom: of a volume that has too little room for a log, nothing is taken. Its room
// may be enough for a snapshot, which is the way out. Where it is seen to be too little not even
// for a moment.
func TestTooLittleRoom(t *testing.T) {
	for name, c := range map[string]struct {
		own   int64 // bytes of free pages that the log has
		tries int
	}{
		"none of its own":                {0, 0},
		"enough with its own, in pieces": {roomBytes - 200<<10, 1},
	} {
		t.Run(name, func(t *testing.T) {
			dir := volume(t, 8<<20)
			tries := 0
			opts := Options{Dir: filepath.Join(dir, "log"), Timeout: time.Hour,
				Wrap: func(s Store) Store { return takings{s, &tries} }}
			l := open(t, opts)
			defer func() { shut(t, l) }()
			var used []*raft.Log // of the room that it was made with
			for taken := int64(0); taken < roomBytes-c.own; taken += 4 << 10 {
				used = append(used,
					&raft.Log{Index: uint64(len(used) + 1), Term: 1, Data: bytes.Repeat([]byte("x"), 4<<10)})
			}
			if err := l.StoreLogs(used); err != nil {
				t.Fatal(err)
			}
			last := uint64(len(used))
			ballast := fill(t, dir, 600<<10)
			before := available(t, dir)
			if err := l.Trim(); !errors.Is(err, ErrFull) || tries != c.tries {
				t.Errorf("with %d bytes free: %v, after %d tries", before, err, tries)
			}
			if left := available(t, dir); left != before {
				t.Errorf("of %d free bytes %d are left", before, left)
			}
			if err := l.StoreLog(entry(last + 1)); err != nil {
				t.Error(err)
			}
			if err := os.Remove(ballast); err != nil {
				t.Fatal(err)
			}
			if err := l.Trim(); err != nil {
				t.Errorf("with room again: %v", err)
			}
			shut(t, l)
			l = open(t, opts)
			if end, err := l.LastIndex(); err != nil || end != last+1 {
				t.Errorf("the log ends with entry %d, %v", end, err)
			}
			for _, want := range used {
				got := new(raft.Log)
				if err := l.GetLog(want.Index, got); err != nil || !bytes.Equal(got.Data, want.Data) {
					t.Errorf("entry %d is another one: %v", want.Index, err)
				}
			}
		})
	}
}
