package provider

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apiserver/pkg/storage/value"

	"github.com/barque/barque/apiserver/encryption"
	"github.com/barque/barque/apiserver/storage"
)

// transformer are the providers of one resource.
type transformer struct {
	value.Transformer
	all   *Providers
	path  string
	first string // name of the provider that writes
}

// TransformFromStorage implements value.Transformer. It reads values in clear without a provider
// identity, too: they are from before the file.
func (t *transformer) TransformFromStorage(
	ctx context.Context, stored []byte, at value.Context,
) (data []byte, stale bool, err error) {
	if !encryption.Enciphered(stored) {
		return stored, t.first != identity, nil
	}
	data, stale, err = t.Transformer.TransformFromStorage(ctx, stored, at)
	if err == nil && bytes.HasPrefix(stored, []byte(unauthenticated)) && !isObject(data) {
		err = errNoObject
	}
	if err != nil {
		return nil, false, t.all.Unreadable(stored, at, err)
	}
	return data, stale, nil
}

// unauthenticated is the prefix of values of aescbc: with a wrong key, one in some 256 decrypts, to
// random bytes. A rewrite of these would lose the object.
const unauthenticated = storage.Enciphered + "aescbc:"

var errNoObject = errors.New(
	"it decrypts to random bytes: the file has another key under this name, or the value was changed")

// isObject reports whether data is an object as the API stores it: in protobuf, in CBOR or in JSON.
// A brace alone begins one in 256 random values.
func isObject(data []byte) bool {
	return bytes.HasPrefix(data, []byte("k8s\x00")) || bytes.HasPrefix(data, []byte("\xd9\xd9\xf7")) ||
		bytes.HasPrefix(data, []byte("{")) && json.Valid(data)
}

// TransformToStorage implements value.Transformer.
func (t *transformer) TransformToStorage(ctx context.Context, data []byte, at value.Context) ([]byte, error) {
	sealed, err := t.Transformer.TransformToStorage(ctx, data, at)
	if err != nil {
		return nil,
			fmt.Errorf("encrypt %s by the provider %s of %s %s: %w", at.AuthenticatedData(), t.first, fileFlag, t.path,
				err)
	}
	return sealed, nil
}

// Encrypts implements encryption.Provider.
func (t *transformer) Encrypts() bool { return t.first != identity }

// Unreadable implements encryption.Outside. Only if all servers have the same file, or none, can no
// server decrypt a value that this one cannot. A plugin of the file may answer later. One that no
// file has any more never does.
func (p *Providers) Unreadable(stored []byte, at value.Context, cause error) error {
	which := encryption.Label(stored)
	var err error
	switch {
	case p.options.File == "":
		err = fmt.Errorf(
			"read %s: it is encrypted by the provider %q, and this server has no %s: start it with the file that the other servers have", at.AuthenticatedData(), which, fileFlag)
	case cause == nil:
		err = fmt.Errorf(
			"read %s: it is encrypted by the provider %q, and %s %s of server %s does not name the resource",
			at.AuthenticatedData(), which, fileFlag, p.options.File, p.server)
	default:
		err = fmt.Errorf(
			"read %s: it is encrypted by the provider %q, and does not decrypt with %s %s of server %s: %w",
			at.AuthenticatedData(), which, fileFlag, p.options.File, p.server, cause)
	}
	is := p.compare()
	if is.file && len(is.differ) > 0 {
		err = fmt.Errorf("%w; the file differs between servers: %s", err, strings.Join(is.differ, ", "))
	}
	g := p.current.Load()
	if !is.same || g != nil && g.has(stored) {
		return &storage.UnavailableError{Err: err}
	}
	return err
}
