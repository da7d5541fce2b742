// Package rawlist answers lists with the bytes of the store, instead of objects that are decoded
// and encoded again.
//
// What the store holds of an object is nearly what a client is sent: the protobuf message lacks the
// resourceVersion, and the envelope around it is not part of a list. So a [List] keeps a reference
// to each stored value, and writes them one after the other when the response is encoded. Its
// memory is some fifty bytes for each object.
//
// # The way of a list
//
//	Handler ──what is taken──▶ registry: Start ──▶ storage: Begin, Add…, End
//	                                                                      │
//	response ◀── CacheEncode ◀── encoder of the request ◀── Answer ◀──────┘
//
// # What always holds
//
//   - The response is, byte for byte, the one that the plain way gives. Before stored bytes are
//     sent for the first time, the object is decoded and encoded as ever, and both are compared.
//     The [Cache] remembers for which revisions of which objects they were equal. Where they differ
//     it keeps the encoded object, and that is sent: a default of today may be missing in what an
//     earlier version has stored.
//   - JSON is made once for a revision of an object, and kept in the same cache.
//   - A List holds no more than half of what the cache may: objects that were encoded, whether the
//     cache has them or not, and what the cache needs to remember each. A larger list is given up
//     before anything was written, and made of objects.
//   - Only a registry that asks for it gets a List; whoever changes what is listed does not ask.
//   - An encoder that is not the expected one (another version, indented, YAML) gets the plain
//     list.
//
// It is not for custom resources: their schema is applied when they are read.
package rawlist
