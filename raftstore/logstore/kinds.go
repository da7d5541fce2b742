package logstore

import (
	"fmt"
	"os"
	"path/filepath"
	"time"

	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	wal "github.com/hashicorp/raft-wal"
	"go.etcd.io/bbolt"
)

const (
	boltFile = "raft.db" // of a Boltdb
	walDir   = "wal"     // of a WAL
	// openTimeout bounds how long it waits for another process that has the log open.
	openTimeout = 5 * time.Second
)

// openKind opens what is on disk, as it is.
func openKind(opts *Options) (Store, error) {
	if opts.Dir == "" {
		return NewInMemory(), nil
	}
	if err := os.MkdirAll(opts.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of the log: %w", err)
	}
	if opts.Kind == WAL {
		return openWAL(filepath.Join(opts.Dir, walDir))
	}
	return openBolt(filepath.Join(opts.Dir, boltFile))
}

func openBolt(path string) (Store, error) {
	store, err := raftboltdb.New(raftboltdb.Options{
		Path: path,
		// The list of free pages is found again at start and not written with each entry.
		BoltOptions: &bbolt.Options{
			Timeout: openTimeout, NoFreelistSync: true, FreelistType: bbolt.FreelistMapType,
		},
		MsgpackUseNewTimeFormat: true,
	})
	if err != nil {
		return nil, fmt.Errorf("open the log %s: %w (is another process using it?)", path, err)
	}
	return store, nil
}

func openWAL(dir string) (Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of the log: %w", err)
	}
	store, err := wal.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("open the log %s: %w", dir, err)
	}
	return store, nil
}
