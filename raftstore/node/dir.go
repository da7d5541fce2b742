package node

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

// dirFormat is the newest layout of the data directory that this program knows.
const dirFormat = 1

const identityFile = "server.json"

// identity is what a data directory says about itself.
type identity struct {
	Format    int    `json:"format"`
	ClusterID string `json:"clusterID"`
	ServerID  string `json:"serverID"`
	// HasLog is written after the log was made, and before anything is promised in it.
	HasLog bool `json:"hasLog,omitempty"`
}

// openIdentity reads who this directory belongs to, or makes it the directory of a new server.
func openIdentity(cfg *Config) (identity, error) {
	if cfg.InMemory {
		id := newIdentity(cfg)
		if cfg.ServerID != "" {
			id.ServerID = cfg.ServerID
		}
		return id, nil
	}
	path := filepath.Join(cfg.Dir, identityFile)
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return createIdentity(cfg, path)
	}
	if err != nil {
		return identity{}, fmt.Errorf("read the identity of the store: %w", err)
	}
	var id identity
	if err := json.Unmarshal(data, &id); err != nil {
		return identity{}, fmt.Errorf("%s is damaged: %w; restore it from a backup, or remove this server "+
			"from the cluster and let it join again with an empty directory", path, err)
	}
	switch {
	case id.Format > dirFormat:
		return identity{}, fmt.Errorf("%s has format %d and this program knows up to %d: "+
			"a newer version wrote it; run that version", cfg.Dir, id.Format, dirFormat)
	case cfg.ClusterID != "" && id.ClusterID != cfg.ClusterID:
		return identity{}, fmt.Errorf("%s belongs to cluster %q and not to %q: "+
			"use another directory, or move this one away", cfg.Dir, id.ClusterID, cfg.ClusterID)
	case id.ServerID == "":
		return identity{}, fmt.Errorf("%s names no server: it is damaged", path)
	}
	return id, nil
}

func createIdentity(cfg *Config, path string) (identity, error) {
	if cfg.ClusterID == "" && !cfg.Bootstrap {
		return identity{}, errors.New("raftstore: ClusterID is needed to join a cluster")
	}
	if _, err := os.Stat(filepath.Join(cfg.Dir, logDir)); err == nil {
		return identity{}, fmt.Errorf("%s has a log but no %s: it is not complete; restore the file, or remove "+
			"this server from the cluster and let it join again with an empty directory", cfg.Dir, identityFile)
	}
	id := newIdentity(cfg)
	faultpoint.Func(cfg.FaultPoint).At(faultpoint.IdentityBeforeRename)
	if err := writeJSON(path, id); err != nil {
		return identity{}, fmt.Errorf("write the identity of the store: %w", err)
	}
	faultpoint.Func(cfg.FaultPoint).At(faultpoint.IdentityAfterRename)
	return id, nil
}

// checkLog refuses the directory of a server whose log was lost as a whole, with what tells of its
// end. A new log under the same ID would have forgotten what the server has acknowledged, and for
// whom it has voted.
func (id *identity) checkLog(cfg *Config) error {
	if !id.HasLog {
		return nil
	}
	if _, err := logstore.KindIn(filepath.Join(cfg.Dir, logDir)); err != nil {
		return fmt.Errorf("the log of server %q is lost: %w; bring it back, or remove this server from the cluster and let it join again "+
			"with an empty directory", id.ServerID, err)
	}
	return nil
}

// noteLog writes down that there is a log.
func (id *identity) noteLog(cfg *Config) error {
	if cfg.InMemory || id.HasLog {
		return nil
	}
	id.HasLog = true
	if err := writeJSON(filepath.Join(cfg.Dir, identityFile), id); err != nil {
		return fmt.Errorf("write the identity of the store: %w", err)
	}
	return nil
}

func newIdentity(cfg *Config) identity {
	id := identity{Format: dirFormat, ClusterID: cfg.ClusterID, ServerID: cfg.Name + "." + randomText(5)}
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

// writeJSON puts a file in place so that after a crash it is there as a whole or not at all.
func writeJSON(path string, value any) error {
	data, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(path, append(data, '\n'), 0o600)
}

const (
	lockFile = "LOCK"
	// lockWait is how long it waits for another process that has the directory, and may be about to
	// end.
	lockWait = 5 * time.Second
)

// dirLock is held by the one process that works in a directory: from before anything in it is read
// until all is closed.
type dirLock struct{ file *os.File }

// lockDir takes hold of the directory, which is made when it is absent, and removes what writes
// have left in it that were not finished when another process died.
func lockDir(cfg *Config) (dirLock, error) {
	if cfg.InMemory {
		return dirLock{}, nil
	}
	if err := atomicfile.MakeDir(cfg.Dir); err != nil {
		return dirLock{}, fmt.Errorf("make the store's directory: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), lockWait)
	defer cancel()
	file, err := filelock.Acquire(ctx, filepath.Join(cfg.Dir, lockFile))
	if errors.Is(err, filelock.ErrHeld) {
		return dirLock{}, fmt.Errorf("%s is in use: %w; stop that process first", cfg.Dir, err)
	}
	if err != nil {
		return dirLock{}, fmt.Errorf("take hold of the store's directory: %w", err)
	}
	lock := dirLock{file}
	for _, name := range []string{identityFile, quarantineFile, removedFile, supersededFile, recoveryFile, reseededFile, wrongFile} {
		if err := atomicfile.Sweep(filepath.Join(cfg.Dir, name)); err != nil {
			return dirLock{}, errors.Join(fmt.Errorf("remove what was not finished: %w", err), lock.release())
		}
	}
	return lock, nil
}

func (l dirLock) release() error {
	if l.file == nil {
		return nil
	}
	return l.file.Close()
}
