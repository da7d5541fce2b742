package enroll

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/barque/barque/pki"
)

// Directory is the data directory of a server, as a recovery needs it: see backups.DataDir.
type Directory string

func (d Directory) Path() string     { return string(d) }
func (d Directory) StoreDir() string { return StoreDir(string(d)) }

func (d Directory) ServerName() (string, error) { return ServerName(string(d)) }
func (d Directory) CheckUnused() error          { return CheckUnused(string(d)) }

func (d Directory) Lock() (io.Closer, error) { return Lock(context.Background(), string(d)) }

func (d Directory) Cluster() (string, error) {
	r, err := Load(string(d))
	switch {
	case err != nil:
		return "", err
	case r == nil || r.Role != pki.RoleServer || r.Phase != PhaseMember:
		return "", fmt.Errorf("%s is not the data directory of a server that is a member of its cluster", d)
	}
	return r.Cluster.ID, nil
}

func (d Directory) BeginAs(clusterID string, gossipKey []byte) error {
	r, err := Load(string(d))
	if err != nil {
		return err
	}
	if r == nil {
		return fmt.Errorf("%s has no node.json any more", d)
	}
	r.Cluster.ID, r.Cluster.GossipKeys, r.Cluster.KeyGeneration, r.Cluster.Servers = clusterID, [][]byte{gossipKey}, 0,
		nil
	return r.Save()
}

// BackedUp is a server's data about its cluster for backups: see backups.Cluster.
type BackedUp struct {
	Record  *Record
	DataDir string
}

func (c BackedUp) ID() string                { return c.Record.Cluster.ID }
func (c BackedUp) Settings() json.RawMessage { return c.Record.Cluster.Settings }

func (c BackedUp) Secrets() (map[string][]byte, error) { return clusterSecrets(c.DataDir, c.Record) }

// RestoreStore brings the state of the backup that the new cluster begins with into its store. A
// crash in the middle, or just after, is made good by doing it again at the next start.
func (r *Record) RestoreStore(restore func(*Restore) error) error {
	o := r.Restore
	if err := restore(o); err != nil {
		return fmt.Errorf("%w; start again to continue it, or remove %s to begin anew", err, r.Dir)
	}
	r.Restored, r.Restore = o.File, nil
	return nil
}
