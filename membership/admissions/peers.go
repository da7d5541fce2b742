package admissions

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/barque/barque/internal/atomicfile"
	"github.com/barque/barque/pki"
)

// Peers judges the certificates of other servers at their own port while the CA is exchanged. The
// CA before is believed until the end, and a thief of its key signs for any server. So one of its
// certificates counts there in two cases only:
//
//   - The next CA vouches for its key, see pki.Trust.Vouched: its holder takes part in the
//     exchange. It needs no record, and may have any key.
//   - Its holder had recorded the key in the store when the exchange began here. That is a server
//     that does not take part yet, as one that was off. It cannot have another key: a new one is
//     recorded before it is used, and only while no exchange is under way.
//
// The second rule needs the recorded keys without a quorum, and before the store is open. So they
// are on this server's disk before it believes the next CA, and stay the same until the end.
//
// Nothing is judged while a member may be of an earlier version, whose key is in memory only.
type Peers struct {
	Trust *pki.Trust
	// Path is of the file that keeps the keys.
	Path string
	Now  func() time.Time
	// Recorded returns the digests of the keys that the members have recorded, by their IDs in the
	// store, as this server knows: false if one has recorded none that it keeps. It is set before
	// Begin is called.
	Recorded func(ctx context.Context) (keys map[string][]string, all bool, err error)
	// Changed is called when Retry makes this server judge. It may be nil.
	Changed func()
	Logger  *slog.Logger

	writing sync.Mutex
	known   atomic.Pointer[peerKeys]
}

// peerKeys is the content of the file.
type peerKeys struct {
	Format int `json:"format"`
	// Next is the digest of the CA of peers that the exchange makes known.
	Next string `json:"next"`
	// Keys are the digests of each server's keys, by its ID in the store.
	Keys map[string][]string `json:"keys"`
}

const peersFormat = 1

// PeersPath returns the file of a data directory.
func PeersPath(dataDir string) string { return filepath.Join(dataDir, "peer-keys.json") }

// LoadPeers reads the recorded keys of a data directory. Without a file there are none, and with a
// damaged one there are none either: Retry reads them from the store.
func LoadPeers(dataDir string, trust *pki.Trust, logger *slog.Logger) (*Peers, error) {
	p := &Peers{Trust: trust, Path: PeersPath(dataDir), Now: time.Now, Logger: logger}
	data, err := os.ReadFile(p.Path)
	if errors.Is(err, os.ErrNotExist) {
		return p, nil
	}
	if err != nil {
		return nil, fmt.Errorf("the recorded keys of servers: %w", err)
	}
	var is peerKeys
	if err := json.Unmarshal(data, &is); err != nil || is.Format != peersFormat {
		logger.Warn("the file of the servers' recorded keys cannot be read: while the CA is exchanged, certificates of the one before count until this server has reached a leader", "file", p.Path, "format", is.Format, "err", err)
		return p, nil
	}
	p.known.Store(&is)
	return p, nil
}

// Check returns the reason why a genuine certificate of a server does not count for now, or nil.
// others are what its holder has sent along.
func (p *Peers) Check(cert *x509.Certificate, others []*x509.Certificate) error {
	b := p.Trust.Bundle()
	if !b.ExchangesCA() || p.Trust.Vouched(pki.Peers, cert, others, p.Now()) {
		return nil
	}
	keys, judges := p.of(b)
	if !judges || slices.Contains(keys[pki.HolderOf(cert)], pki.KeyOf(cert)) {
		return nil
	}
	return fmt.Errorf("the CA is exchanged since %s, and the certificate of %q is of the CA before, with a key that the server had not recorded then: if it is a server of this cluster, give it an empty data directory and let it join again (--wipe --replace --join)",
		b.Since.UTC().Format(time.RFC3339), cert.Subject.CommonName)
}

// of returns the keys for the exchange of the bundle; false if this server does not have them.
func (p *Peers) of(b pki.Bundle) (map[string][]string, bool) {
	is := p.known.Load()
	if is == nil {
		return nil, false
	}
	next, err := b.NewestFor(pki.Peers)
	return is.Keys, err == nil && next == is.Next
}

// Begin writes the recorded keys down before this server believes the bundle. Its view of the store
// has the beginning of the exchange, and so all keys that were recorded before.
func (p *Peers) Begin(ctx context.Context, b pki.Bundle) error {
	if !b.ExchangesCA() {
		return nil
	}
	p.writing.Lock()
	defer p.writing.Unlock()
	if _, judges := p.of(b); judges {
		return nil
	}
	keys, all, err := p.Recorded(ctx)
	if err != nil {
		return fmt.Errorf("the recorded keys of the servers: %w", err)
	}
	if !all {
		p.Logger.Warn("while the CA is exchanged, certificates of the one before count between servers: a server of an earlier version may be a member, which does not keep its key", "since", b.Since)
		return nil
	}
	next, err := b.NewestFor(pki.Peers)
	if err != nil {
		return err
	}
	is := &peerKeys{peersFormat, next, keys}
	data, err := json.Marshal(is)
	if err == nil {
		err = atomicfile.Write(p.Path, data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("write the recorded keys of the servers down: %w", err)
	}
	p.known.Store(is)
	return nil
}

// beginAgain is the pause between two looks for the keys that were missing at the beginning.
const beginAgain = 5 * time.Second

// Retry makes this server judge once it can, in the middle of an exchange: when the last server is
// of this version, or when the file was lost. It ends with ctx. newest returns when this server's
// view of the store is that of the leader.
func (p *Peers) Retry(ctx context.Context, newest func(context.Context) error) error {
	ticker := time.NewTicker(beginAgain)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		b := p.Trust.Bundle()
		if _, judges := p.of(b); judges || !b.ExchangesCA() {
			continue
		}
		if _, all, err := p.Recorded(ctx); err != nil || !all { // as far as this server knows
			continue
		}
		err := newest(ctx)
		if err == nil {
			err = p.Begin(ctx, b)
		}
		if err != nil {
			if ctx.Err() == nil {
				p.Logger.Warn("certificates of the CA before count between servers for now", "retryIn", beginAgain, "err", err)
			}
			continue
		}
		if _, judges := p.of(b); judges && p.Changed != nil {
			p.Changed()
		}
	}
}

// PeerKeys returns the digests of the keys by which each server is known to others, by its ID in
// the store; only of those that keep theirs.
func (b *Book) PeerKeys(ctx context.Context) (map[string][]string, error) {
	records, err := b.Records.Known(ctx, serverAt)
	if err != nil {
		return nil, err
	}
	keys := map[string][]string{}
	for _, data := range records {
		var is serverKey
		if json.Unmarshal(data, &is) == nil && len(is.Peer) > 0 && is.ID != "" {
			keys[is.ID] = append(slices.Clone(is.Peer), is.Digest)
		}
	}
	return keys, nil
}
