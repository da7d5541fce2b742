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

// Outside encrypts resources in place of the data keys, such as by a file of Kubernetes' providers.
// Its answers may change at any time.
type Outside interface {
	// Of returns the transformer of a resource, or nil if the resource belongs to the data keys. It
	// reads values in clear as well.
	Of(resource schema.GroupResource) value.Transformer
	// Writes reports whether all servers read what the transformers write. Until they do, the data
	// key of now writes, which all servers have. Without one, the transformers write.
	Writes() bool
	// Digest identifies what Of returns; it is another one after a change.
	Digest() uint32
	// Unreadable returns the error for a value that this server cannot decrypt. The error is a
	// storage.UnavailableError unless no server can decrypt the value.
	Unreadable(stored []byte, at value.Context, cause error) error
}

// Transformers are the storage.Sealers of all resources.
type Transformers struct {
	keys  Keys
	guard string

	outside Outside // nil without one

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

// Use adds what encrypts some resources in place of the data keys. It is called before all else.
func (t *Transformers) Use(o Outside) { t.outside = o }

// TransformerForResource implements value.ResourceTransformers.
func (t *Transformers) TransformerForResource(resource schema.GroupResource) value.Transformer {
	return &sealer{all: t, of: resource, resource: resource.String(), never: Never(resource)}
}

// outsideOf returns the transformer of a resource that does not belong to the data keys, or nil.
func (t *Transformers) outsideOf(resource schema.GroupResource) value.Transformer {
	if t.outside == nil {
		return nil
	}
	if with := t.outside.Of(resource); with != nil && !Never(resource) {
		return with
	}
	return nil
}

// outsideWrites returns the transformer that writes a resource, or nil if the data keys write it.
func (t *Transformers) outsideWrites(resource schema.GroupResource, e *Epoch) value.Transformer {
	return t.writer(resource, e, func() bool { return t.outside.Writes() })
}

// writer is outsideWrites with an answer of Outside.Writes.
func (t *Transformers) writer(resource schema.GroupResource, e *Epoch, writes func() bool) value.Transformer {
	with := t.outsideOf(resource)
	if with == nil || e.Writes != "" && !writes() {
		return nil
	}
	return with
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
	case !ours && t.outside != nil:
		return nil, "", t.outside.Unreadable(stored, at, nil)
	case !ours:
		err := fmt.Errorf("read %s: it is encrypted by a provider that this server does not have, %q", at.AuthenticatedData(), Provider(stored))
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

// Enciphered reports whether a stored value is encrypted, by data keys or by any provider.
func Enciphered(stored []byte) bool { return bytes.HasPrefix(stored, []byte(storage.Enciphered)) }

// longestProvider bounds the name of a provider in reports: a value may be damaged.
const longestProvider = 100

// Provider returns the beginning of a value that names its provider, and mostly its key.
func Provider(stored []byte) string {
	parts := strings.SplitN(string(stored[:min(len(stored), longestProvider)]), ":", 6)
	return strings.ToValidUTF8(strings.Join(parts[:min(len(parts), 5)], ":"), "?")
}

// sealer is the transformer of one resource.
type sealer struct {
	all      *Transformers
	of       schema.GroupResource
	resource string
	never    bool // it cannot be encrypted
}

var _ storage.Sealer = (*sealer)(nil)

// wants returns the ID of the data key that encrypts the resource, or "" for values in clear.
func (s *sealer) wants(e *Epoch) string {
	if s.never || !slices.Contains(e.Resources, s.resource) && s.all.outsideOf(s.of) == nil {
		return ""
	}
	return e.Writes
}

// Seal implements storage.Sealer. The state of the keys is read before all else: what is decided
// after it, by a file that may change, counts only while that state is the newest one.
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
	if outside := s.all.outsideWrites(s.of, e); outside != nil {
		sealed, err := outside.TransformToStorage(ctx, data, at)
		return sealed, guard, err
	}
	id := s.wants(e)
	if id == "" {
		return data, guard, nil
	}
	sealed, err := s.all.Seal(ctx, id, data, at)
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
	data, id, outdated, err := s.all.open(ctx, s.of, stored, at)
	if err != nil {
		return nil, false, err
	}
	e, err := s.all.keys.Epoch(ctx)
	switch {
	case err != nil:
		return data, false, nil
	case s.all.outsideWrites(s.of, e) != nil:
		return data, id != "" || outdated, nil
	}
	return data, id != s.wants(e), nil
}

// open is Open for a resource. outdated reports that a transformer from outside would write the
// value in another way now.
func (t *Transformers) open(ctx context.Context, resource schema.GroupResource, stored []byte, at value.Context) (data []byte, id string, outdated bool, err error) {
	if !bytes.HasPrefix(stored, []byte(Prefix)) {
		if with := t.outsideOf(resource); with != nil {
			data, outdated, err = with.TransformFromStorage(ctx, stored, at)
			return data, "", outdated, err
		}
	}
	data, id, err = t.Open(ctx, stored, at)
	return data, id, false, err
}
