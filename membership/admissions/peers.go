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
	"github.com/barque/barque/membership/join"
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
// are on this server's disk before it believes the next CA, and stay the same until the end. A
// server that joins in an exchange gets the file of the server that admits it.
//
// The exchange may be given up while this server is off or cut off. The others then have no voucher
// of a CA that is gone, and other keys. So a server believes the CA before again when it had no
// leader for a while, see Watch:
//
//	judges ──no leader for leaderless──▶ open ──a leader's view has this exchange──▶ judges
//	                                      └────the store tells of another state────▶ it is adopted
//
// Servers that have not heard of the end are never a quorum with a leader. Which keys a thief had
// recorded before this server has written them down is not known here: those count as well.
//
// Nothing is judged while a member may be of an earlier version, whose key is in memory only.
type Peers struct {
	Trust *pki.Trust
	// Path is of the file that keeps the keys.
	Path string
	Now  func() time.Time
	// Recorded returns the digests of the keys that the members have recorded, by their IDs in the
	// store, as this server knows, and the names of members that have recorded none that they keep.
	// It is set before Begin is called.
	Recorded func(ctx context.Context) (keys map[string][]string, missing []string, err error)
	// Led reports whether this server has a leader. Confirm returns nil if, in the leader's view,
	// the cluster is in the exchange of the bundle. Both are set before Watch is called.
	Led     func() bool
	Confirm func(ctx context.Context, b pki.Bundle) error
	// Changed is called when this server judges from now on, after a time in which it did not. It
	// may be nil.
	Changed func()
	Logger  *slog.Logger

	writing sync.Mutex
	known   atomic.Pointer[peerKeys]
	open    atomic.Pointer[peerKeys] // known, while this server does not judge by it: see Watch
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
		logger.Warn(
			"the file of the servers' recorded keys cannot be read: while the CA is exchanged, certificates of the one before count until this server has reached a leader", "file", p.Path, "format", is.Format, "err", err)
		return p, nil
	}
	p.known.Store(&is)
	return p, nil
}

// Check returns the reason why a genuine certificate of a server does not count for now, or nil.
// others are its holder's further certificates.
func (p *Peers) Check(cert *x509.Certificate, others []*x509.Certificate) error {
	b := p.Trust.Bundle()
	if !b.ExchangesCA() || p.Trust.Vouched(pki.Peers, cert, others, p.Now()) {
		return nil
	}
	is := p.of(b)
	if is == nil || is == p.open.Load() || slices.Contains(is.Keys[pki.HolderOf(cert)], pki.KeyOf(cert)) {
		return nil
	}
	return unproven(fmt.Sprintf(
		"the CA is exchanged since %s, and the certificate of %q is of the CA before, with a key that the server had not recorded then: "+
			"if that server runs without a leader for minutes, and the others have one, let that server join again (see \"Exchange the CA\" in docs/operations.md)",
		b.Since.UTC().Format(time.RFC3339), cert.Subject.CommonName))
}

// unproven is the reason for which a member's certificate does not count in an exchange.
type unproven string

func (u unproven) Error() string { return string(u) }

// Passing makes the server's calls ones to repeat: it gets a certificate of the new CA in a moment.
func (unproven) Passing() bool { return true }

var errOpen = errors.New(
	"this server has had no leader for a while, so it does not know for sure who the servers are: ask another one")

// Asks returns the reason why a member gets none of the keys that all servers share for now, or
// nil. id is its ID in the store. It is beside the present records, which a thief may have changed
// since the exchange began.
func (p *Peers) Asks(id string, cert *x509.Certificate) error {
	b := p.Trust.Bundle()
	is := p.of(b)
	if !b.ExchangesCA() || is == nil {
		return nil
	}
	if is == p.open.Load() {
		return errOpen
	}
	if pki.HolderOf(cert) != id {
		return fmt.Errorf("%w: its ID is another one", join.ErrNotCurrent)
	}
	if keys, old := is.Keys[id]; old && !slices.Contains(keys, pki.KeyOf(cert)) {
		return fmt.Errorf("%w: the server had recorded another key when the exchange of the CA began",
			join.ErrNotCurrent)
	}
	return nil
}

// of returns the keys for the exchange of the bundle; nil if this server does not have them.
func (p *Peers) of(b pki.Bundle) *peerKeys {
	is := p.known.Load()
	if is == nil {
		return nil
	}
	if next, err := b.NewestFor(pki.Peers); err != nil || next != is.Next {
		return nil
	}
	return is
}

// Grant returns the content of the file for a server that joins; nil without one. With it go the
// keys that all servers share, so there is an error where Asks has one.
func (p *Peers) Grant() (json.RawMessage, error) {
	is := p.known.Load()
	if is == nil || !p.Trust.Bundle().ExchangesCA() {
		return nil, nil
	}
	if is == p.open.Load() {
		return nil, errOpen
	}
	return json.Marshal(is)
}

// TakePeers puts the keys that a server was granted in place of those that the data directory has
// of before.
func TakePeers(dataDir string, granted json.RawMessage) error {
	if len(granted) == 0 {
		return atomicfile.Remove(PeersPath(dataDir))
	}
	return atomicfile.Write(PeersPath(dataDir), granted, 0o600)
}

// Begin writes the recorded keys down before this server believes the bundle. Its view of the store
// has the beginning of the exchange, and so all keys that were recorded before.
func (p *Peers) Begin(ctx context.Context, b pki.Bundle) error {
	if !b.ExchangesCA() {
		return nil
	}
	p.writing.Lock()
	defer p.writing.Unlock()
	if p.of(b) != nil {
		return nil
	}
	keys, missing, err := p.Recorded(ctx)
	if err != nil {
		return fmt.Errorf("the recorded keys of the servers: %w", err)
	}
	if len(missing) > 0 {
		p.warn(b, missing)
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

func (p *Peers) warn(b pki.Bundle, missing []string) {
	p.Logger.Warn(
		"while the CA is exchanged, certificates of the one before count between servers: these have recorded no key that they keep, as servers of earlier versions; upgrade, start or remove them",
		"servers", missing, "since", b.Since)
}

const (
	// beginAgain is the pause between two looks for missing keys.
	beginAgain = 5 * time.Second
	// warnAgain is the pause between two warnings that nothing is judged.
	warnAgain = 10 * time.Minute
	// leaderless is how long a server has no leader until it believes the CA before again. An
	// election takes seconds.
	leaderless = 30 * time.Second
)

// Retry makes this server judge once it can, in the middle of an exchange: when the last server is
// of this version, or when the file was lost. It ends with ctx. newest returns when this server's
// view of the store is that of the leader.
func (p *Peers) Retry(ctx context.Context, newest func(context.Context) error) error {
	ticker := time.NewTicker(beginAgain)
	defer ticker.Stop()
	warned := p.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		b := p.Trust.Bundle()
		if p.of(b) != nil || !b.ExchangesCA() {
			continue
		}
		_, missing, err := p.Recorded(ctx) // as far as this server knows
		if len(missing) > 0 && p.Now().Sub(warned) >= warnAgain {
			p.warn(b, missing)
			warned = p.Now()
		}
		if err != nil || len(missing) > 0 {
			continue
		}
		err = newest(ctx)
		if err == nil {
			err = p.Begin(ctx, b)
		}
		if err != nil {
			if ctx.Err() == nil {
				p.Logger.Warn("certificates of the CA before count between servers for now", "retryIn", beginAgain,
					"err", err)
			}
			continue
		}
		if p.of(b) != nil {
			p.changed()
		}
	}
}

func (p *Peers) changed() {
	if p.Changed != nil {
		p.Changed()
	}
}

// Watch lets this server believe the CA before again while it cannot learn from others that the
// exchange is over, see Peers. It ends with ctx.
func (p *Peers) Watch(ctx context.Context) error {
	ticker := time.NewTicker(beginAgain)
	defer ticker.Stop()
	led := p.Now()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		b := p.Trust.Bundle()
		is := p.of(b)
		switch has := p.Led(); {
		case is == nil || !b.ExchangesCA():
			led = p.Now()
		case is == p.open.Load():
			if has && p.confirm(ctx, b) == nil {
				p.open.Store(nil)
				led = p.Now()
				p.Logger.Info(
					"certificates of the CA before are judged again: this server has a leader, and the exchange goes on", "since", b.Since)
				p.changed()
			}
		case has:
			led = p.Now()
		case p.Now().Sub(led) >= leaderless:
			p.open.Store(is)
			p.Logger.Warn(
				"certificates of the CA before count for this server until it has a leader: it has none that it believes, and the exchange may have been given up meanwhile", "since", b.Since)
		}
	}
}

func (p *Peers) confirm(ctx context.Context, b pki.Bundle) error {
	ctx, cancel := context.WithTimeout(ctx, beginAgain)
	defer cancel()
	return p.Confirm(ctx, b)
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
