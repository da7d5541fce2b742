package node

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/barque/barque/internal/atomicfile"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/raftstore"
	"github.com/barque/barque/raftstore/backup"
)

// RestoreOptions begin a new cluster with the state of a backup.
type RestoreOptions struct {
	File    string `json:"file"`
	KeyFile string `json:"keyFile,omitempty"`
	// Gap is by how much the revision of the new cluster is above that of the backup, so that it is
	// above all that the old cluster handed out after the backup was made.
	Gap uint64 `json:"gap"`
}

// DefaultRevisionGap is what a cluster with 10,000 writes a second hands out in a day, and one with
// a hundred in four months. Revisions have room for nine thousand million of such gaps.
const DefaultRevisionGap = 1_000_000_000

// restoreRecord begins a new cluster from a backup: with a new ID, so that servers of the old one
// are refused and stop, and with the old one's CA and keys if the backup has them. All of it was
// verified before anything is written. The state follows when the store runs: see restoreStore.
func restoreRecord(o *Options, logger *slog.Logger) (*record, error) {
	about, secrets, err := readBackup(&o.Restore)
	if err != nil {
		return nil, err
	}
	if about.Settings != nil {
		if err := json.Unmarshal(about.Settings, &o.Settings); err != nil {
			return nil, fmt.Errorf("%s: the settings of the cluster: %w", o.Restore.File, err)
		}
	}
	id := rand.Text()[:10]
	var cas pki.Bundle
	var keysPEM []byte
	var gossipKeys [][]byte
	if about.Secrets {
		if cas, keysPEM, err = restoredCA(secrets); err != nil {
			return nil, fmt.Errorf("%s: the CA: %w", o.Restore.File, err)
		}
		if err := json.Unmarshal(secrets[secretGossip], &gossipKeys); err != nil {
			return nil, fmt.Errorf("%s: the gossip keys: %w", o.Restore.File, err)
		}
		if err := atomicfile.Write(filepath.Join(pkiDir(o.DataDir), serviceAccountKey), secrets[serviceAccountKey], 0o600); err != nil {
			return nil, err
		}
	} else {
		logger.Warn("the backup holds no keys of the cluster, because it was made without --snapshot-key-file: the new cluster has a new CA. "+
			"Kubeconfigs, the certificates of agents and the tokens of service accounts are void: copy the new kubeconfig, let the agents join again, and restart the pods that call the API",
			"backup", o.Restore.File)
		ca, err := pki.NewAuthority(id, time.Now())
		if err != nil {
			return nil, err
		}
		if keysPEM, err = ca.KeyPEM(); err != nil {
			return nil, err
		}
		cas = pki.NewBundle(ca)
	}
	r, err := newRecord(o, id, cas, keysPEM)
	if err != nil {
		return nil, err
	}
	if gossipKeys != nil {
		r.Cluster.GossipKeys = gossipKeys
	}
	r.Restore = &o.Restore
	logger.Info("beginning a new cluster from a backup", "cluster", id, "ofCluster", about.ClusterID, "created", about.Created,
		"revision", about.Revision, "items", about.Items, "dataDir", o.DataDir)
	return r, r.save()
}

// restoredCA are the CAs in a backup. An exchange of the CA that was under way when it was made
// goes on.
func restoredCA(secrets map[string][]byte) (b pki.Bundle, keysPEM []byte, err error) {
	if err := json.Unmarshal(secrets[secretCA], &b); err != nil {
		return b, nil, err
	}
	needs, err := b.NeedsKeys()
	if err != nil {
		return b, nil, err
	}
	for use, name := range keyFiles() {
		keys, err := pki.ParseKeys(secrets[name])
		if err != nil {
			return b, nil, fmt.Errorf("%s: %w", name, err)
		}
		for _, key := range keys {
			digest, err := pki.KeyDigest(key)
			if err != nil {
				return b, nil, fmt.Errorf("%s: %w", name, err)
			}
			needs = slices.DeleteFunc(needs, func(n pki.KeyNeed) bool { return n == pki.KeyNeed{Use: use, Digest: digest} })
		}
	}
	if len(needs) > 0 {
		return b, nil, fmt.Errorf("%s, is not in the backup", needs[0])
	}
	return b, secrets[caKey], nil
}

// readBackup verifies a whole backup and returns what is in it, but for the items.
func readBackup(o *RestoreOptions) (about backup.About, secrets map[string][]byte, err error) {
	err = eachItem(o, func(r *backup.Reader) error {
		about, secrets = r.About(), r.Secrets()
		return r.Items(func(*raftstore.Item) error { return nil })
	})
	return about, secrets, err
}

func eachItem(o *RestoreOptions, read func(*backup.Reader) error) error {
	key, err := ReadBackupKey(o.KeyFile)
	if err != nil {
		return err
	}
	f, err := os.Open(o.File)
	if err != nil {
		return fmt.Errorf("the backup to begin with: %w", err)
	}
	defer f.Close()
	r, err := backup.NewReader(bufio.NewReaderSize(f, 256<<10), key)
	if err == nil {
		err = read(r)
	}
	if err != nil {
		return fmt.Errorf("the backup %s: %w", o.File, err)
	}
	return nil
}

// storeRestorer is what a new cluster needs of its store to begin with a backup.
type storeRestorer interface {
	Succeed(ctx context.Context, cluster string) error
	Restore(ctx context.Context, items func(yield func(*raftstore.Item) error) error, opts raftstore.RestoreOptions) (raftstore.Result, error)
}

// restoreStore brings the items of the backup into the new cluster's store, before anyone is
// served, and makes it the successor of the cluster that the backup is of. A crash in the middle,
// or just after, is made good by doing it again at the next start.
func restoreStore(ctx context.Context, r *record, store storeRestorer, logger *slog.Logger) error {
	o := r.Restore
	err := eachItem(o, func(source *backup.Reader) error {
		if err := store.Succeed(ctx, source.About().ClusterID); err != nil {
			return err
		}
		result, err := store.Restore(ctx, source.Items, raftstore.RestoreOptions{AtLeast: source.About().Revision + o.Gap, Supersede: true})
		if err == nil {
			logger.Info("the new cluster has the state of the backup", "backup", o.File, "backupRevision", source.About().Revision, "revision", result.Revision)
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("%w; start again to go on with it, or remove %s to begin anew", err, r.dir)
	}
	r.Restored, r.Restore = o.File, nil
	return nil
}

// sameRestore refuses to begin with a backup where there is a cluster. The flag may stay after it
// has done its work.
func (r *record) sameRestore(o *Options) error {
	file := o.Restore.File
	if file == "" || file == r.Restored || r.Restore != nil && file == r.Restore.File {
		return nil
	}
	return fmt.Errorf("data directory %s belongs to cluster %s: --restore-from begins a new one and needs an empty directory; "+
		"to restore a cluster that runs, use `barque snapshot restore`", r.dir, r.Cluster.ID)
}
