package rawlist

import "k8s.io/apimachinery/pkg/labels"

// layout knows one encoding of the store. All methods but unmarked are called only for bytes that
// were encoded here, since these have a mark or are about to get one.
type layout interface {
	// unmarked returns how long an object is without any mark behind it.
	unmarked(value []byte) (size int, ok bool)
	// is reports whether an object is of the kind.
	is(value []byte) bool
	// item returns an object as a part of a list. It is false where the resourceVersion has no
	// place.
	item(value []byte, revision uint64) (piece, bool)
	// event returns an object as an encoder gives it.
	event(value []byte, revision uint64) ([]byte, bool)
	// labels returns the labels of an object.
	labels(value []byte) (labels.Labels, bool)
	// finds reports whether a field can be found, and field finds it.
	finds(name string) bool
	field(value []byte, name string) string
}

// layouts are the possible layouts of bytes of an unknown kind.
var layouts = []layout{&messages{}, documents{}}
