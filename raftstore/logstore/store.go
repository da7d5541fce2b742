package logstore

import (
	"fmt"

	"github.com/hashicorp/raft"
)

// Store keeps a log and a few small values: one of the kinds below, or a test's replacement. Its
// methods are those of Raft's interfaces. An unset value is zero or empty, or an error "not found".
// A method that returns without an error has its data on disk.
type Store interface {
	raft.LogStore
	raft.StableStore
	Close() error
}

// Kind is a way to keep a log on disk.
type Kind string

const (
	// Boltdb is a B+ tree in one file, in which each write is a transaction with two syncs.
	Boltdb Kind = "boltdb"
	// WAL is a directory of segment files. Each write is appended to the last one, with one sync.
	WAL Kind = "wal"
)

// ParseKind returns the kind with the name; Boltdb when it is empty.
func ParseKind(name string) (Kind, error) {
	switch kind := Kind(name); kind {
	case "":
		return Boltdb, nil
	case Boltdb, WAL:
		return kind, nil
	}
	return "", fmt.Errorf("raftstore: unknown kind of log store %q: it is %q or %q", name, Boltdb, WAL)
}

// inMemory is a Store that keeps nothing.
type inMemory struct{ *raft.InmemStore }

// NewInMemory returns a Store that keeps its content for the life of the process, also after it was
// closed. It is for tests.
func NewInMemory() Store { return inMemory{raft.NewInmemStore()} }

func (inMemory) Close() error { return nil }
