package datakeys

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/barque/barque/internal/atomicfile"
	"github.com/barque/barque/membership/rollover"
)

// KeysConfig of Keys.
type KeysConfig struct {
	Cluster string // ID
	// Path is that of the file in which this server keeps its keys.
	Path   string
	Sealer Sealer
	// Look returns the state in the store, the revision of its last change, and the revision of the
	// store at which that was read: the newest one, or that of this server.
	Look func(ctx context.Context, newest bool) (value []byte, revision, at uint64, err error)
	// Note writes down whether versions that cannot read encrypted objects must not use the data
	// directory. They must not while this server has keys, or the state in its store has. It is
	// called at each start, at each change, and before the keys of a state are fetched.
	Note func(encrypts bool) error
	// InUse reports whether the newest state of the store has a value under the key of the ID. nil:
	// it has.
	InUse func(ctx context.Context, id string) (bool, error)
	// Took is called after this server has taken over a generation.
	Took func(generation uint64)
}

// Keys are the data keys, as this server has them. All methods may be called at any time.
type Keys struct {
	config KeysConfig
	now    atomic.Pointer[seen]

	// installing is held while keys and notes are written to the disk, before mu.
	installing sync.Mutex

	mu     sync.Mutex
	own    own
	opened map[string][]byte // keys of states that this server has not taken over
}

// Epoch is the state of the keys at one revision of it.
type Epoch struct {
	Revision uint64 // of its last change; 0: the store has none
	// Resources are encrypted, or may be soon, without those of Except. See package scope.
	Resources, Except []string
	Writes            string   // ID of the key that encrypts; empty: objects are written in clear
	File              string   // hash of the file of providers that is in use; empty: there is none
	Labels            []string // of the keys under which its providers write
}

// seen is an Epoch, and the revision of the store at which it was read.
type seen struct {
	Epoch
	at     uint64
	probes map[string][]byte
}

// own is the file.
type own struct {
	Cluster    string    `json:"cluster"` // ID: the keys of a cluster before are not this one's
	Generation uint64    `json:"generation"`
	Resources  []string  `json:"resources,omitempty"`
	Except     []string  `json:"except,omitempty"`
	Writes     string    `json:"writes,omitempty"`
	Keys       []heldKey `json:"keys,omitempty"`
	File       string    `json:"file,omitempty"`
	Labels     []string  `json:"labels,omitempty"`
}

type heldKey struct {
	ID   string    `json:"id"`
	Made time.Time `json:"made"`
	Key  []byte    `json:"key"`
}

func (o own) key(id string) []byte {
	for _, k := range o.Keys {
		if k.ID == id {
			return k.Key
		}
	}
	return nil
}

// First is the generation of a server that has never taken over a state. Servers of earlier
// versions show none in gossip.
const First = 1

// Load reads this server's keys.
func Load(c KeysConfig) (*Keys, error) {
	k := &Keys{config: c, own: own{Generation: First}, opened: map[string][]byte{}}
	data, err := os.ReadFile(c.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return k, nil
	case err != nil:
		return nil, fmt.Errorf("the data keys: %w", err)
	}
	if err := json.Unmarshal(data, &k.own); err != nil {
		return nil, fmt.Errorf("%s is damaged: %w; move it away: the server gets the keys from the store", c.Path, err)
	}
	for _, held := range k.own.Keys {
		if KeyID(held.Key) != held.ID {
			return nil,
				fmt.Errorf(
					"%s is damaged: data key %s is another one; move the file away: the server gets the keys from the store", c.Path, held.ID)
		}
	}
	if k.own.Cluster != c.Cluster {
		k.own = own{}
	}
	k.own.Generation = max(k.own.Generation, First)
	if len(k.own.Keys) > 0 {
		if err := k.note(document{}); err != nil {
			return nil, err
		}
	}
	return k, nil
}

// note notes whether there are keys: this server's, or those of the state in its store.
func (k *Keys) note(d document) error {
	k.installing.Lock()
	defer k.installing.Unlock()
	encrypts := len(d.Keys) > 0 || len(k.held().Keys) > 0
	if err := k.config.Note(encrypts); err != nil {
		return fmt.Errorf("note in the data directory whether objects are encrypted (%t): %w", encrypts, err)
	}
	return nil
}

// Generation is the one that this server has taken over.
func (k *Keys) Generation() uint64 { return k.held().Generation }

func (k *Keys) held() own {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.own
}

// Stored returns the generation of the state in this server's store, 0 if there is none.
func (k *Keys) Stored(ctx context.Context) (generation uint64, err error) {
	d, _, _, err := k.look(ctx, false)
	return d.Generation, err
}

// Epoch returns the newest state that this server knows.
func (k *Keys) Epoch(ctx context.Context) (*Epoch, error) {
	if now := k.now.Load(); now != nil {
		return &now.Epoch, nil
	}
	return k.learn(ctx, false)
}

// Probes are those of the newest state that this server knows, by the labels of the keys.
func (k *Keys) Probes() map[string][]byte {
	if now := k.now.Load(); now != nil {
		return now.probes
	}
	return nil
}

// Renew learns the newest state that there is.
func (k *Keys) Renew(ctx context.Context) error {
	_, err := k.learn(ctx, true)
	return err
}

// learn reads the state. One of a later revision of the store replaces one of an earlier revision:
// a restored backup may bring a state that was changed earlier, or none.
func (k *Keys) learn(ctx context.Context, newest bool) (*Epoch, error) {
	d, revision, at, err := k.look(ctx, newest)
	if err != nil {
		return nil, err
	}
	is := &seen{d.epoch(revision), at, d.Probes}
	for {
		before := k.now.Load()
		if before != nil && before.at >= is.at {
			return &before.Epoch, nil
		}
		if k.now.CompareAndSwap(before, is) {
			return &is.Epoch, nil
		}
	}
}

// look reads the document. Without one, the default resources are guarded and not encrypted.
func (k *Keys) look(ctx context.Context, newest bool) (d document, revision, at uint64, err error) {
	value, revision, at, err := k.config.Look(ctx, newest)
	if err != nil {
		return d, 0, 0, fmt.Errorf("read the state of the data keys: %w", err)
	}
	if len(value) == 0 {
		return document{Resources: DefaultResources()}, revision, at, nil
	}
	if d, err = parse(value); err != nil {
		return d, 0, 0, err
	}
	return d, revision, at, nil
}

// parse reads a document. One of a newer Barque is an error: this server does not know the duties
// of its writers.
func parse(value []byte) (d document, err error) {
	var is rollover.Envelope
	if err := json.Unmarshal(value, &is); err != nil {
		return d, fmt.Errorf("the state of the data keys is damaged: %w; restore a backup of the cluster", err)
	}
	if is.Format > fileFormat {
		return d, errors.New("the state of the data keys was written by a newer Barque: update this server")
	}
	if err := json.Unmarshal(value, &d); err != nil {
		return document{}, fmt.Errorf("the state of the data keys is damaged: %w; restore a backup of the cluster", err)
	}
	if is.Format < format || is.Cluster != "" || d.Generation == 0 {
		return document{},
			errors.New(
				"the state of the data keys is damaged: it is of no generation or format; restore a backup of the cluster")
	}
	return d, nil
}

// ErrUnlisted is returned for a key that the newest state does not list.
var ErrUnlisted = errors.New("the state of the keys in the store does not list it, so nobody has it")

// Key returns the key with the ID. The error has the reason why this server lacks it, and is
// ErrUnlisted if the newest state lacks it, too.
func (k *Keys) Key(ctx context.Context, id string) ([]byte, error) {
	if key := k.known(id); key != nil {
		return key, nil
	}
	for _, newest := range []bool{false, true} {
		d, _, _, err := k.look(ctx, newest)
		if err != nil {
			return nil, fmt.Errorf("data key %s is not on this server: %w", id, err)
		}
		if sealed, ok := d.key(id); ok {
			return k.open(sealed)
		}
	}
	return nil,
		fmt.Errorf("data key %s is not on this server: %w; see `barque secrets-encrypt status`", id, ErrUnlisted)
}

func (k *Keys) known(id string) []byte {
	k.mu.Lock()
	defer k.mu.Unlock()
	if key := k.own.key(id); key != nil {
		return key
	}
	return k.opened[id]
}

// open returns the key, from this server's own keys if they have it.
func (k *Keys) open(sealed sealedKey) ([]byte, error) {
	if key := k.known(sealed.ID); key != nil {
		return key, nil
	}
	key, err := open(k.config.Sealer, sealed)
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.opened[sealed.ID] = key
	return key, nil
}

// Ready returns why this server cannot read the objects in its store, or cannot encrypt, or nil. A
// key that it cannot open counts only if it encrypts, or soon will, or if a value is under it.
func (k *Keys) Ready(ctx context.Context) error {
	d, _, _, err := k.look(ctx, false)
	if err != nil {
		return err
	}
	for _, sealed := range d.Keys {
		_, err := k.open(sealed)
		if err == nil {
			continue
		}
		if needed, unknown := k.needs(ctx, d, sealed.ID); needed {
			return fmt.Errorf("this server cannot read all objects: %w", cmp.Or(unknown, err))
		}
	}
	return nil
}

// needs reports whether a key of the state is of use: also if that is not known.
func (k *Keys) needs(ctx context.Context, d document, id string) (bool, error) {
	if id == d.Writes || id == d.Next || k.config.InUse == nil {
		return true, nil
	}
	used, err := k.config.InUse(ctx, id)
	return used || err != nil, err
}

// install writes the keys of a generation to the disk, and uses them. Those of earlier states are
// forgotten.
func (k *Keys) install(next own) error {
	took, err := k.put(next)
	if took {
		k.config.Took(next.Generation)
	}
	return err
}

func (k *Keys) put(next own) (took bool, err error) {
	k.installing.Lock()
	defer k.installing.Unlock()
	if next.Generation <= k.Generation() {
		return false, nil
	}
	if len(next.Keys) > 0 {
		if err := k.config.Note(true); err != nil {
			return false, fmt.Errorf("note that objects are encrypted: %w", err)
		}
	}
	next.Cluster = k.config.Cluster
	data, err := json.MarshalIndent(next, "", "  ")
	if err != nil {
		return false, err
	}
	if err := atomicfile.Write(k.config.Path, append(data, '\n'), 0o600); err != nil {
		return false, fmt.Errorf("write the data keys of generation %d to disk: %w", next.Generation, err)
	}
	k.mu.Lock()
	k.own = next
	clear(k.opened)
	k.mu.Unlock()
	if len(next.Keys) == 0 {
		if err := k.config.Note(false); err != nil { // the next start does it
			return true, fmt.Errorf("note that objects are not encrypted any more: %w", err)
		}
	}
	return true, nil
}

// equal reports whether two lists of resources have the same ones.
func equal(a, b []string) bool {
	a, b = slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b))
	return slices.Equal(a, b)
}

// FitRestored returns the state of the keys that a backup brings, so that every server of this
// cluster can open it: a key that is sealed with a former CA's key is sealed anew, if this server
// has it. The error says why the objects of the backup could not be read.
func (k *Keys) FitRestored(value []byte) ([]byte, error) {
	d, err := parse(value)
	if err != nil {
		return nil, fmt.Errorf("in the backup, %w", err)
	}
	anew := false
	for i, sealed := range d.Keys {
		key, err := open(k.config.Sealer, sealed)
		if err == nil && sealed.CA == k.config.Sealer.Digest() {
			continue
		}
		if err != nil {
			key = k.known(sealed.ID)
		}
		if key == nil {
			return nil, fmt.Errorf("the backup has encrypted objects that this cluster could not read: %w. "+
				"Begin a new cluster with a sealed backup, which has that CA's key (`barque server --restore-from FILE --restore-key-file KEY`), "+
				"or restore a backup from after the CA was exchanged", err)
		}
		if d.Keys[i], err = seal(k.config.Sealer, key, sealed.Made); err != nil {
			return nil, err
		}
		anew = true
	}
	if !anew {
		return value, nil
	}
	return json.Marshal(d)
}

// Opens returns why a state of the keys cannot be opened by the CAs of a sealer alone, or nil.
func Opens(value []byte, with Sealer) error {
	d, err := parse(value)
	if err != nil {
		return err
	}
	for _, sealed := range d.Keys {
		if _, err := open(with, sealed); err != nil {
			return err
		}
	}
	return nil
}
