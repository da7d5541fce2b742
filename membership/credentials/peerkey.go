package credentials

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/barque/barque/internal/atomicfile"
	"github.com/barque/barque/pki"
)

// PeerKeyFile has the key of a server's certificate for other servers.
const PeerKeyFile = "peer.key"

// peerKey is the key of a server's certificate for other servers. Alone among the servers' own keys
// it is on disk: while the CA is exchanged, others believe a server that was off by the key that it
// has recorded in the store, and it cannot record another one before they believe it.
//
//	[used] ──renewal: [used, next] on disk──▶ next is recorded ──▶ certificate of next ──▶ [next] on disk
//
// A crash in the middle leaves both on disk, of which the first one is recorded in any case.
type peerKey struct {
	path string

	mu   sync.Mutex
	keys []crypto.Signer // the one in use, and perhaps the next one
	kept bool            // keys are on disk
}

// loadPeerKey reads the key of a data directory, or makes it. A key that cannot be written down, as
// on a full disk, keeps no server from starting.
func loadPeerKey(dataDir string) (k *peerKey, unsaved error, err error) {
	k = &peerKey{path: filepath.Join(Dir(dataDir), PeerKeyFile)}
	data, err := os.ReadFile(k.path)
	if err == nil {
		if k.keys, err = pki.ParseKeys(data); err == nil && len(k.keys) == 0 {
			err = errors.New("there is no key in it")
		}
		if err != nil {
			return nil, nil,
				fmt.Errorf(
					"%s is damaged: %w; remove it, and a new one is made: while the CA is exchanged, this server has to join again then", k.path, err)
		}
		k.kept = true
		return k, nil, nil
	}
	if !errors.Is(err, os.ErrNotExist) {
		return nil, nil, fmt.Errorf("the key of this server's certificate for other servers: %w", err)
	}
	key, err := pki.GenerateKey()
	if err != nil {
		return nil, nil, err
	}
	k.keys = []crypto.Signer{key}
	return k, k.set(key), nil
}

// DropPeerKey removes the key that a data directory has of an earlier server: the one that is made
// from it is another one.
func DropPeerKey(dataDir string) error {
	return atomicfile.Remove(filepath.Join(Dir(dataDir), PeerKeyFile))
}

// set makes these the keys, the one in use first. Without an error they are on disk; with one the
// keys stay that were.
func (k *peerKey) set(keys ...crypto.Signer) error {
	data, err := pki.MarshalKeys(keys)
	if err == nil {
		err = atomicfile.Write(k.path, data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write down the key of this server's certificate for other servers: %w", err)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.keys, k.kept = keys, true
	return nil
}

// used returns the key in use.
func (k *peerKey) used() crypto.Signer {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.keys[0]
}

// digests are those of the keys on disk; none unless all are there.
func (k *peerKey) digests() (all []string, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.kept {
		return nil, nil
	}
	for _, key := range k.keys {
		digest, err := pki.KeyDigest(key)
		if err != nil {
			return nil, err
		}
		all = append(all, digest)
	}
	return all, nil
}

// PeerKeys returns the digests of the keys with which this server comes back after a restart, for
// its record in the store: that of its certificate for other servers, and of the next one, if that
// is about to be used. There are none if they are not on disk.
func (ids *Server) PeerKeys() []string {
	all, err := ids.peerKey.digests()
	if err != nil {
		ids.logger.Error("the digest of a key cannot be made", "err", err)
	}
	return all
}

// renewPeer renews the certificate for other servers: with a new key where the others will know it,
// and else with the key that it has. The caller holds renewing.
func (ids *Server) renewPeer(ctx context.Context) error {
	used := ids.peerKey.used()
	key, why := used, "this server is starting"
	if record := ids.recordKeys.Load(); record != nil && !ids.starting {
		next, err := ids.nextPeerKey(ctx, used, *record)
		if err != nil {
			ids.logger.Warn("the certificate for other servers is renewed with the key that it has", "err", err)
			why = err.Error()
		} else {
			key, why = next, ""
		}
	}
	ids.keptKey.Store(&why)
	if err := ids.Peer.RenewFor(ctx, key); err != nil {
		return err
	}
	if err := ids.peerKey.set(key); err != nil { // those before are there yet, and recorded
		ids.logger.Warn("the next start of this server uses an earlier key", "err", err)
	}
	return nil
}

// RecordKeysBy lets Peer get a new key with each renewal from now on. record records PeerKeys in
// the store, and fails if an exchange of the CA is a step ahead there: others may know the keys
// alone that were recorded when it began.
func (ids *Server) RecordKeysBy(record func(ctx context.Context) error) {
	ids.recordKeys.Store(&record)
}

// nextPeerKey makes a key, and returns when it may be used. In an exchange of the CA that is one
// for which the next CA vouches: others know no new key otherwise.
func (ids *Server) nextPeerKey(
	ctx context.Context, used crypto.Signer, record func(ctx context.Context) error,
) (crypto.Signer, error) {
	for _, k := range ids.kinds() {
		if k.purpose != pki.Peers {
			continue
		}
		if _, err := ids.Trust.Vouch(pki.Peers, ids.held(k.request), used.Public(), time.Now()); err != nil {
			return nil, fmt.Errorf("the next CA does not vouch for this server: %w", err)
		}
	}
	next, err := pki.GenerateKey()
	if err != nil {
		return nil, err
	}
	if err := ids.peerKey.set(used, next); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, announcePatience)
	defer cancel()
	if err := record(ctx); err != nil {
		return nil, fmt.Errorf("a new key is recorded before it is used: %w", err)
	}
	return next, nil
}

// voucher returns what the next CA adds to the certificate for other servers. One that may not
// issue it adds nothing: then this server is known by its recorded key.
func (ids *Server) voucher(request pki.Request, key crypto.Signer) []byte {
	out, err := ids.Trust.Vouch(pki.Peers, ids.held(request), key.Public(), time.Now())
	if err != nil {
		ids.logger.Warn("the next CA does not vouch for this server", "err", err)
	}
	return out
}
