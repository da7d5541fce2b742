package rawlist

import (
	"bytes"
	"encoding/binary"
	"strconv"
)

// piece is an object of a list.
type piece struct {
	data []byte
	// revision is to be set in data as the object's resourceVersion; 0 leaves data as it is.
	revision uint64
	// metaAt and metaEnd are where the metadata of a message begin and end, versionAt where the
	// version of any object stands.
	metaAt, metaEnd, versionAt int32
	document                   bool // data is JSON
}

// size is the length of the piece when it is written.
func (p *piece) size() int {
	if p.revision == 0 {
		return len(p.data)
	}
	digits := decimals(p.revision)
	if p.document {
		return len(p.data) + len(versionKey) + len(`:"",`) + digits
	}
	meta := int(p.metaEnd-p.metaAt) + digits
	return 1 + varintSize(meta) + meta + len(p.data) - int(p.metaEnd)
}

// appendTo appends the piece up to the version or the metadata, and returns the rest.
func (p *piece) appendTo(b []byte) (head, rest []byte) {
	switch {
	case p.revision == 0:
		return b, p.data
	case p.document:
		return p.appendVersion(b)
	}
	var version [20]byte
	digits := strconv.AppendUint(version[:0], p.revision, 10)
	b = append(b, objectMetadata)
	b = binary.AppendUvarint(b, uint64(int(p.metaEnd-p.metaAt)+len(digits)))
	b = append(b, p.data[p.metaAt:p.versionAt]...)
	b = append(b, metaVersion, byte(len(digits)))
	b = append(b, digits...)
	b = append(b, p.data[p.versionAt+2:p.metaEnd]...)
	return b, p.data[p.metaEnd:]
}

// equals reports whether the piece is written as want.
func (p *piece) equals(want []byte) bool {
	if p.size() != len(want) {
		return false
	}
	head, rest := p.appendTo(nil)
	return bytes.HasPrefix(want, head) && bytes.Equal(want[len(head):], rest)
}

// decimals is the number of digits of n in decimal.
func decimals(n uint64) int {
	digits := 1
	for ; n >= 10; n /= 10 {
		digits++
	}
	return digits
}
