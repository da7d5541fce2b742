package node

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/barque/barque/internal/atomicfile"
)

// The record of presence on the disk. A server that dies leaves one that is up to presenceWrite and a look old, and was not in touch after
// that, certainly. So it must not be left older than that by a server that lives: it is written on a full disk as well, on which Raft may go on; and when
// it cannot be written twice in a row, it is taken away, which always finds room. What a server then does not live to write down, nobody
// takes for a time in which it was not in touch: there is no record of it. Only where the disk hangs, or refuses everything, it stays
// as it is; there, Raft's log is not written either.

const (
	presenceName = "presence.json"
	// presenceFormat is that of the file. Format 1 did not know of clocks that are set.
	presenceFormat = 2
	// presenceBlock is what the size of the file is a multiple of, so that it hardly ever grows: more than presenceKept spans take.
	presenceBlock = 16 << 10
	// presenceWarn is how often it is said that it cannot be written.
	presenceWarn = time.Minute
)

// presenceRecord is what stands in the file.
type presenceRecord struct {
	Format  int    `json:"format"`
	Cluster string `json:"cluster"`
	Spans   []span `json:"spans"` // oldest first
}

// presenceFile is the record of a directory. There are two files that change places: the one that is not the record is written to,
// and has its room already.
type presenceFile struct {
	path string // empty in memory
	// settled tells that the last change of places is on the disk. Before that, the spare file may be the record after a loss of power.
	settled bool
}

func presenceIn(cfg *Config) presenceFile {
	if cfg.InMemory {
		return presenceFile{}
	}
	return presenceFile{path: filepath.Join(cfg.Dir, presenceName)}
}

func (f *presenceFile) spare() string { return f.path + ".spare" }

func (f *presenceFile) read(cluster string, logger *slog.Logger) ([]span, error) {
	if f.path == "" {
		return nil, nil
	}
	data, err := os.ReadFile(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var record presenceRecord
	if err := json.Unmarshal(data, &record); err != nil || record.Format != presenceFormat {
		logger.Warn("when this server was in touch with a leader cannot be read, and is recorded anew", "file", f.path, "format", record.Format, "err", err)
		return nil, nil
	}
	if record.Cluster != cluster {
		return nil, nil
	}
	return record.Spans, nil
}

// put replaces the record so that a crash leaves the old one or the new one. When it fails, either may be in place.
func (f *presenceFile) put(record presenceRecord) error {
	data, err := json.Marshal(record)
	if err != nil {
		return err
	}
	data = append(data, bytes.Repeat([]byte(" "), presenceBlock-len(data)%presenceBlock-1)...)
	data = append(data, '\n')
	if !f.settled {
		if err := atomicfile.SyncDir(filepath.Dir(f.path)); err != nil {
			return err
		}
	}
	if err := overwrite(f.spare(), data); err != nil {
		return err
	}
	f.settled = false
	if err := exchange(f.spare(), f.path); err != nil {
		return err
	}
	err = atomicfile.SyncDir(filepath.Dir(f.path))
	f.settled = err == nil
	return err
}

// overwrite writes into a file, in the room that it has.
func overwrite(path string, data []byte) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if _, err = file.WriteAt(data, 0); err == nil {
		err = file.Truncate(int64(len(data)))
	}
	if err == nil {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}

// exchange puts a file in the place of another one, which gets its name. Where there is no other one, or the file system cannot do that, it is
// renamed, and the next one needs room again.
func exchange(path, with string) error {
	err := unix.Renameat2(unix.AT_FDCWD, path, unix.AT_FDCWD, with, unix.RENAME_EXCHANGE)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.ENOSYS), errors.Is(err, syscall.EOPNOTSUPP):
		return os.Rename(path, with)
	}
	return fmt.Errorf("exchange %s with %s: %w", path, with, err)
}

// ink is how the writing of the record goes. It is used by whoever holds the pen.
type ink struct {
	kept    int           // the changes that are written down
	written time.Duration // when it was written last, as instant.ran
	failed  int           // how often in a row it could not be
	warned  time.Duration
}

// tryWrite writes when nobody does, and waits for nothing: a disk that hangs holds no server up that stops.
func (p *presence) tryWrite() {
	if p.file.path == "" {
		return
	}
	select {
	case p.pen <- struct{}{}:
		go func() { // close comes after it, and the directory is held until then
			p.write()
			<-p.pen
		}()
	default:
	}
}

// close writes down that the span is over, since the last look. It does not wait for a disk that hangs: that nothing is written any
// more is known when ended is closed.
func (p *presence) close() {
	p.mu.Lock()
	if p.now(); p.open {
		p.end()
	}
	p.mu.Unlock()
	if p.file.path == "" {
		close(p.ended)
		return
	}
	go func() { // ends with the write, which a disk that hangs may hold up
		defer close(p.ended)
		p.pen <- struct{}{} // which nobody gets after this
		p.write()
	}()
	select {
	case <-p.ended:
	case <-time.After(presenceWrite):
		p.logger.Warn("the disk hangs: that this server was in touch with a leader until now is not written down yet", "file", p.file.path)
	}
}

// write brings the record to the disk when it is time to. What could not be written is tried again at the next look. It is called with
// the pen.
func (p *presence) write() {
	p.mu.Lock()
	now, changes := p.now(), p.changes
	due := changes != p.ink.kept || p.open && now.ran-p.ink.written >= presenceWrite
	record := presenceRecord{presenceFormat, p.cluster, slices.Clone(p.spans)}
	p.mu.Unlock()
	if !due {
		return
	}
	if err := p.file.put(record); err != nil {
		p.cannotWrite(now.ran, err)
		return
	}
	if p.ink.failed > 0 {
		p.logger.Info("when this server is in touch with a leader is written down again", "file", p.file.path)
	}
	p.ink = ink{kept: changes, written: now.ran}
}

// cannotWrite is called with the pen. It does not leave a record that would be wrong after a crash.
func (p *presence) cannotWrite(now time.Duration, why error) {
	p.ink.failed++
	if p.ink.failed == 1 || now-p.ink.warned >= presenceWarn {
		p.ink.warned = now
		p.logger.Warn("cannot write down when this server is in touch with a leader: if it ends before it can, it will not know that, should somebody recover one of the others",
			"file", p.file.path, "err", why)
	}
	if p.ink.failed > 1 {
		if err := atomicfile.Remove(p.file.path); err != nil {
			p.logger.Debug("cannot take the old record away", "file", p.file.path, "err", err)
		}
	}
}

// unlock lets others have the directory, as soon as nothing is written there any more: what is written late would be in the way of the next
// process.
func (n *Node) unlock() error {
	select {
	case <-n.presence.ended:
		return n.lock.release()
	default:
	}
	n.cfg.Logger.Warn("the disk hangs: the directory stays locked until what is being written is written, or this process ends", "dir", n.cfg.Dir)
	go func() { // ends with the write, or with the process
		<-n.presence.ended
		if err := n.lock.release(); err != nil {
			n.cfg.Logger.Warn("cannot unlock the store's directory", "dir", n.cfg.Dir, "err", err)
		}
	}()
	return nil
}
