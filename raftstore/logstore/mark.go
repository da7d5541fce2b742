package logstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"

	"github.com/cespare/xxhash/v2"
)

// promises are the acknowledgements to Raft. They distinguish a log that has lost its end from one
// whose last write was cut by a crash. The log alone cannot: in both cases it just ends.
type promises struct {
	Last     uint64 // newest entry that was stored
	LastTerm uint64 // its term; 0 if unknown
	Snapshot uint64 // newest snapshot that was completed
	Term     uint64 // Raft's term
	VoteTerm uint64 // term of the last vote
	Vote     uint64 // hash of its candidate; 0 if unknown
}

// mark keeps the promises in a small file.
//
// It is written after the promised data are on disk, and is not synced. After a kill of the process
// it is exact, because the kernel has it. After a power loss it may be a little old, which is a
// kept promise as well. Only a withdrawal is synced before its entries are deleted, when another
// leader has overruled them.
type mark struct {
	mu   sync.Mutex
	file *os.File // nil in memory
	said promises
}

const (
	markMagic = "BARQMRK1"
	markLen   = len(markMagic) + 6*8 + 8
)

// openMark opens the mark. lost: it was there and cannot be read.
func openMark(path string) (m *mark, found, lost bool, err error) {
	data, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, false, false, fmt.Errorf("read what the log had promised: %w", err)
	default:
		found = true
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, false, false, fmt.Errorf("open what the log had promised: %w", err)
	}
	m = &mark{file: file}
	if found {
		lost = !m.said.decode(data)
	}
	return m, found, lost, nil
}

func (p *promises) encode() []byte {
	b := []byte(markMagic)
	for _, v := range []uint64{p.Last, p.LastTerm, p.Snapshot, p.Term, p.VoteTerm, p.Vote} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return binary.LittleEndian.AppendUint64(b, xxhash.Sum64(b))
}

func (p *promises) decode(b []byte) bool {
	if len(b) != markLen || string(b[:len(markMagic)]) != markMagic ||
		xxhash.Sum64(b[:markLen-8]) != binary.LittleEndian.Uint64(b[markLen-8:]) {
		return false
	}
	at := func(i int) uint64 { return binary.LittleEndian.Uint64(b[len(markMagic)+8*i:]) }
	*p = promises{Last: at(0), LastTerm: at(1), Snapshot: at(2), Term: at(3), VoteTerm: at(4), Vote: at(5)}
	return true
}

// set changes the promises. A failure of an unsynced write only matters to the next start, which
// then knows less.
func (m *mark) set(sync bool, change func(*promises)) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(&m.said)
	if m.file == nil {
		return nil
	}
	if _, err := m.file.WriteAt(m.said.encode(), 0); err != nil {
		return fmt.Errorf("write what the log promises: %w", err)
	}
	if !sync {
		return nil
	}
	if err := m.file.Sync(); err != nil {
		return fmt.Errorf("sync what the log promises: %w", err)
	}
	return nil
}

func (m *mark) get() promises {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.said
}

func (m *mark) close() error {
	if m.file == nil {
		return nil
	}
	return errors.Join(m.file.Sync(), m.file.Close())
}
