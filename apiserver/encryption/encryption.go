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

	"github.com/barque/barque/apiserver/restoptions"
	"github.com/barque/barque/apiserver/storage"
	"github.com/barque/barque/internal/scope"
	"github.com/barque/barque/raftstore"
)

// Epoch is the state of the data keys at one revision of it. It defines how values are written.
type Epoch struct {
	// Revision is the revision of the state's last change in the store; 0: the store has none.
	Revision uint64
	// Resources are encrypted, or may be soon, without those of Except. See package scope.
	Resources, Except []string
	// Writes is the ID of the data key that encrypts; empty: values are written in clear.
	Writes string
	// File is the hash of the file of providers that is in use; empty: there is none.
	File string
	// Labels are the labels of the keys under which the file's providers write.
	Labels []string
}

func (e *Epoch) covers(resource string) bool {
	return scope.Scope{Names: e.Resources, Except: e.Except}.Has(resource)
}

// Keys are the data keys of the cluster, as this server has them.
type Keys interface {
	// Epoch returns the newest state that this server knows.
	Epoch(ctx context.Context) (*Epoch, error)
	// Renew learns the newest state that there is.
	Renew(ctx context.Context) error
	// Key returns the key with the ID. The error has the reason why this server lacks it. It is
	// ErrUnlisted only if the newest state of the keys, of all servers, does not list the key.
	Key(ctx context.Context, id string) ([]byte, error)
}

// ErrUnlisted is returned for a key that no server can have: its values are lost.
var ErrUnlisted = errors.New("the newest state of the data keys does not list it")

// Outside has the providers of this server's own file.
type Outside interface {
	// Now returns the providers in effect. They may be others at any time.
	Now() Providers
	// Unreadable returns the error for a value that this server cannot decrypt. The error is a
	// storage.UnavailableError unless no server can decrypt the value.
	Unreadable(stored []byte, at value.Context, cause error) error
}

// Providers are the providers of one content of a file. They stay as they are.
type Providers interface {
	// File is the hash of the content; empty: there is no file.
	File() string
	// Of returns the provider of a resource, or nil if the file does not name the resource. It
	// reads values in clear as well.
	Of(resource schema.GroupResource) Provider
}

// Provider are the providers of one resource.
type Provider interface {
	value.Transformer
	// Encrypts reports whether it writes. The data key writes if it does not: identity is first.
	Encrypts() bool
}

// noFile are the Providers of a server without Outside.
type noFile struct{}

func (noFile) File() string                     { return "" }
func (noFile) Of(schema.GroupResource) Provider { return nil }

// Transformers are the storage.Sealers of all resources.
type Transformers struct {
	keys  Keys
	guard string

	outside Outside // nil without one

	mu     sync.RWMutex
	byKey  map[string]value.Transformer
	places map[schema.GroupResource]string // beginnings of the keys of resources that are not custom
}

var _ restoptions.Placed = (*Transformers)(nil)

// New returns the transformers with the keys. guard is the key of the store at which their state
// is.
func New(keys Keys, guard string) *Transformers {
	return &Transformers{keys: keys, guard: guard, byKey: map[string]value.Transformer{},
		places: map[schema.GroupResource]string{}}
}

// Use adds the providers of a file. It is called before all else.
func (t *Transformers) Use(o Outside) { t.outside = o }

// TransformerForResource implements value.ResourceTransformers.
func (t *Transformers) TransformerForResource(resource schema.GroupResource) value.Transformer {
	return &sealer{all: t, of: resource, never: Never(resource)}
}

// providers returns the providers of this server's file.
func (t *Transformers) providers() Providers {
	if t.outside == nil {
		return noFile{}
	}
	return t.outside.Now()
}

// form is the form of a value: under the provider of a file, or else under a data key, or else
// in clear.
type form struct {
	with  Provider // nil without one
	id    string   // of the data key; empty is in clear
	stays bool     // as it is
}

// form decides by an Epoch how a resource is written. A file writes only if the Epoch lists it: all
// servers have it then. Otherwise the data key does, which all servers have.
func (e *Epoch) form(file Providers, resource schema.GroupResource) (is form) {
	if Never(resource) || e.Writes == "" {
		return form{}
	}
	if e.covers(resource.String()) {
		is.id = e.Writes
	}
	if e.File == "" || file.File() != e.File {
		return is
	}
	if with := file.Of(resource); with != nil && with.Encrypts() {
		is.with, is.id = with, e.Writes
	}
	return is
}

// Prefix is the beginning of a value that this package has encrypted. The ID of the key and a colon
// follow.
const Prefix = storage.Enciphered + "barque:v1:"

// KeyOf returns the ID of the data key of a stored value; empty: it is in clear, or was encrypted
// by another program.
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

// of returns the transformer of a key. The caller may be its first user.
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

// Open returns a stored value in clear, and the ID of its key. The error is a
// storage.UnavailableError unless no server can read the value: it was changed, or its key is gone.
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
		err := fmt.Errorf("read %s: it is encrypted by a provider that this server does not have, %q",
			at.AuthenticatedData(), ProviderOf(stored))
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
		return nil, id,
			fmt.Errorf("read %s: it does not decrypt with data key %s: it was changed, or moved from another place: %w",
				at.AuthenticatedData(), id, err)
	}
	return data, id, nil
}

// Enciphered reports whether a stored value is encrypted, by data keys or by any provider.
func Enciphered(stored []byte) bool { return bytes.HasPrefix(stored, []byte(storage.Enciphered)) }

// longestProvider bounds the name of a provider in reports: a value may be damaged.
const longestProvider = 100

// ProviderOf returns the beginning of a value that names its provider, and mostly its key.
func ProviderOf(stored []byte) string {
	parts := strings.SplitN(string(stored[:min(len(stored), longestProvider)]), ":", 6)
	return strings.ToValidUTF8(strings.Join(parts[:min(len(parts), 5)], ":"), "?")
}

// sealer is the transformer of one resource.
type sealer struct {
	all   *Transformers
	of    schema.GroupResource
	never bool // it cannot be encrypted
}

var _ storage.Sealer = (*sealer)(nil)

// Seal implements storage.Sealer. The state of the keys is read first. A later decision, by a file
// that may change, counts only while that state is the newest one.
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
	is := e.form(s.all.providers(), s.of)
	if is.with != nil {
		sealed, err := is.with.TransformToStorage(ctx, data, at)
		if err != nil || slices.Contains(e.Labels, Label(sealed)) {
			return sealed, guard, err
		}
		// The KMS has another key by now. It writes once the state lists it: until then no rewrite
		// counts with it.
	}
	if is.id == "" {
		return data, guard, nil
	}
	sealed, err := s.all.Seal(ctx, is.id, data, at)
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
func (s *sealer) TransformFromStorage(
	ctx context.Context, stored []byte, at value.Context,
) (data []byte, stale bool, err error) {
	data, id, _, err := s.all.open(ctx, s.all.providers(), s.of, stored, at)
	if err != nil {
		return nil, false, err
	}
	e, err := s.all.keys.Epoch(ctx)
	if err != nil {
		return data, false, nil
	}
	if is := e.form(s.all.providers(), s.of); is.with == nil {
		return data, id != is.id || id == "" && Enciphered(stored), nil
	}
	return data, !slices.Contains(e.Labels, Label(stored)), nil
}

// open is Open for a resource. outdated reports that a provider of the file would write its value
// in another way now.
func (t *Transformers) open(
	ctx context.Context, file Providers, resource schema.GroupResource, stored []byte, at value.Context,
) (data []byte, id string, outdated bool, err error) {
	if Enciphered(stored) && !bytes.HasPrefix(stored, []byte(Prefix)) && !Never(resource) {
		if with := file.Of(resource); with != nil {
			data, outdated, err = with.TransformFromStorage(ctx, stored, at)
			return data, "", outdated, err
		}
	}
	data, id, err = t.Open(ctx, stored, at)
	return data, id, false, err
}
