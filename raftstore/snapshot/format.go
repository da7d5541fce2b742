// Package snapshot is the format of a whole store on disk, on the way to another server, and in a
// backup.
//
//	file  = magic version block*
//	block = kind raw-length stored-length checksum payload
//
// All numbers are little-endian uint32 except the kind, a byte. The payload is compressed with
// zstd; the checksum is CRC-32C over the head of the block and the payload as stored. The blocks
// come in this order:
//
//   - one meta;
//   - any number with items in ascending order of keys;
//   - any number with history, the steps back from the revision of the items, newest first;
//   - any number with sessions;
//   - one that describes a restore and any number with its items, if one was under way;
//   - one end. It repeats the number of items and the hash of the state. It has a checksum of all
//     checksums, so that a truncated or wrongly assembled file is detected.
//
// Invariants: a reader returns nothing that fails its checksum. It takes no more memory than a few
// blocks, whatever the file. It distinguishes a complete file from a truncated one. A released
// version is never changed.
package snapshot

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"

	"github.com/barque/barque/raftstore/command"
	"github.com/barque/barque/raftstore/kv"
)

// Version of the format that this program writes.
const Version = 3

var (
	// ErrVersion is returned for a snapshot that a newer program wrote.
	ErrVersion = errors.New("snapshot of an unknown version")
	// ErrCorrupt is returned for a snapshot that is damaged or cut.
	ErrCorrupt = errors.New("snapshot is damaged")
)

// Meta describes the state.
type Meta struct {
	Index    uint64 // of the last log entry in it
	Term     uint64 // of that entry
	Revision uint64
	Now      int64  // time that the newest command carried, in Unix milliseconds
	Hash     uint64 // state hash
	Items    uint64 // number of items
}

// Session is the state machine's memory of one origin of requests.
type Session struct {
	Origin, Done uint64
	Seen         uint64   // log index of the newest request
	Answers      []Answer // in ascending order of Seq
}

// Staging is a restore in its middle: how far it is. Its items are handed over one by one.
type Staging struct {
	ID, Seq, Sum, Bytes uint64
	Touched             int64
	Items               uint64 // how many there are
}

func appendStaging(b []byte, s *Staging) []byte {
	for _, v := range []uint64{s.ID, s.Seq, s.Sum, s.Bytes, uint64(s.Touched), s.Items} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return b
}

func decodeStaging(b []byte) (*Staging, error) {
	if len(b) != 6*8 {
		return nil, fmt.Errorf("%w: restore block of %d bytes", ErrCorrupt, len(b))
	}
	at := func(i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }
	return &Staging{ID: at(0), Seq: at(1), Sum: at(2), Bytes: at(3), Touched: int64(at(4)), Items: at(5)}, nil
}

// Answer is the remembered answer to one request.
type Answer struct{ Seq, Revision uint64 }

const (
	magic     = "BARQSNAP"
	blockHead = 1 + 4 + 4 + 4
	blockSize = 256 << 10 // raw bytes after which a block is closed
	maxRaw    = 32 << 20  // a block may be larger by one item; nothing larger than this is read
)

const (
	kindMeta     byte = 1
	kindItems    byte = 2
	kindSessions byte = 3
	kindEnd      byte = 4
	kindStaging  byte = 5
	kindStaged   byte = 6
	kindHistory  byte = 7
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// endLen is how long the end block is: the meta and the checksum of checksums.
const endLen = 6*8 + 4

func checksum(head, payload []byte) uint32 {
	return crc32.Update(crc32.Checksum(head, castagnoli), castagnoli, payload)
}

func appendMeta(b []byte, m *Meta) []byte {
	for _, v := range []uint64{m.Index, m.Term, m.Revision, uint64(m.Now), m.Hash, m.Items} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	return b
}

func decodeMeta(b []byte) (Meta, error) {
	if len(b) != 6*8 {
		return Meta{}, fmt.Errorf("%w: meta block of %d bytes", ErrCorrupt, len(b))
	}
	at := func(i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }
	return Meta{Index: at(0), Term: at(1), Revision: at(2), Now: int64(at(3)), Hash: at(4), Items: at(5)}, nil
}

func appendSession(b []byte, s *Session) []byte {
	b = binary.AppendUvarint(b, s.Origin)
	b = binary.AppendUvarint(b, s.Done)
	b = binary.AppendUvarint(b, s.Seen)
	b = binary.AppendUvarint(b, uint64(len(s.Answers)))
	for _, a := range s.Answers {
		b = binary.AppendUvarint(b, a.Seq)
		b = binary.AppendUvarint(b, a.Revision)
	}
	return b
}

func appendUndo(b []byte, u *kv.Undo) []byte {
	b = binary.AppendUvarint(b, u.Revision)
	b = binary.AppendVarint(b, u.At)
	b = binary.AppendUvarint(b, uint64(len(u.Before)))
	for i := range u.Before {
		b = command.AppendItem(b, &u.Before[i])
	}
	return b
}

func decodeUndo(b []byte) (u kv.Undo, rest []byte, err error) {
	c := cursor{rest: b}
	u.Revision, u.At = c.uvarint(), c.varint()
	n := c.uvarint()
	if c.bad || n > uint64(len(c.rest)) { // an item takes more than a byte
		return kv.Undo{}, nil, fmt.Errorf("%w: history ends early", ErrCorrupt)
	}
	rest = c.rest
	for range n {
		var item kv.Item
		if item, rest, err = command.DecodeItem(rest); err != nil {
			return kv.Undo{}, nil, fmt.Errorf("%w: history: %w", ErrCorrupt, err)
		}
		u.Before = append(u.Before, item)
	}
	return u, rest, nil
}

// cursor reads varints; bad is set when the bytes end early.
type cursor struct {
	rest []byte
	bad  bool
}

func (c *cursor) uvarint() uint64 {
	v, n := binary.Uvarint(c.rest)
	if n <= 0 {
		c.bad, c.rest = true, nil
		return 0
	}
	c.rest = c.rest[n:]
	return v
}

func (c *cursor) varint() int64 {
	v, n := binary.Varint(c.rest)
	if n <= 0 {
		c.bad, c.rest = true, nil
		return 0
	}
	c.rest = c.rest[n:]
	return v
}

func decodeSession(b []byte) (Session, []byte, error) {
	c := cursor{rest: b}
	s := Session{Origin: c.uvarint(), Done: c.uvarint(), Seen: c.uvarint()}
	n := c.uvarint()
	for i := uint64(0); i < n && !c.bad; i++ {
		s.Answers = append(s.Answers, Answer{Seq: c.uvarint(), Revision: c.uvarint()})
	}
	if c.bad {
		return Session{}, nil, fmt.Errorf("%w: session ends early", ErrCorrupt)
	}
	return s, c.rest, nil
}

// Source is a state to write. The functions call yield with each element until it returns false.
type Source struct {
	Meta  Meta
	Items func(yield func(kv.Item) bool)
	// History may be nil. A backup has none, since a restore begins a new history.
	History  func(yield func(kv.Undo) bool)
	Sessions []Session
	Staging  *Staging // nil when no restore is under way
	// Staged calls yield with each item of Staging, in ascending order of keys.
	Staged func(yield func(kv.Item) bool)
}
