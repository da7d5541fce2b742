package snapdir

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/internal/atomicfile"
	"github.com/barque/barque/internal/writeout"
	"github.com/barque/barque/raftstore/faultpoint"
)

// sink takes a snapshot that is being written. It implements raft.SnapshotSink.
//
//	writing ──Close──▶ synced ──▶ renamed: it counts
//	   └──Cancel, Abandon or any error──▶ removed
type sink struct {
	store *Store
	dir   string // while it is written
	meta  raft.SnapshotMeta
	file  *os.File
	buf   *bufio.Writer
	ended bool

	mu        sync.Mutex // held to write, and to decide between the two:
	abandoned bool       // nothing more is written, and the file is empty
	sealed    bool       // the file is on disk and stays as it is
}

const bufferBytes = 256 << 10

func (k *sink) begin() error {
	if err := os.MkdirAll(k.dir, 0o700); err != nil {
		return err
	}
	file, err := os.OpenFile(filepath.Join(k.dir, stateFile), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	k.file, k.buf = file, bufio.NewWriterSize(writeout.New(file), bufferBytes)
	return nil
}

// ID implements raft.SnapshotSink.
func (k *sink) ID() string { return k.meta.ID }

// Write implements io.Writer.
func (k *sink) Write(b []byte) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.abandoned {
		return 0, ErrAbandoned
	}
	n, err := k.buf.Write(b)
	k.meta.Size += int64(n)
	return n, err
}

// abandon empties the file of a snapshot that is not finished. It returns whether that has made
// room.
func (k *sink) abandon() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.abandoned || k.sealed || k.meta.Size == int64(k.buf.Buffered()) {
		return false
	}
	k.abandoned = true
	return k.file.Truncate(0) == nil
}

// flush writes the buffer to the kernel.
func (k *sink) flush() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.abandoned {
		return ErrAbandoned
	}
	return k.buf.Flush()
}

// seal ends the time in which the snapshot may be abandoned.
func (k *sink) seal() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.abandoned {
		return ErrAbandoned
	}
	k.sealed = true
	return nil
}

// Close brings the snapshot to disk.
func (k *sink) Close() error {
	if k.ended {
		return nil
	}
	k.ended = true
	defer k.store.ended(k)
	if err := k.finish(); err != nil {
		return k.store.failed(k.dir, fmt.Errorf("write the snapshot %s: %w", k.dir, err))
	}
	k.store.opts.Fault.At(faultpoint.SnapshotAfterRename)
	k.store.reap()
	return nil
}

func (k *sink) finish() error {
	err := k.flush()
	if err == nil {
		k.store.opts.Fault.At(faultpoint.SnapshotBeforeSync)
		err = k.file.Sync()
	}
	if err == nil {
		err = k.seal()
	}
	if err = errors.Join(err, k.file.Close()); err != nil {
		return err
	}
	if err := k.writeMeta(); err != nil {
		return err
	}
	if err := atomicfile.SyncDir(k.dir); err != nil {
		return err
	}
	k.store.opts.Fault.At(faultpoint.SnapshotBeforeRename)
	return k.store.adopt(k)
}

func (k *sink) writeMeta() error {
	inner, err := json.Marshal(&k.meta)
	if err != nil {
		return err
	}
	data, err := json.Marshal(meta{Format: metaFormat, Sum: sum(inner), Meta: inner})
	if err != nil {
		return err
	}
	file, err := os.OpenFile(filepath.Join(k.dir, metaFile), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(append(data, '\n'))
	return errors.Join(err, file.Sync(), file.Close())
}

// Cancel implements raft.SnapshotSink: the snapshot is not wanted, or could not be written.
func (k *sink) Cancel() error {
	if k.ended {
		return nil
	}
	k.ended = true
	k.store.ended(k)
	flush := k.flush() // only to learn whether the disk is full: a full buffer remembers its error
	closed := k.file.Close()
	removed := k.store.discard(k.dir, flush)
	if isFull(flush) || errors.Is(flush, ErrAbandoned) {
		flush = nil // the writer has got it
	}
	return errors.Join(flush, closed, removed)
}

func isFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}
