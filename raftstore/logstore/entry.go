package logstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/hashicorp/raft"
)

// Data on disk have a checksum over all of it: an entry after its Extensions, a value at its end.
//
//	version (1 byte) sum (8 bytes, little-endian, XXH64)
//
// The sum of an entry also covers Raft's own fields, which the checksum of a command does not: its
// index, term and type.
const (
	sumVersion = 1
	sumLen     = 1 + 8
)

var (
	errSum     = errors.New("the checksum differs")
	errNoSum   = errors.New("it has no checksum")
	errVersion = errors.New("its checksum is of an unknown version: a newer program wrote it; run that version")
)

func entrySum(e *raft.Log, extensions []byte) uint64 {
	var head [8 + 8 + 1 + 8 + 8 + 8]byte
	binary.LittleEndian.PutUint64(head[0:], e.Index)
	binary.LittleEndian.PutUint64(head[8:], e.Term)
	head[16] = byte(e.Type)
	n := len(head) - 8
	if at := e.AppendedAt; !at.IsZero() {
		nano := at.UnixNano()
		binary.LittleEndian.PutUint64(head[17:], uint64(nano))
		// Nanoseconds in 64 bits wrap in the year 2262: a damaged time may have the same ones.
		if !time.Unix(0, nano).Equal(at) {
			binary.LittleEndian.PutUint64(head[n:], uint64(at.Unix()))
			n = len(head)
		}
	}
	binary.LittleEndian.PutUint64(head[25:], uint64(len(e.Data)))
	d := xxhash.New()
	d.Write(head[:n])
	d.Write(e.Data)
	d.Write(extensions)
	return d.Sum64()
}

func appendSum(b []byte, sum uint64) []byte {
	return binary.LittleEndian.AppendUint64(append(b, sumVersion), sum)
}

// cutSum takes the sum off the end.
func cutSum(b []byte) (rest []byte, sum uint64, err error) {
	n := len(b) - sumLen
	switch {
	case n < 0:
		return nil, 0, errNoSum
	case b[n] != sumVersion:
		return nil, 0, fmt.Errorf("%w (%d)", errVersion, b[n])
	}
	return b[:n:n], binary.LittleEndian.Uint64(b[n+1:]), nil
}

// protect returns copies of the entries with their sums.
func protect(entries []*raft.Log) []*raft.Log {
	copies := make([]raft.Log, len(entries))
	protected := make([]*raft.Log, len(entries))
	for i, e := range entries {
		copies[i] = *e
		copies[i].Extensions = appendSum(slices.Clip(e.Extensions), entrySum(e, e.Extensions))
		protected[i] = &copies[i]
	}
	return protected
}

// reveal verifies an entry that was read for an index, and takes its sum off.
func reveal(index uint64, e *raft.Log) error {
	extensions, sum, err := cutSum(e.Extensions)
	switch {
	case err != nil:
		return err
	case e.Index != index:
		return fmt.Errorf("entry %d stands there", e.Index)
	case sum != entrySum(e, extensions):
		return errSum
	}
	if e.Extensions = extensions; len(extensions) == 0 {
		e.Extensions = nil
	}
	return nil
}

func valueSum(key, value []byte) uint64 {
	d := xxhash.New()
	d.Write(key)
	d.Write([]byte{0})
	d.Write(value)
	return d.Sum64()
}

func protectValue(key, value []byte) []byte {
	return appendSum(slices.Clone(value), valueSum(key, value))
}

// revealValue verifies a value; an unset one is empty.
func revealValue(key, stored []byte) ([]byte, error) {
	if len(stored) == 0 {
		return nil, nil
	}
	value, sum, err := cutSum(stored)
	if err == nil && sum != valueSum(key, value) {
		err = errSum
	}
	return value, err
}
