package backup

import (
	"bytes"
	"testing"
)

// fuzzKey opens the sealed files in testdata, and nothing else.
const fuzzKey = "AGE-SECRET-KEY-1KP2J3Y97NKN6VKKYQUSNQUN3AS6773ARNCZYDAKR6JA0WJ83DZUS2MV6AG"

// FuzzBlocks gives the reader any file, with checksums of blocks that hold, so that the content
// behind them is reached. It may be sealed or not. Reading ends, and nothing unverified is
// called whole.
func FuzzBlocks(f *testing.F) {
	f.Add([]byte(magic+"\x01\x00\x00\x00"+"\x01\x02\x00\x00\x00\x00\x00\x00\x00{}"), false)
	f.Add([]byte(magic+"\x01\x00\x00\x00"+"\x01\x0f\x00\x00\x00\x00\x00\x00\x00{\"sealed\":true}"), true)
	secret, err := ParseKey(fuzzKey)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, data []byte, sealed bool) {
		var key *Key
		if sealed {
			key = secret
		}
		if _, err := Verify(bytes.NewReader(mended(data)), key, nil); err == nil &&
			len(data) < fileHead+3*blockHead+endLen {
			t.Fatalf("%d bytes are a whole backup", len(data))
		}
	})
}

// mended returns a copy in which the checksum of each block holds.
func mended(data []byte) []byte {
	data = bytes.Clone(data)
	for at := fileHead; at+blockHead <= len(data); {
		head := data[at : at+blockHead]
		end := at + blockHead + int(le.Uint32(head[1:]))
		if end > len(data) || end < at {
			break
		}
		le.PutUint32(head[5:], blockChecksum(head[:5], data[at+blockHead:end]))
		at = end
	}
	return data
}
