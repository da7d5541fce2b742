package node

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"

	"github.com/barque/barque/backups"
	"github.com/barque/barque/membership/enroll"
	"github.com/barque/barque/pki"
)

// directory is the data directory of a server, for a recovery.
type directory string

func (d directory) Path() string     { return string(d) }
func (d directory) StoreDir() string { return enroll.StoreDir(string(d)) }

func (d directory) ServerName() (string, error) { return enroll.ServerName(string(d)) }
func (d directory) CheckUnused() error          { return enroll.CheckUnused(string(d)) }

func (d directory) Lock() (io.Closer, error) { return enroll.Lock(context.Background(), string(d)) }

func (d directory) Cluster() (string, error) {
	r, err := enroll.Load(string(d))
	switch {
	case err != nil:
		return "", err
	case r == nil || r.Role != pki.RoleServer || r.Phase != enroll.PhaseMember:
		return "", fmt.Errorf("%s is not the data directory of a server that is a member of its cluster", d)
	}
	return r.Cluster.ID, nil
}

func (d directory) BeginAs(clusterID string, gossipKey []byte) error {
	r, err := enroll.Load(string(d))
	if err != nil {
		return err
	}
	if r == nil {
		return fmt.Errorf("%s has no node.json any more", d)
	}
	r.Cluster.ID, r.Cluster.GossipKeys, r.Cluster.KeyGeneration, r.Cluster.Servers = clusterID, [][]byte{gossipKey}, 0, nil
	return r.Save()
}

// Survey reads data directories of servers that do not run. It fails with a *UsedError, at once,
// for one that does.
func Survey(dataDirs []string, logger *slog.Logger) ([]backups.Survivor, error) {
	var all []backups.Survivor
	for _, path := range dataDirs {
		path, err := filepath.Abs(path)
		if err != nil {
			return nil, err
		}
		one, err := backups.Survey(directory(path), logger)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

// Recover makes the server of the data directory the first of a new cluster, or finishes what was
// begun. It returns the new cluster's ID.
func Recover(dataDir string, logger *slog.Logger) (string, error) {
	return backups.Recover(directory(dataDir), logger)
}
