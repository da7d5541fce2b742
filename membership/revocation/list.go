package revocation

import (
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"sync"

	"github.com/barque/barque/internal/atomicfile"
	"github.com/barque/barque/pki"
)

// List is a node's list of entries, in memory and on disk.
type List struct {
	path   string
	logger *slog.Logger

	mu      sync.RWMutex
	entries *Entries
	changed chan struct{} // closed and replaced at each change
	unsaved bool
}

// file is the copy on disk.
type file struct {
	Format  int `json:"format"`
	Entries *Entries
}

// listFormat is raised when an earlier Barque could no longer read the file.
const listFormat = 1

// Path returns the file of a node's list.
func Path(dataDir string) string { return filepath.Join(dataDir, "revoked.json") }

// Load reads the list of a data directory. Without a file it is empty.
func Load(dataDir string, logger *slog.Logger) (*List, error) {
	l := &List{path: Path(dataDir), logger: logger, entries: (&Entries{}).index(), changed: make(chan struct{})}
	data, err := os.ReadFile(l.path)
	if errors.Is(err, os.ErrNotExist) {
		return l, nil
	}
	if err != nil {
		return nil, fmt.Errorf("the list of revoked certificates: %w", err)
	}
	f := file{Entries: &Entries{}}
	if err := json.Unmarshal(data, &f); err != nil || f.Entries == nil {
		// A node without its list would believe removed machines. The store has the list, too.
		return nil, fmt.Errorf("the list of revoked certificates in %s is damaged: %w; remove the file while the other servers are up, and start again", l.path, errors.Join(err))
	}
	if f.Format > listFormat {
		return nil, fmt.Errorf("%s was written by a newer Barque (format %d, this one reads %d): update this node", l.path, f.Format, listFormat)
	}
	l.entries = f.Entries.index()
	return l, nil
}

// Entries returns the entries of the moment.
func (l *List) Entries() *Entries {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.entries
}

// Changed returns a channel that is closed at the next change.
func (l *List) Changed() <-chan struct{} {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.changed
}

// Check returns an *Error for a certificate that is revoked, else nil. Its chain is verified
// elsewhere.
func (l *List) Check(cert *x509.Certificate) error { return l.Entries().check(cert) }

// CheckCredential is Check for a credential of gossip.
func (l *List) CheckCredential(c pki.Credential) error { return l.Entries().checkCredential(c) }

// Set takes other entries. A failure to write them down is logged: they hold all the same, and the
// next Set tries again.
func (l *List) Set(version uint64, entries []Entry) {
	next := (&Entries{Version: version, List: slices.Clone(entries)}).index()
	l.mu.Lock()
	defer l.mu.Unlock()
	same := reflect.DeepEqual(next.List, l.entries.List)
	if same && next.Version == l.entries.Version && !l.unsaved {
		return
	}
	if !same {
		l.say(next)
	}
	l.entries = next
	close(l.changed)
	l.changed = make(chan struct{})
	data, err := json.Marshal(file{listFormat, next})
	if err == nil {
		err = atomicfile.Write(l.path, data, 0o600)
	}
	if l.unsaved = err != nil; err != nil {
		l.logger.Error("the list of revoked certificates cannot be written down: after a restart this node believes them until it reaches the others", "entries", len(entries), "err", err)
	}
}

// Notify closes the channel of Changed although no entry is new: something else has changed by
// which certificates are judged.
func (l *List) Notify() {
	l.mu.Lock()
	defer l.mu.Unlock()
	close(l.changed)
	l.changed = make(chan struct{})
}

// say logs the new entries.
func (l *List) say(next *Entries) {
	for _, e := range next.List {
		if was := l.entries.byKey[e.key()]; was == nil || was.Revision < e.Revision {
			l.logger.Warn("certificates are revoked", "kind", e.Kind, "name", e.Name, "id", e.ID, "revision", e.Revision, "since", e.At, "by", e.By, "why", e.Why)
		}
	}
}
