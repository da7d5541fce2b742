package revocation

import (
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

	"github.com/barque/barque/internal/atomicfile"
	"github.com/barque/barque/pki"
)

// List is a node's list of entries, in memory and on disk. No question waits for the disk.
type List struct {
	path    string
	logger  *slog.Logger
	write   func(path string, data []byte, mode os.FileMode) error
	entries atomic.Pointer[Entries]

	mu      sync.Mutex    // orders changes
	changed chan struct{} // closed and replaced at each change

	disk  sync.Mutex
	saved *Entries
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
	l := &List{path: Path(dataDir), logger: logger, write: atomicfile.Write, changed: make(chan struct{})}
	l.entries.Store((&Entries{}).index())
	data, err := os.ReadFile(l.path)
	if errors.Is(err, os.ErrNotExist) {
		return l, nil
	}
	if err != nil {
		return nil, fmt.Errorf("the list of revoked certificates: %w", err)
	}
	f := file{Entries: &Entries{}}
	if err := json.Unmarshal(data, &f); err != nil || f.Entries == nil {
		return l, l.setAside(err)
	}
	if f.Format > listFormat {
		return nil,
			fmt.Errorf("%s was written by a newer Barque (format %d, this one reads %d): update this node", l.path,
				f.Format, listFormat)
	}
	l.entries.Store(f.Entries)
	l.saved = l.Entries()
	return l, nil
}

// setAside renames a damaged file. A node without its list believes removed machines until it has
// the list of the others, within seconds. A node that does not start is worse.
func (l *List) setAside(damage error) error {
	aside := l.path + ".damaged"
	if err := os.Rename(l.path, aside); err != nil {
		return fmt.Errorf("set the damaged list of revoked certificates aside: %w", err)
	}
	l.logger.Warn(
		"the list of revoked certificates is damaged: this node believes those on it until it has the list of the others", "aside", aside, "err", damage)
	return nil
}

// Entries returns the entries of the moment.
func (l *List) Entries() *Entries { return l.entries.Load() }

// Changed returns a channel that is closed at the next change.
func (l *List) Changed() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

// Check returns an *Error for a certificate that is revoked, else nil. Its chain is verified
// elsewhere.
func (l *List) Check(cert *x509.Certificate) error { return l.Entries().Check(cert) }

// CheckCredential is Check for a credential of gossip.
func (l *List) CheckCredential(c pki.Credential) error { return l.Entries().checkCredential(c) }

// Set takes other entries. A failure to write them down is logged: they hold all the same, and the
// next Set tries again.
func (l *List) Set(version uint64, entries []Entry) {
	l.set(version, entries, func(*Entries) bool { return true })
}

// Update is Set for entries of a server, which may be older ones than are here: those of a higher
// version only are taken.
func (l *List) Update(version uint64, entries []Entry) {
	l.set(version, entries, func(is *Entries) bool { return version > is.Version })
}

func (l *List) set(version uint64, entries []Entry, takes func(is *Entries) bool) {
	next := (&Entries{Version: version, List: slices.Clone(entries)}).index()
	l.mu.Lock()
	is := l.Entries()
	switch same := next.equal(is); {
	case !takes(is), same && version == is.Version:
	case same:
		l.entries.Store(next)
	default:
		l.say(is, next)
		l.entries.Store(next)
		l.notify()
	}
	l.mu.Unlock()
	l.save()
}

// save writes the entries of the moment down, unless they are.
func (l *List) save() {
	l.disk.Lock()
	defer l.disk.Unlock()
	is := l.Entries()
	if is == l.saved || l.saved == nil && is.Version == 0 {
		return
	}
	data, err := json.Marshal(file{listFormat, is})
	if err == nil {
		err = l.write(l.path, data, 0o600)
	}
	if err != nil {
		l.logger.Error(
			"the list of revoked certificates cannot be written down: after a restart this node believes them until it reaches the others", "entries", len(is.List), "err", err)
		return
	}
	l.saved = is
}

// Notify closes the channel of Changed although no entry is new: something else has changed by
// which certificates are judged.
func (l *List) Notify() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.notify()
}

func (l *List) notify() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// say logs the new entries.
func (l *List) say(is, next *Entries) {
	for _, e := range next.List {
		if was := is.byKey[e.key()]; was == nil || was.Revision < e.Revision {
			l.logger.Warn("certificates are revoked", "kind", e.Kind, "name", e.Name, "id", e.ID, "revision",
				e.Revision, "since", e.At, "by", e.By, "reason", e.Why)
		}
	}
}
