// Package objectcache keeps objects as they were decoded from the store, bounded by bytes.
//
// The store has the only whole copy of each object: the bytes in its tree. What is read often has
// its decoded form here too, so a hundred watchers of one event, or a list with a selector that is
// repeated, decode an object once. Nothing depends on what the cache has: whoever misses an object
// decodes it again.
//
// # What always holds
//
//   - An [Object] belongs to stored bytes, not to a name: it is found only by the value that it was
//     decoded from. So a store whose state was replaced never shows an object of the old state.
//   - An Object never changes. Who wants to change one takes a copy.
//   - Of those that ask for an object at the same time one decodes it, and the others wait.
//   - Encodings are made once for an Object and for each form that is asked for, and count too.
//   - An object that is deferred is decoded when somebody asks for what it decodes to: never, when
//     all want it in the form in which it is stored.
package objectcache
