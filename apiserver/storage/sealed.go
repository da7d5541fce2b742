package storage

import (
	"bytes"
	"context"
	"errors"

	"github.com/barque/barque/raftstore"
	"k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/value"
)

// Sealer is a value.Transformer whose key changes while requests run. A write holds only while the
// key is the one by which its value was transformed: the state machine checks that with the write.
// So a writer that was late by any time never brings a value under a key that is about to go.
type Sealer interface {
	value.Transformer
	// Seal is TransformToStorage with the precondition of the write; an empty key is no
	// precondition. The value may stay in clear.
	Seal(
		ctx context.Context, data []byte, dataCtx value.Context,
	) (sealed []byte, guard raftstore.Precondition, err error)
	// Renew learns the key of now, after the precondition did not hold.
	Renew(ctx context.Context) error
}

// UnavailableError is returned by a transformer that cannot read a value now, or not on this
// server, for example because the server does not have the key. Such a value is not corrupt:
// nothing deletes it unread.
type UnavailableError struct{ Err error }

func (e *UnavailableError) Error() string { return e.Err.Error() }
func (e *UnavailableError) Unwrap() error { return e.Err }

func isUnavailable(err error) bool {
	_, is := errors.AsType[*UnavailableError](err)
	return is
}

// Enciphered begins each value that a transformer has changed, by convention of Kubernetes.
const Enciphered = "k8s:enc:"

var enciphered = []byte(Enciphered)

// readable reports whether a stored value is an object as it was encoded. A Sealer keeps some
// values in clear and changes others.
func (s *Store) readable(value []byte) bool {
	return s.plain || s.sealer != nil && !bytes.HasPrefix(value, enciphered)
}

// seal transforms a value for the store, and returns the precondition of its write.
func (s *Store) seal(
	ctx context.Context, key string, data []byte,
) (value []byte, guard raftstore.Precondition, err error) {
	if s.sealer != nil {
		value, guard, err = s.sealer.Seal(ctx, data, keyContext(key))
	} else {
		value, err = s.transformer.TransformToStorage(ctx, data, keyContext(key))
	}
	if err != nil {
		err = storage.NewInternalError(err)
	}
	return value, guard, err
}
