package enroll

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"

	"github.com/barque/barque/membership/credentials"
	"github.com/barque/barque/membership/datakeys"
	"github.com/barque/barque/pki"
)

// restoreRecord begins a new cluster from a backup. The cluster has a new ID, so that it refuses
// servers of the old one, which stop. It has the old one's CA and keys if the backup does. All of
// it was verified before anything is written. The running store loads the state later: see
// backups.Restore.
func restoreRecord(o *Options, logger *slog.Logger) (*Record, error) {
	about, err := o.ReadBackup()
	if err != nil {
		return nil, err
	}
	secrets := about.Secrets
	settings, err := o.Settings(about.Settings)
	if err != nil {
		return nil, fmt.Errorf("%s: the settings of the cluster: %w", o.Restore.File, err)
	}
	id := rand.Text()[:10]
	var cas pki.Bundle
	var keys map[string][]byte
	var gossipKeys [][]byte
	if secrets != nil {
		if cas, keys, err = restoredCA(secrets); err != nil {
			return nil, fmt.Errorf("%s: the CA: %w", o.Restore.File, err)
		}
		if err := json.Unmarshal(secrets[secretGossip], &gossipKeys); err != nil {
			return nil, fmt.Errorf("%s: the gossip keys: %w", o.Restore.File, err)
		}
		if !cas.Separate() {
			logger.Warn(
				"the backup is of a cluster with one CA for all purposes, and the new cluster has that CA: a certificate for clients counts between servers as well. "+
					"Exchange the CA when all servers are there: barque cert rotate --ca", "backup", o.Restore.File)
		}
	} else {
		logger.Warn(
			"the backup has no keys of the cluster, because it was made without --snapshot-key-file: the new cluster has a new CA. "+
				"Kubeconfigs, the certificates of agents and the tokens of service accounts are void: copy the new kubeconfig, let the agents join again, and restart the pods that call the API",
			"backup", o.Restore.File)
		made, err := o.newCAs(id)
		if err != nil {
			return nil, err
		}
		cas, keys = made.bundle, made.keys
	}
	r, err := newRecord(o, id, cas, keys, settings)
	if err != nil {
		return nil, err
	}
	if gossipKeys != nil {
		r.Cluster.GossipKeys = gossipKeys
	}
	r.Restore = &o.Restore
	logger.Info("beginning a new cluster from a backup", "cluster", id, "ofCluster", about.ClusterID, "created",
		about.Created,
		"revision", about.Revision, "items", about.Items, "dataDir", o.DataDir)
	return r, r.Save()
}

// restoredCA returns the CAs in a backup, and the keys by file name. An exchange of the CA that was
// running at its time continues. A backup of an earlier version has one CA for all purposes.
func restoredCA(secrets map[string][]byte) (b pki.Bundle, files map[string][]byte, err error) {
	if err := json.Unmarshal(secrets[secretCA], &b); err != nil {
		return b, nil, err
	}
	needs, err := b.NeedsKeys()
	if err != nil {
		return b, nil, err
	}
	files = map[string][]byte{}
	for use, name := range credentials.KeyFiles() {
		if secrets[name] == nil && use.Optional() {
			continue
		}
		files[name] = secrets[name]
		keys, err := pki.ParseKeys(secrets[name])
		if err != nil {
			return b, nil, fmt.Errorf("%s: %w", name, err)
		}
		for _, key := range keys {
			digest, err := pki.KeyDigest(key)
			if err != nil {
				return b, nil, fmt.Errorf("%s: %w", name, err)
			}
			needs = slices.DeleteFunc(needs,
				func(n pki.KeyNeed) bool { return n == pki.KeyNeed{Use: use, Digest: digest} })
		}
	}
	if len(needs) > 0 {
		return b, nil, fmt.Errorf("%s, is not in the backup", needs[0])
	}
	return b, files, nil
}

// sameRestore refuses a backup if there is a cluster already. The flag may stay after the backup
// was restored.
func (r *Record) sameRestore(o *Options) error {
	file := o.Restore.File
	if file == "" || file == r.Restored || r.Restore != nil && file == r.Restore.File {
		return nil
	}
	return fmt.Errorf(
		"data directory %s belongs to cluster %s: --restore-from begins a new one and needs an empty directory; "+
			"to restore a cluster that runs, use `barque snapshot restore`", r.Dir, r.Cluster.ID)
}

// Names of the secrets in a backup, besides the files that all servers share.
const (
	secretCA     = "ca.json" // which CAs are believed: not secret, but it belongs to their keys
	secretGossip = "gossip-keys.json"
)

// TrustIn returns the CAs in the secrets of a backup, with their keys.
func TrustIn(secrets map[string][]byte) (*pki.Trust, error) {
	var cas pki.Bundle
	if err := json.Unmarshal(secrets[secretCA], &cas); err != nil {
		return nil, fmt.Errorf("the CAs in the backup: %w", err)
	}
	keys, err := pki.ParseKeys(secrets[credentials.CAKey])
	if err != nil {
		return nil, fmt.Errorf("the keys of the CAs in the backup: %w", err)
	}
	return pki.NewTrust(cas, keys...)
}

// OpensDataKeys returns why the keys of the cluster in a backup do not open the state of its data
// keys.
func OpensDataKeys(secrets map[string][]byte, state []byte) error {
	trust, err := TrustIn(secrets)
	if err != nil {
		return err
	}
	if err := datakeys.Opens(state, trust); err != nil {
		return fmt.Errorf(
			"the CAs' keys in the backup do not open all its data keys, so that a new cluster could not read its objects: %w", err)
	}
	return nil
}

// clusterSecrets returns the secrets that a new cluster needs to continue as this one.
func clusterSecrets(dataDir string, r *Record) (map[string][]byte, error) {
	secrets, err := credentials.ClusterKeys(dataDir)
	if err != nil {
		return nil, err
	}
	if secrets[secretGossip], err = json.Marshal(r.GossipRing().Keys); err != nil {
		return nil, err
	}
	if secrets[secretCA], err = json.Marshal(r.CA()); err != nil {
		return nil, err
	}
	return secrets, nil
}
