package disk

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/barque/barque/internal/atomicfile"
	"github.com/barque/barque/internal/filelock"
	"github.com/barque/barque/raftstore/faultpoint"
	"github.com/barque/barque/raftstore/logstore"
)

// DirFormat is the newest layout of the data directory that this program supports.
const DirFormat = 1

// Identity is a data directory's description of itself.
type Identity struct {
	Format    int    `json:"format"`
	ClusterID string `json:"clusterID"`
	ServerID  string `json:"serverID"`
	// HasLog is written after the log was made, and before anything is promised in it.
	HasLog bool `json:"hasLog,omitempty"`
}

// OpenIdentity reads the owner of this directory, or makes it the directory of a new server.
func OpenIdentity(o *Options, owner Owner) (Identity, error) {
	if o.InMemory {
		id := newIdentity(owner)
		if owner.ServerID != "" {
			id.ServerID = owner.ServerID
		}
		return id, nil
	}
	path := filepath.Join(o.Dir, identityFile)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return createIdentity(o, owner, path)
	}
	if err != nil {
		return Identity{}, fmt.Errorf("read the identity of the store: %w", err)
	}
	var id Identity
	if err := json.Unmarshal(data, &id); err != nil {
		return Identity{}, fmt.Errorf("%s is damaged: %w; restore it from a backup, or remove this server "+
			"from the cluster and let it join again with an empty directory", path, err)
	}
	switch {
	case id.Format > DirFormat:
		return Identity{}, fmt.Errorf("%s has format %d and this program knows up to %d: "+
			"a newer version wrote it; run that version", o.Dir, id.Format, DirFormat)
	case owner.ClusterID != "" && id.ClusterID != owner.ClusterID:
		return Identity{}, fmt.Errorf("%s belongs to cluster %q and not to %q: "+
			"use another directory, or move this one away", o.Dir, id.ClusterID, owner.ClusterID)
	case id.ServerID == "":
		return Identity{}, fmt.Errorf("%s names no server: it is damaged", path)
	}
	return id, nil
}

func createIdentity(o *Options, owner Owner, path string) (Identity, error) {
	if owner.ClusterID == "" && !owner.Bootstrap {
		return Identity{}, errors.New("raftstore: ClusterID is needed to join a cluster")
	}
	if _, err := os.Stat(filepath.Join(o.Dir, LogDir)); err == nil {
		return Identity{}, fmt.Errorf("%s has a log but no %s: it is not complete; restore the file, or remove "+
			"this server from the cluster and let it join again with an empty directory", o.Dir, identityFile)
	}
	id := newIdentity(owner)
	faultpoint.Func(o.FaultPoint).At(faultpoint.IdentityBeforeRename)
	if err := WriteJSON(path, id); err != nil {
		return Identity{}, fmt.Errorf("write the identity of the store: %w", err)
	}
	faultpoint.Func(o.FaultPoint).At(faultpoint.IdentityAfterRename)
	return id, nil
}

// LogKind returns how the log in a directory is kept.
func LogKind(dir string) (logstore.Kind, error) { return logstore.KindIn(filepath.Join(dir, LogDir)) }

// CheckLog refuses the directory of a server whose whole log is lost. The error names the trace of
// it. A new log under the same ID would have forgotten acknowledged entries and votes.
func (id *Identity) CheckLog(o *Options) error {
	if !id.HasLog {
		return nil
	}
	if _, err := LogKind(o.Dir); err != nil {
		return fmt.Errorf(
			"the log of server %q is lost: %w; bring it back, or remove this server from the cluster and let it join again "+
				"with an empty directory", id.ServerID, err)
	}
	return nil
}

// Write puts the identity on disk.
func (id *Identity) Write(dir string) error {
	return WriteJSON(filepath.Join(dir, identityFile), id)
}

// NoteLog records that there is a log.
func (id *Identity) NoteLog(o *Options) error {
	if o.InMemory || id.HasLog {
		return nil
	}
	id.HasLog = true
	if err := WriteJSON(filepath.Join(o.Dir, identityFile), id); err != nil {
		return fmt.Errorf("write the identity of the store: %w", err)
	}
	return nil
}

func newIdentity(o Owner) Identity {
	id := Identity{Format: DirFormat, ClusterID: o.ClusterID, ServerID: o.Name + "." + randomText(5)}
	if id.ClusterID == "" {
		id.ClusterID = randomText(8)
	}
	return id
}

func randomText(n int) string {
	b := make([]byte, n)
	rand.Read(b)
	return hex.EncodeToString(b)
}

// WriteJSON replaces a file atomically: after a crash it is complete or absent.
func WriteJSON(path string, value any) error {
	data, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(path, append(data, '\n'), 0o600)
}

// Files in the data directory, beside the directories of the log and the snapshots.
const (
	identityFile   = "server.json"
	lockFile       = "LOCK"
	reserveFile    = "reserve"
	quarantineFile = "quarantine.json" // see marks.go, as for the next three
	removedFile    = "removed.json"
	supersededFile = "outlived.json" // the name is that of earlier versions, whose marks count
	recoveryFile   = "recovery.json"
	// WrongFile and TransferFile are of a server in quarantine: see package integrity. The names on
	// disk are those of earlier versions.
	WrongFile    = "quarantined.snapshot"
	TransferFile = "reseeded.json"
)

// lockWait is how long a start waits for another process that has the directory, and may be about
// to end.
const lockWait = 5 * time.Second

// Lock is held by the only process that works in a directory, from before its first read until
// everything is closed.
type Lock struct{ file *os.File }

// LockDir locks the directory, which it makes if it is absent. It removes unfinished files of a
// killed process.
func LockDir(dir string) (Lock, error) {
	if err := atomicfile.MakeDir(dir); err != nil {
		return Lock{}, fmt.Errorf("make the store's directory: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), lockWait)
	defer cancel()
	file, err := filelock.Acquire(ctx, filepath.Join(dir, lockFile))
	if errors.Is(err, filelock.ErrHeld) {
		return Lock{}, fmt.Errorf("%s is in use: %w; stop that process first", dir, err)
	}
	if err != nil {
		return Lock{}, fmt.Errorf("take hold of the store's directory: %w", err)
	}
	lock := Lock{file}
	for _, name := range []string{identityFile, quarantineFile, removedFile, supersededFile, recoveryFile, TransferFile,
		WrongFile} {
		if err := atomicfile.Sweep(filepath.Join(dir, name)); err != nil {
			return Lock{}, errors.Join(fmt.Errorf("remove what was not finished: %w", err), lock.Release())
		}
	}
	return lock, nil
}

// LockExisting locks the directory of a server, and makes none.
func LockExisting(dir string) (Lock, error) {
	if _, err := os.Stat(filepath.Join(dir, identityFile)); err != nil {
		return Lock{}, fmt.Errorf("%s is not the directory of a server's store: %w", dir, err)
	}
	return LockDir(dir)
}

// Release unlocks the directory. The zero lock holds none.
func (l Lock) Release() error {
	if l.file == nil {
		return nil
	}
	return l.file.Close()
}
