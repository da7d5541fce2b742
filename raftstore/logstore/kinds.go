package logstore

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/metadb"
	"go.etcd.io/bbolt"
)

// openStore opens a log that exists, or makes an empty one.
func (l *Log) openStore(r record) (Store, error) {
	path := l.home.path(r)
	var store Store
	err := guarded(func() (err error) {
		if r.Kind == WAL {
			store, err = openWAL(path, cmp.Or(l.opts.segment, segmentSize))
		} else {
			store, err = openBolt(path)
		}
		return err
	})
	if err == nil {
		return store, nil
	}
	var damaged *CorruptError
	if errors.As(err, &damaged) || isFull(err) || errors.Is(err, fs.ErrPermission) {
		return nil, fmt.Errorf("open the log: %w", err)
	}
	return nil, corrupt(path, "", "%w", err)
}

func openBolt(path string) (Store, error) {
	if err := verifyBolt(path, false); err != nil {
		return nil, err
	}
	store, err := raftboltdb.New(raftboltdb.Options{
		Path: path,
		// The list of free pages is found again at start and not written with each entry.
		BoltOptions: &bbolt.Options{
			Timeout: time.Second, NoFreelistSync: true, FreelistType: bbolt.FreelistMapType,
		},
		MsgpackUseNewTimeFormat: true,
	})
	if err != nil {
		return nil, err
	}
	return boltStore{store}, nil
}

// boltStore is a Boltdb whose decoder does not expect damaged entries.
type boltStore struct{ *raftboltdb.BoltStore }

// GetLog implements raft.LogStore.
func (b boltStore) GetLog(index uint64, entry *raft.Log) error {
	return guarded(func() error { return b.BoltStore.GetLog(index, entry) })
}

// verifyBolt verifies the structure of a file of bbolt, if there is one. A crash may have cut one
// of its two meta pages, unless whole is set.
func verifyBolt(path string, whole bool) error {
	err := readBolt(path, whole, func(boltPlace, []byte, []byte) error { return nil })
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// segmentSize is how long a segment of a WAL may become. A new one is allocated as a whole, so it
// must fit into the reserve of a full disk.
const segmentSize = 16 << 20

// walStore is a WAL with the database beside it, which the WAL does not close.
type walStore struct {
	*wal.WAL
	meta *metadb.BoltMetaDB
}

func openWAL(dir string, segment int) (Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	// With an older state, a WAL would delete newer segments. So it gets none.
	if err := verifyBolt(filepath.Join(dir, metadb.FileName), true); err != nil {
		return nil, err
	}
	meta := new(metadb.BoltMetaDB)
	log, err := wal.Open(dir, wal.WithMetaStore(meta), wal.WithSegmentSize(segment),
		wal.WithLogger(hclog.NewNullLogger()))
	if err != nil {
		return nil, errors.Join(err, meta.Close())
	}
	return &walStore{log, meta}, nil
}

// GetLog implements raft.LogStore.
func (w *walStore) GetLog(index uint64, entry *raft.Log) error {
	err := guarded(func() error { return w.WAL.GetLog(index, entry) }) // its decoder trusts the lengths that it reads
	if errors.Is(err, wal.ErrNotFound) {
		return raft.ErrLogNotFound
	}
	return err
}

// Close implements Store.
func (w *walStore) Close() error { return errors.Join(w.WAL.Close(), w.meta.Close()) }

// place describes the position of an entry in the file of a log, as precisely as possible for a
// damaged one.
func place(kind Kind, path string, index uint64) (file, where string) {
	if kind == WAL {
		return walPlace(path, index)
	}
	where = fmt.Sprintf("entry %d", index)
	readBolt(path, false, func(at boltPlace, key, _ []byte) error {
		if at.Bucket == "/logs" && len(key) == 8 && binary.BigEndian.Uint64(key) == index {
			where = fmt.Sprintf("entry %d, %s", index, at)
		}
		return nil
	})
	return path, where
}

// Frames of a segment of a WAL. A frame has a header of eight bytes, the payload, and padding to a
// multiple of eight. The header's first byte is the type and its last four bytes are the length.
const (
	walHead   = 32
	walEntry  = 1
	walIndex  = 2
	walCommit = 3
)

// walPlace follows the frames of an entry's segment.
func walPlace(dir string, index uint64) (file, where string) {
	where = fmt.Sprintf("entry %d", index)
	segments, err := filepath.Glob(filepath.Join(dir, "*.wal"))
	if err != nil {
		return dir, where
	}
	slices.Sort(segments)
	file = dir
	base := uint64(0)
	for _, s := range segments {
		var first, id uint64
		if n, _ := fmt.Sscanf(filepath.Base(s), "%020d-%016x.wal", &first, &id); n == 2 && first <= index {
			file, base = s, first
		}
	}
	if base == 0 {
		return dir, where
	}
	offset, found := walOffset(file, index-base)
	if !found {
		return file, fmt.Sprintf("entry %d: what can be read ends at offset %d", index, offset)
	}
	return file, fmt.Sprintf("entry %d, offset %d", index, offset)
}

// walOffset returns the position of the entry with a number in a segment, or the end of the
// segment's frames.
func walOffset(path string, number uint64) (offset int64, found bool) {
	file, err := os.Open(path)
	if err != nil {
		return 0, false
	}
	defer file.Close()
	offset = walHead
	for {
		var head [8]byte
		if _, err := file.ReadAt(head[:], offset); err != nil {
			return offset, false
		}
		length := int64(0)
		switch head[0] {
		case walEntry:
			if number == 0 {
				return offset, true
			}
			number--
			length = int64(binary.LittleEndian.Uint32(head[4:]))
		case walIndex:
			length = int64(binary.LittleEndian.Uint32(head[4:]))
		case walCommit:
		default:
			return offset, false
		}
		offset += 8 + (length+7)&^7
	}
}
