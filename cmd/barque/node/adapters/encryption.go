package adapters

import (
	"cmp"
	"context"
	"errors"

	"github.com/barque/barque/apiserver/encryption"
	"github.com/barque/barque/apiserver/encryption/provider"
	"github.com/barque/barque/membership/datakeys"
)

// FileOfProviders is this server's file, for changes of the data keys.
type FileOfProviders struct{ *provider.Providers }

// Agreed implements datakeys.File.
func (f FileOfProviders) Agreed(ctx context.Context, listed string, ask bool) (datakeys.Agreement, error) {
	is, err := f.Providers.Agreed(ctx, listed, ask)
	return datakeys.Agreement(is), err
}

// Status implements datakeys.File.
func (f FileOfProviders) Status() *datakeys.FileStatus {
	is := f.Providers.Status()
	if is == nil {
		return nil
	}
	return &datakeys.FileStatus{Path: is.Path, Hash: is.Hash, Problem: is.Problem, Resources: is.Resources,
		Differ: is.Differ, Away: is.Away}
}

// KeySource are data keys for the API server.
type KeySource struct{ *datakeys.Keys }

// Epoch implements encryption.Keys.
func (k KeySource) Epoch(ctx context.Context) (*encryption.Epoch, error) {
	e, err := k.Keys.Epoch(ctx)
	return (*encryption.Epoch)(e), err
}

// Key implements encryption.Keys.
func (k KeySource) Key(ctx context.Context, id string) ([]byte, error) {
	key, err := k.Keys.Key(ctx, id)
	if errors.Is(err, datakeys.ErrUnlisted) {
		err = unlistedError{err}
	}
	return key, err
}

// unlistedError is encryption.ErrUnlisted with the words of package datakeys.
type unlistedError struct{ error }

// Is supports errors.Is.
func (unlistedError) Is(target error) bool { return target == encryption.ErrUnlisted }

// StoredObjects are the objects in the store, for changes of the data keys.
type StoredObjects struct{ *encryption.Objects }

// Rewrite implements datakeys.Objects.
func (o StoredObjects) Rewrite(ctx context.Context, term uint64, e *datakeys.Epoch, report func(left int)) error {
	return o.Objects.Rewrite(ctx, term, (*encryption.Epoch)(e), report)
}

// Count implements datakeys.Objects.
func (o StoredObjects) Count(ctx context.Context, e *datakeys.Epoch) (datakeys.Counts, error) {
	n, err := o.Objects.Count(ctx, (*encryption.Epoch)(e))
	return datakeys.Counts(n), err
}

// Left implements datakeys.Objects.
func (o StoredObjects) Left(ctx context.Context, e *datakeys.Epoch) (int, error) {
	return o.Objects.Left(ctx, (*encryption.Epoch)(e))
}

// Readability is whether this server reads all objects: those under data keys, and those under a
// file.
type Readability struct {
	*datakeys.Keys
	Sight *encryption.Sight
}

// Ready returns why it does not, or nil.
func (r Readability) Ready(ctx context.Context) error {
	return cmp.Or(r.Keys.Ready(ctx), r.Sight.Blind())
}
