package snapshot

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/barque/barque/raftstore/kv"
)

// FuzzReaderChecksummed gives the reader any file. It must come to an end without a panic; and a
// file whose checksums were made to hold must not get further than one that does not hold together.
func FuzzReaderChecksummed(f *testing.F) {
	var whole bytes.Buffer
	err := Write(&whole, Source{
		Meta: Meta{Index: 3, Term: 2, Revision: 1, Items: 1},
		Items: func(yield func(kv.Item) bool) {
			yield(kv.Item{Key: "/a", Value: []byte("v"), ModRevision: 1, CreateRevision: 1})
		},
		Sessions: []Session{{Origin: 7, Done: 1, Seen: 3, Answers: []Answer{{Seq: 1, Revision: 1}}}},
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Add(whole.Bytes())
	f.Add(whole.Bytes()[:whole.Len()/2])
	f.Add([]byte(magic))
	f.Fuzz(func(_ *testing.T, data []byte) {

		readAll(mended(data))
	})
}

// mended returns a copy in which the checksum of each block holds.
func mended(data []byte) []byte {
	data = bytes.Clone(data)
	for at := len(magic) + 4; at+blockHead <= len(data); {
		head := data[at : at+blockHead]
		end := at + blockHead + int(binary.LittleEndian.Uint32(head[5:]))
		if end > len(data) || end < at {
			break
		}
		binary.LittleEndian.PutUint32(head[9:], checksum(head[:9], data[at+blockHead:end]))
		at = end
	}
	return data
}
