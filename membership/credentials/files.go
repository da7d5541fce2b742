package credentials

import (
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/barque/barque/internal/atomicfile"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/pki"
)

// Dir has a node's keys and certificates.
func Dir(dataDir string) string { return filepath.Join(dataDir, "pki") }

// DataKeysFile has a server's data keys, which package datakeys writes.
func DataKeysFile(dataDir string) string { return filepath.Join(Dir(dataDir), "data-keys.json") }

// Files of keys that all servers have, and of an agent's certificates.
const (
	CAKey             = "ca.key"
	ServiceAccountKey = "service-account.key"
	PeersKey          = "peers-ca.key"
	FrontProxyKey     = "front-proxy-ca.key"

	clientFile     = "node-client.crt"
	servingFile    = "node-serving.crt"
	credentialFile = "gossip.credential"
)

// KeyFiles are the files of the keys that all servers have, in a server's pki directory. Those of
// optional uses are missing in a cluster that has one CA for all purposes.
func KeyFiles() map[pki.KeyUse]string {
	return map[pki.KeyUse]string{pki.CAKey: CAKey, pki.AccountKey: ServiceAccountKey, pki.PeersKey: PeersKey,
		pki.FrontProxyKey: FrontProxyKey}
}

// CAFile has the CAs for clients that a node trusts, for people and other programs; the record is
// authoritative.
func CAFile(dataDir string) string { return filepath.Join(Dir(dataDir), "ca.crt") }

// WriteCA writes that file.
func WriteCA(dataDir string, b pki.Bundle) error {
	return atomicfile.Write(CAFile(dataDir), b.PEM(), 0o644)
}

// ClusterKeys returns the secret keys that every server has, by file name.
func ClusterKeys(dataDir string) (map[string][]byte, error) {
	keys := map[string][]byte{}
	for use, name := range KeyFiles() {
		data, err := readKey(dataDir, use)
		if err != nil {
			return nil, err
		}
		if data != nil {
			keys[name] = data
		}
	}
	return keys, nil
}

// readKey reads the file of a key that all servers have; nil without one for an optional use.
func readKey(dataDir string, use pki.KeyUse) ([]byte, error) {
	path := filepath.Join(Dir(dataDir), KeyFiles()[use])
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) && use.Optional() {
		return nil, nil
	}
	if errors.Is(err, os.ErrNotExist) {
		return nil,
			fmt.Errorf("%s is missing. It has the key of %s, which is the same on all servers: copy the file from "+
				"another server (owner root, mode 600). Without another server, begin a new cluster with a sealed backup: "+
				"barque server --restore-from FILE --restore-key-file FILE: %w", path, use, os.ErrNotExist)
	}
	if err != nil {
		return nil, fmt.Errorf("the key of %s: %w", use, err)
	}
	return data, nil
}

// GossipKeyOf returns the node's own Ed25519 key, making it at the first time.
func GossipKeyOf(dataDir string) (ed25519.PrivateKey, error) {
	path := filepath.Join(Dir(dataDir), "gossip.key")
	seed, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		_, key, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			return nil, err
		}
		return key, atomicfile.Write(path, key.Seed(), 0o600)
	}
	if err != nil {
		return nil, err
	}
	if len(seed) != ed25519.SeedSize {
		return nil,
			fmt.Errorf("%s is damaged: it has %d bytes, want %d; remove it, a new one is made", path, len(seed),
				ed25519.SeedSize)
	}
	return ed25519.NewKeyFromSeed(seed), nil
}

// SaveCertificates puts an agent's certificates in place.
func SaveCertificates(dataDir string, c join.Certificates) error {
	dir := Dir(dataDir)
	return errors.Join(
		atomicfile.Write(filepath.Join(dir, clientFile), c.Client, 0o644),
		atomicfile.Write(filepath.Join(dir, servingFile), c.Serving, 0o644),
		atomicfile.Write(filepath.Join(dir, credentialFile), c.Credential, 0o600),
	)
}
