package logstore

import (
	"errors"
	"os"
	"syscall"

	"github.com/hashicorp/raft"
	"golang.org/x/sys/unix"
)

// A Boltdb changes no page in place: it writes another one, and the old one becomes free. On a full
// volume it can write only as long as its own file has free pages, and a new file has none. A
// server started there could not be elected: an election writes its term, its vote, and an entry or
// two. So a file that is made, rebuilt or trimmed gets some free pages. No other program can take
// them.
//
// A WAL has the rest of its newest segment, which is allocated as a whole.
const (
	// keyRoom gets a value, which takes pages, and is then cleared, which frees them.
	keyRoom = "Room"
	// roomBytes is the space for some thousand small entries and values. Each takes a few pages
	// until the next one is written, and its own size for good.
	roomBytes = 1 << 20
	// leafEntries is how many entries may share a leaf regardless of their size (bbolt never splits
	// fewer). An append to the leaf rewrites all of them.
	leafEntries = 4
	// roomMost bounds the room.
	roomMost = 8 << 20
	// smallFile is not worth to be made smaller.
	smallFile = 1 << 20
)

// Trim fits the file of a Boltdb to its contents. If more than half of it is free it is made
// smaller. It never shrinks by itself, because deletions only make space within the file. If it has
// no space for the next entries, it gets some while the volume has it. Nothing is given up for
// that, such as a snapshot from the leader. A WAL that waits for its next segment makes it. Writes
// wait meanwhile. Without enough space nothing is taken.
func (l *Log) Trim() error {
	l.writing.lock()
	defer l.writing.unlock()
	return l.tellFull(l.once(l.trim))
}

func (l *Log) trim() error {
	if l.home == nil || l.home.rec.Kind != Boltdb {
		return nil // a WAL's need was met before this attempt, with the first write after a failure
	}
	info, err := os.Stat(l.home.path(l.home.rec))
	if err != nil {
		return err
	}
	room := l.room(l.last)
	if info.Size() >= smallFile && l.freePages()-room >= info.Size()/2 {
		return l.rebuild(l.last)
	}
	return l.takeRoom(l.store, room)
}

// freePages is how many bytes of the file of a Boltdb are free.
func (l *Log) freePages() int64 {
	bolt, ok := l.raw.(boltStore)
	if !ok {
		return 0
	}
	stats := bolt.Stats()
	return int64(stats.FreePageN+stats.PendingPageN) * int64(os.Getpagesize())
}

// furnish gives the file of a new log, which is in use already, its room. For want of it no file is
// refused: the next Trim tries again.
func (l *Log) furnish(fresh Store, kind Kind, last uint64) error {
	if kind != Boltdb {
		return nil
	}
	err := l.takeRoom(fresh, l.room(last))
	if isFull(err) {
		l.opts.Logger.Warn(
			"the disk has no room to spare for the log: where nothing at all is free, this server will not be elected after a start", "err", err)
		return nil
	}
	return err
}

// room is how many bytes the next small entries take behind the last one.
func (l *Log) room(last uint64) int64 { return roomBehind(l.store, last) }

func roomBehind(s Store, last uint64) int64 {
	bytes := int64(roomBytes)
	for i := range min(leafEntries, last) {
		var e raft.Log
		if s.GetLog(last-i, &e) != nil { // there are no more
			break
		}
		bytes += int64(len(e.Data))
	}
	return min(bytes, roomMost)
}

// takeRoom ensures that a Boltdb has that many bytes of contiguous free pages. A crash in between
// leaves a value that is not read, until the next time. If the volume has too little, its space is
// left for a snapshot, or for others.
func (l *Log) takeRoom(store Store, bytes int64) error {
	var fs unix.Statfs_t
	if unix.Statfs(l.home.dir, &fs) == nil && l.freePages()+int64(fs.Bavail)*fs.Bsize < bytes {
		return &os.PathError{Op: "take room on the volume of", Path: l.home.dir, Err: syscall.ENOSPC}
	}
	if err := store.Set([]byte(keyRoom), make([]byte, bytes)); err != nil {
		if isFull(err) { // the free pages are not in a row
			err = errors.Join(err, l.giveBack())
		}
		return err
	}
	return store.Set([]byte(keyRoom), nil)
}

// giveBack returns the space after the last page of a Boltdb's file to the volume: a write that
// found no space has made it longer, and nothing reads it.
func (l *Log) giveBack() error {
	path := l.home.path(l.home.rec)
	end, err := boltEnd(path)
	if err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil || info.Size() <= end {
		return err
	}
	err = unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, end, info.Size()-end)
	if errors.Is(err, unix.EOPNOTSUPP) { // then the log has it, page by page
		return nil
	}
	return err
}
