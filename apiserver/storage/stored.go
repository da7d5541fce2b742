package storage

import (
	"context"
	"io"

	"github.com/barque/barque/apiserver/objectcache"
	"github.com/barque/barque/apiserver/rawlist"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

// marked reports whether an object is sent as it is stored to clients that accept that.
func (s *Store) marked(of objectcache.Stored) bool { return s.format.Marked(of.Value) }

// unread makes objects that are decoded at the first use of their decoded form.
type unread struct {
	encoder                 storedEncoder
	decode, share, takeOver objectcache.Decode
}

// newUnread returns the maker of unread objects of a Store. It refers to no request, since it may
// outlive it.
func newUnread(s *Store) unread {
	decode := func(of objectcache.Stored) (runtime.Object, error) { return s.decodeStored(context.Background(), of) }
	return unread{
		encoder: storedEncoder{s.format},
		decode:  decode,
		share: func(of objectcache.Stored) (runtime.Object, error) {
			o, err := s.shared(context.Background(), of)
			if err != nil {
				return nil, err
			}
			return o.Shared(), nil
		},
		takeOver: func(of objectcache.Stored) (runtime.Object, error) {
			if o := s.peek(of); o != nil {
				return o.Shared(), nil
			}
			return decode(of)
		},
	}
}

// shared returns the object that all readers of stored bytes share.
func (u *unread) shared(in *objectcache.Space, of objectcache.Stored) *objectcache.Object {
	return in.Defer(of, u.decode, u.encoder)
}

// alone returns an object for one reader of stored bytes. When it is decoded, others get the result
// if that is kept.
func (u *unread) alone(of objectcache.Stored, kept bool) *objectcache.Object {
	if kept {
		return objectcache.Alone(of, u.share, u.encoder)
	}
	return objectcache.Alone(of, u.takeOver, u.encoder)
}

// gone returns an object that has ceased to match, as it was, for a reader of stored bytes. It is
// not taken from the decoded objects: at that revision, these have its new state.
func (u *unread) gone(of objectcache.Stored) *objectcache.Object {
	return objectcache.Alone(of, u.decode, u.encoder)
}

// storedEncoder is an objectcache.Encoder of marked objects.
type storedEncoder struct{ format *rawlist.Format }

// Encode implements objectcache.Encoder.
func (e storedEncoder) Encode(
	identifier runtime.Identifier, encode func(runtime.Object, io.Writer) error, of objectcache.Stored,
) ([]byte, bool) {
	return e.format.Encode(identifier, encode, of.Value, of.Revision)
}

// storedMatcher selects objects by their stored bytes. A nil one never can.
type storedMatcher struct {
	format *rawlist.Format
	pred   *storage.SelectionPredicate
	all    bool // all objects are selected
}

// newStoredMatcher returns the matcher of a predicate. It is nil where objects must be decoded to
// know whether they match.
func newStoredMatcher(f *rawlist.Format, pred *storage.SelectionPredicate) *storedMatcher {
	sharded := pred.ShardSelector != nil && !pred.ShardSelector.Empty()
	if f == nil || sharded || pred.Field != nil && !f.Finds(pred.Field) {
		return nil
	}
	return &storedMatcher{format: f, pred: pred, all: pred.Empty()}
}

// matches reports whether a stored object matches. ok is false for one that has to be decoded for
// that, or to be sent.
func (m *storedMatcher) matches(value []byte) (matched, ok bool) {
	if m == nil || !m.format.Marked(value) {
		return false, false
	}
	if m.all {
		return true, true
	}
	labels, ok := m.format.Labels(value)
	if !ok {
		return false, false
	}
	return m.pred.Label.Matches(labels) && (m.pred.Field == nil || m.pred.Field.Matches(m.format.Fields(value))), true
}

// mark decodes the encoded object into out, if the kind can be marked, and returns the bytes to
// store. out has no resourceVersion then.
func (s *Store) mark(
	ctx context.Context, key string, data []byte, obj, out runtime.Object,
) (stored []byte, decoded bool) {
	if s.format == nil || out == nil || out == obj {
		return data, false
	}
	if err := s.decodeInto(ctx, key, data, 0, out); err != nil {
		return data, false // a later read returns the error
	}
	return s.format.Mark(data, out), true
}
