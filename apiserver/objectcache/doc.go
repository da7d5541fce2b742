// Package objectcache keeps objects as they were decoded from the store, bounded by bytes.
//
// The store has the only whole copy of each object: the bytes in its tree. Objects that are read
// often have their decoded form here too, so a hundred watchers of one event, or a list with a
// selector that is repeated, decode an object once. Nothing depends on the contents of the cache:
// an object that is missing is decoded again.
//
// # Invariants
//
//   - An [Object] belongs to stored bytes, not to a name: it is found only by the value that it was
//     decoded from. So a store whose state was replaced never shows an object of the old state.
//   - An Object never changes. To change one, take a copy.
//   - Of concurrent callers for an object one decodes it, and the others wait.
//   - Encodings are made once for an Object and for each requested form, and count too.
//   - A deferred object is decoded at the first use of its decoded form: never, if all readers use
//     the stored form.
package objectcache
