package command

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"testing"

	"github.com/barque/barque/raftstore/kv"
)

// FuzzDecodeChecksummed gives the decoder any bytes, with a checksum that holds, so that what is behind it is reached.
// What it takes must come out again as it went in.
func FuzzDecodeChecksummed(f *testing.F) {
	f.Add(Encode(sample())[headLen:])
	f.Add(Encode(&Command{Now: -1})[headLen:])
	f.Fuzz(func(t *testing.T, body []byte) {
		data := append([]byte{Version, 0, 0, 0, 0}, body...)
		binary.LittleEndian.PutUint32(data[1:], crc32.Checksum(body, castagnoli))
		c, err := Decode(data)
		if err != nil {
			return
		}
		again, err := Decode(Encode(c))
		if err != nil {
			t.Fatalf("what was decoded cannot be decoded again: %v", err)
		}
		if !bytes.Equal(Encode(again), Encode(c)) {
			t.Fatal("it is another one the second time")
		}
	})
}

// FuzzDecodeOutcome reads what another server answers.
func FuzzDecodeOutcome(f *testing.F) {
	f.Add(AppendOutcome(nil, &Outcome{Code: Applied, Revision: 7}))
	f.Add(AppendOutcome(nil, &Outcome{Code: Conflict, Revision: 7, Key: "/a", Current: &kv.Item{Key: "/a", Value: []byte("v"), ModRevision: 3, Expires: -1}}))
	f.Fuzz(func(t *testing.T, data []byte) {
		o, err := DecodeOutcome(data)
		if err != nil {
			return
		}
		again, err := DecodeOutcome(AppendOutcome(nil, &o))
		if err != nil || again.Code != o.Code || again.Revision != o.Revision || again.Key != o.Key || (again.Current == nil) != (o.Current == nil) {
			t.Fatalf("%+v became %+v: %v", o, again, err)
		}
	})
}
