package rawlist

import (
	"bytes"
	"encoding/binary"
	"io"
	"math/bits"
)

// magic is the prefix of every protobuf of the API.
var magic = []byte("k8s\x00")

// Tags of the fields that are read: a field's number and its type, which is "bytes".
const (
	unknownTypeMeta = 1<<3 | 2
	unknownRaw      = 2<<3 | 2
	listItems       = 2<<3 | 2
	objectMetadata  = 1<<3 | 2
	metaVersion     = 6<<3 | 2
)

// field reads the field that begins at an offset. Of a field of bytes, it returns these. The end is
// negative when there is no whole field.
func field(message []byte, at int) (tag uint64, value []byte, end int) {
	tag, n := binary.Uvarint(message[at:])
	if n <= 0 {
		return 0, nil, -1
	}
	at += n
	switch tag & 7 {
	case 0:
		_, n = binary.Uvarint(message[at:])
		if n <= 0 {
			return 0, nil, -1
		}
		return tag, nil, at + n
	case 1:
		n = 8
	case 5:
		n = 4
	case 2:
		size, s := binary.Uvarint(message[at:])
		if s <= 0 || size > uint64(len(message)-at-s) {
			return 0, nil, -1
		}
		at += s
		end = at + int(size)
		return tag, message[at:end], end
	default:
		return 0, nil, -1
	}
	if n > len(message)-at {
		return 0, nil, -1
	}
	return tag, nil, at + n
}

// envelope takes an encoded object apart: its type, the message, and where the field of the message
// begins and ends.
func envelope(data []byte) (typeMeta, message []byte, begin, end int, ok bool) {
	if !bytes.HasPrefix(data, magic) {
		return nil, nil, 0, 0, false
	}
	for at := len(magic); at < len(data); {
		tag, value, next := field(data, at)
		switch {
		case next < 0:
			return nil, nil, 0, 0, false
		case tag == unknownTypeMeta:
			typeMeta = value
		case tag == unknownRaw:
			return typeMeta, value, at, next, true
		}
		at = next
	}
	return nil, nil, 0, 0, false
}

// splice makes a piece of a stored message, which has an empty resourceVersion.
func splice(message []byte, revision uint64) (piece, bool) {
	tag, meta, end := field(message, 0)
	if end < 0 || tag != objectMetadata || len(message) > 1<<30 {
		return piece{}, false
	}
	start := end - len(meta)
	for at := 0; at < len(meta); {
		tag, value, next := field(meta, at)
		if next < 0 || tag > metaVersion {
			break
		}
		if tag == metaVersion {
			return piece{data: message, revision: revision, metaAt: int32(start), metaEnd: int32(end),
				versionAt: int32(start + at)}, len(value) == 0
		}
		at = next
	}
	return piece{}, false
}

// writeProtobuf writes the list: head is the part before the message, message is the list without
// items, and tail is the part behind it.
func writeProtobuf(w io.Writer, head, message, tail []byte, pieces []piece) error {
	size := len(message)
	for i := range pieces {
		n := pieces[i].size()
		size += 1 + varintSize(n) + n
	}
	b := append([]byte(nil), head...)
	b = append(b, unknownRaw)
	b = binary.AppendUvarint(b, uint64(size))
	b = append(b, message...)
	for i := range pieces {
		p := &pieces[i]
		b = append(b, listItems)
		b = binary.AppendUvarint(b, uint64(p.size()))
		var rest []byte
		b, rest = p.appendTo(b)
		if _, err := w.Write(b); err != nil {
			return err
		}
		if _, err := w.Write(rest); err != nil {
			return err
		}
		b = b[:0]
	}
	_, err := w.Write(append(b, tail...))
	return err
}

func varintSize(n int) int { return (bits.Len64(uint64(n)|1) + 6) / 7 }
