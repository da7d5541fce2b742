// Package rawlist answers lists and watches with the bytes of the store, instead of objects that
// are decoded and encoded again.
//
// The stored bytes of an object are nearly the bytes for a client: the protobuf message lacks the
// resourceVersion, and the envelope around it is not part of a list. So a [List] keeps a reference
// to each stored value, and writes them one after the other when the response is encoded. Its
// memory is some fifty bytes for each object.
//
// # The way of a list
//
//	Handler ──accepted form──▶ registry: Start ──▶ storage: Begin, Add…, End
//	                                                                      │
//	response ◀── CacheEncode ◀── encoder of the request ◀── Answer ◀──────┘
//
// # The way of an event
//
//	writer ──encode, decode, encode──▶ Mark, if equal ──▶ store ──▶ Marked ──▶ Encode
//
// The writer decodes the stored bytes anyway, for its answer. It encodes the result once more, and
// marks the bytes if they come out again. So the watches of all servers with the same program send
// them without decoding them, and find labels and a few fields in them. Objects without such a mark
// are decoded: those of another version of the program, which may set other defaults, and those
// that decoding changes.
//
// # Invariants
//
//   - The response is, byte for byte, that of decoding and encoding each object. Before stored
//     bytes are sent, the object is decoded and encoded as ever, and both are compared: by its
//     writer, with a mark as the result, or by the first list that has it. The [Cache] has the
//     revisions of objects for which they were equal. Where they differ it keeps the encoded
//     object, and that is sent: a default of today may be missing in an object of an earlier
//     version.
//   - An event is sent as it is stored only to an encoder with a known identifier that has encoded
//     an empty object to its stored form: version, group and kind are the same.
//   - JSON is made once for a revision of an object, and kept in the same cache.
//   - A List holds no more than half of the cache's bound: objects that were encoded, whether the
//     cache has them or not, and the cost of each cache entry. A larger list is given up before
//     anything was written, and made of objects.
//   - Only a registry that requests it gets a List; a registry that changes the listed objects does
//     not.
//   - An encoder that is not the expected one (another version, indented, YAML) gets the plain
//     list.
//
// # Custom resources
//
// They are stored as JSON, which lacks the resourceVersion alone, and a mark behind them is white
// space. Their decoded form depends on their definition. So a mark, and a cache entry, is of one
// [fingerprint] of the codec, which was made with the schema: an object that was stored before a
// change of its definition is decoded. Their handler copies each object that it lists. So it writes
// a list without items, and the response writes the whole one in its place. If the handler is about
// to write anything but JSON, it answers once more, with all objects.
package rawlist
