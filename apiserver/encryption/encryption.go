package encryption

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/storage/value"
	"k8s.io/apiserver/pkg/storage/value/encrypt/aes"

	"github.com/barque/barque/apiserver/storage"
	"github.com/barque/barque/raftstore"
)

// Epoch is the state of the data keys at one revision of it.
type Epoch struct {
	// Revision is that of the state's last change in the store; 0: the store has none.
	Revision uint64
	// Resources are encrypted, or may be soon: "secrets", "widgets.example.com".
	Resources []string
	// Writes is the ID of the key that encrypts; empty: values are written in clear.
	Writes string
}

// Keys are the data keys of the cluster, as this server has them.
type Keys interface {
	// Epoch returns the newest state that this server knows.
	Epoch(ctx context.Context) (*Epoch, error)
	// Renew learns the newest state that there is.
	Renew(ctx context.Context) error
	// Key returns the key with the ID. The error tells why this server does not have it. It is
	// ErrUnlisted only if the newest state of the keys, of all servers, does not list the key.
	Key(ctx context.Context, id string) ([]byte, error)
}

// ErrUnlisted is returned for a key that no server can have: its values are lost.
var ErrUnlisted = errors.New("the newest state of the data keys does not list it")

// Transformers are the storage.Sealers of all resources.
type Transformers struct {
	keys  Keys
	guard string

	mu     sync.RWMutex
	byKey  map[string]value.Transformer
	places map[schema.GroupResource]string // beginnings of the keys of resources that are not custom
}

var _ storage.Placed = (*Transformers)(nil)

// New returns the transformers with the keys. guard is the key of the store at which their state
// is.
func New(keys Keys, guard string) *Transformers {
	return &Transformers{keys: keys, guard: guard, byKey: map[string]value.Transformer{}, places: map[schema.GroupResource]string{}}
}

// TransformerForResource implements value.ResourceTransformers.
func (t *Transformers) TransformerForResource(resource schema.GroupResource) value.Transformer {
	return &sealer{all: t, resource: resource.String(), never: slices.Contains(never, resource)}
}

// Prefix is the beginning of a value that this package has encrypted. The ID of the key and a colon
// follow.
const Prefix = storage.Enciphered + "barque:v1:"

// KeyOf returns the ID of the data key under which a stored value is; empty: it is in clear, or was
// encrypted by something else.
func KeyOf(stored []byte) string {
	id, _, _ := split(stored)
	return id
}

func split(stored []byte) (id string, sealed []byte, ok bool) {
	rest, ok := bytes.CutPrefix(stored, []byte(Prefix))
	if !ok {
		return "", nil, false
	}
	name, sealed, ok := bytes.Cut(rest, []byte(":"))
	return string(name), sealed, ok
}

// of returns what encrypts and decrypts with a key. The caller may be the first one to use it.
func (t *Transformers) of(ctx context.Context, id string) (value.Transformer, error) {
	t.mu.RLock()
	known := t.byKey[id]
	t.mu.RUnlock()
	if known != nil {
		return known, nil
	}
	key, err := t.keys.Key(ctx, id)
	if err != nil {
		return nil, err
	}
	made, err := aes.NewHKDFExtendedNonceGCMTransformer(key)
	if err != nil {
		return nil, fmt.Errorf("data key %s: %w", id, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if known := t.byKey[id]; known != nil {
		return known, nil
	}
	t.byKey[id] = made
	return made, nil
}

// Seal encrypts a value for its place in the store with the key of the ID.
func (t *Transformers) Seal(ctx context.Context, id string, data []byte, at value.Context) ([]byte, error) {
	with, err := t.of(ctx, id)
	if err != nil {
		return nil, fmt.Errorf("encrypt %s: %w", at.AuthenticatedData(), err)
	}
	sealed, err := with.TransformToStorage(ctx, data, at)
	if err != nil {
		return nil, fmt.Errorf("encrypt %s with data key %s: %w", at.AuthenticatedData(), id, err)
	}
	return slices.Concat([]byte(Prefix), []byte(id), []byte(":"), sealed), nil
}

// Open returns a stored value in clear, and the ID of the key under which it was. The error is a
// storage.UnavailableError unless nobody can read the value: it was changed, or its key is gone.
func (t *Transformers) Open(ctx context.Context, stored []byte, at value.Context) (data []byte, id string, err error) {
	id, sealed, ours := split(stored)
	switch {
	case !bytes.HasPrefix(stored, []byte(storage.Enciphered)):
		return stored, "", nil
	case !ours && bytes.HasPrefix(stored, []byte(Prefix)):
		return nil, "", fmt.Errorf("read %s: it was cut: it names no data key", at.AuthenticatedData())
	case !ours:
		err := fmt.Errorf("read %s: it is encrypted by a provider that this server does not have, %q", at.AuthenticatedData(), provider(stored))
		return nil, "", &storage.UnavailableError{Err: err}
	}
	with, err := t.of(ctx, id)
	if err != nil {
		err = fmt.Errorf("read %s: %w", at.AuthenticatedData(), err)
		if !errors.Is(err, ErrUnlisted) {
			err = &storage.UnavailableError{Err: err}
		}
		return nil, id, err
	}
	data, _, err = with.TransformFromStorage(ctx, sealed, at)
	if err != nil {
		return nil, id, fmt.Errorf("read %s: it does not decrypt with data key %s: it was changed, or moved from another place: %w", at.AuthenticatedData(), id, err)
	}
	return data, id, nil
}

// provider returns the beginning of a value that names its provider.
func provider(stored []byte) string {
	parts := strings.SplitN(string(stored[:min(len(stored), 100)]), ":", 6)
	return strings.Join(parts[:min(len(parts), 5)], ":")
}

// sealer is the transformer of one resource.
type sealer struct {
	all      *Transformers
	resource string
	never    bool // it cannot be encrypted
}

var _ storage.Sealer = (*sealer)(nil)

// covers tells whether the resource is encrypted, or may be soon.
func (s *sealer) covers(e *Epoch) bool { return slices.Contains(e.Resources, s.resource) }

// Seal implements storage.Sealer.
func (s *sealer) Seal(ctx context.Context, data []byte, at value.Context) ([]byte, raftstore.Precondition, error) {
	if s.never { // first: nodes need their leases, also while the state of the keys is damaged
		return data, raftstore.Precondition{}, nil
	}
	e, err := s.all.keys.Epoch(ctx)
	if err != nil {
		return nil, raftstore.Precondition{}, err
	}
	// Also without encryption: the resource may have been named by a state that is newer.
	guard := raftstore.Precondition{Key: s.all.guard, ModRevision: e.Revision}
	if e.Writes == "" || !s.covers(e) {
		return data, guard, nil
	}
	sealed, err := s.all.Seal(ctx, e.Writes, data, at)
	return sealed, guard, err
}

// Renew implements storage.Sealer.
func (s *sealer) Renew(ctx context.Context) error { return s.all.keys.Renew(ctx) }

// TransformToStorage implements value.Transformer.
func (s *sealer) TransformToStorage(ctx context.Context, data []byte, at value.Context) ([]byte, error) {
	sealed, _, err := s.Seal(ctx, data, at)
	return sealed, err
}

// TransformFromStorage implements value.Transformer. A value is stale if it would be written in
// another way now. One that was read is not refused because that is not known.
func (s *sealer) TransformFromStorage(ctx context.Context, stored []byte, at value.Context) (data []byte, stale bool, err error) {
	data, id, err := s.all.Open(ctx, stored, at)
	if err != nil {
		return nil, false, err
	}
	e, err := s.all.keys.Epoch(ctx)
	if err != nil {
		return data, false, nil
	}
	if !s.covers(e) {
		return data, id != "", nil
	}
	return data, id != e.Writes, nil
}
