package credentials

import (
	"crypto"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"

	"github.com/barque/barque/internal/atomicfile"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/pki"
)

// Record is what a node has written down of its cluster, as far as its credentials go.
type Record interface {
	Path() string
	// CA returns what the node believes, and Believe writes down what it believes from now on.
	CA() pki.Bundle
	Believe(b pki.Bundle) error
	// Servers returns the cluster's servers as they were last known.
	Servers() []join.Server
}

// Home is where a server keeps its CAs: the bundle in the record, the keys in files beside the
// other keys. The bundle tells which key is for what by its public key, so the files need not
// change at one moment: a key is written before a bundle that needs it, and dropped after one that
// does not.
type Home struct {
	dataDir string
	record  Record
	Trust   *pki.Trust

	mu      sync.Mutex
	keys    map[pki.KeyUse][]crypto.Signer
	retired map[pki.KeyNeed]bool // of keys, those that have no use any more; not one that is held for a bundle to come
}

// LoadHome reads a server's CAs and keys.
func LoadHome(dataDir string, r Record) (*Home, error) {
	h := &Home{dataDir: dataDir, record: r, keys: map[pki.KeyUse][]crypto.Signer{}, retired: map[pki.KeyNeed]bool{}}
	for use, name := range KeyFiles() {
		path := filepath.Join(Dir(dataDir), name)
		data, err := readKey(dataDir, use)
		if err != nil {
			return nil, err
		}
		if data == nil {
			continue
		}
		if h.keys[use], err = pki.ParseKeys(data); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
	}
	var err error
	if h.Trust, err = pki.NewTrust(r.CA(), h.all()...); err != nil {
		return nil, fmt.Errorf("%s: the cluster's CA: %w", r.Path(), err)
	}
	needs, err := r.CA().NeedsKeys()
	if err != nil {
		return nil, fmt.Errorf("%s: the cluster's CA: %w", r.Path(), err)
	}
	for _, need := range needs {
		if _, err := h.Key(need.Digest); err != nil {
			return nil,
				fmt.Errorf("%s does not hold %s: copy the file from another server",
					filepath.Join(Dir(dataDir), KeyFiles()[need.Use]), need)
		}
	}
	// What a crash has left is dropped by the first Tidy: a disk that is full keeps no server from
	// starting. A key that the bundle does not know may be held for one to come, by this server
	// alone: a crash before that was made known leaves it until the next exchange.
	retired, err := r.CA().RetiredKeys()
	if err != nil {
		return nil, fmt.Errorf("%s: the cluster's CA: %w", r.Path(), err)
	}
	for _, of := range retired {
		h.retired[of] = true
	}
	return h, nil
}

// Keys implements exchange.Home.
func (h *Home) Keys() []crypto.Signer {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.all()
}

// all are the keys for all uses. The caller holds mu.
func (h *Home) all() (keys []crypto.Signer) {
	for _, of := range h.keys {
		keys = append(keys, of...)
	}
	return keys
}

// Hold implements exchange.Home.
func (h *Home) Hold(use pki.KeyUse, key crypto.Signer) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.keep(use, append(slices.Clone(h.keys[use]), key))
}

// keep writes the keys down. The caller holds mu. A file without keys goes.
func (h *Home) keep(use pki.KeyUse, keys []crypto.Signer) error {
	if len(keys) == 0 {
		if err := atomicfile.Remove(filepath.Join(Dir(h.dataDir), KeyFiles()[use])); err != nil {
			return err
		}
		delete(h.keys, use)
		return nil
	}
	data, err := pki.MarshalKeys(keys)
	if err != nil {
		return err
	}
	if err := atomicfile.Write(filepath.Join(Dir(h.dataDir), KeyFiles()[use]), data, 0o600); err != nil {
		return err
	}
	h.keys[use] = keys
	return nil
}

// Adopt implements exchange.Home.
func (h *Home) Adopt(b pki.Bundle) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	needs, err := b.NeedsKeys()
	if err != nil {
		return err
	}
	if err := h.record.Believe(b); err != nil {
		return err
	}
	if err := h.Trust.Set(b, h.all()...); err != nil {
		return err
	}
	for _, of := range needs {
		delete(h.retired, of)
	}
	for use, keys := range h.keys {
		for _, key := range keys {
			if of, err := keyOf(use, key); err == nil && !slices.Contains(needs, of) {
				h.retired[of] = true
			}
		}
	}
	return nil
}

func keyOf(use pki.KeyUse, key crypto.Signer) (pki.KeyNeed, error) {
	digest, err := pki.KeyDigest(key)
	return pki.KeyNeed{Use: use, Digest: digest}, err
}

// Tidy implements exchange.Home.
func (h *Home) Tidy() error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var failed error
	for use := range KeyFiles() {
		var kept []crypto.Signer
		for _, key := range h.keys[use] {
			if of, err := keyOf(use, key); err != nil || !h.retired[of] {
				kept = append(kept, key)
			}
		}
		if len(kept) < len(h.keys[use]) {
			failed = errors.Join(failed, h.keep(use, kept))
		}
	}
	if failed == nil {
		clear(h.retired)
	}
	return failed
}

// Key returns the key with the digest for another server, PEM.
func (h *Home) Key(digest string) ([]byte, error) {
	for _, key := range h.Keys() {
		if is, err := pki.KeyDigest(key); err == nil && is == digest {
			return pki.MarshalKey(key)
		}
	}
	return nil, errors.New("this server does not have that key")
}
