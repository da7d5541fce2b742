// Package rawlist answers lists and watches with the bytes of the store, instead of objects that
// are decoded and encoded again.
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
// # The way of an event
//
//	writer ──encode, decode, encode──▶ Mark, if equal ──▶ store ──▶ Marked ──▶ Encode
//
// The writer decodes what it stores anyway, for its answer. It encodes that once more, and marks
// the bytes if they come out again. So the watches of all servers with the same program send them
// without decoding them, and find labels and a few fields in them. Objects without such a mark are
// decoded: those of another version of the program, which may set other defaults, and those that
// decoding changes.
//
// # What always holds
//
//   - The response is, byte for byte, the one that the plain way gives. Before stored bytes are
//     sent, the object is decoded and encoded as ever, and both are compared: by its writer, who
//     marks it, or by the first list that has it. The [Cache] remembers for which revisions of
//     which objects they were equal. Where they differ it keeps the encoded object, and that is
//     sent: a default of today may be missing in what an earlier version has stored.
//   - An event is sent as it is stored to an encoder that is known by its identifier, and has shown
//     on an empty object that it gives what is stored: version, group and kind are the same.
//   - JSON is made once for a revision of an object, and kept in the same cache.
//   - A List holds no more than half of what the cache may: objects that were encoded, whether the
//     cache has them or not, and what the cache needs to remember each. A larger list is given up
//     before anything was written, and made of objects.
//   - Only a registry that asks for it gets a List; whoever changes what is listed does not ask.
//   - An encoder that is not the expected one (another version, indented, YAML) gets the plain
//     list.
//
// # Custom resources
//
// They are stored as JSON, which lacks the resourceVersion alone, and a mark behind them is white
// space. What decoding makes of them depends on their definition. So a mark, and what is remembered
// of an object, is of one [fingerprint] of the codec, which was made with the schema: what was
// stored before a definition has changed is decoded. Their handler copies each object that it
// lists. So it writes a list without items, and the response writes the whole one in its place. If
// the handler is about to write anything but JSON, it answers once more, with all objects.
package rawlist
