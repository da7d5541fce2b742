package snapshot

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/klauspost/compress/zstd"

	"github.com/barque/barque/raftstore/command"
	"github.com/barque/barque/raftstore/kv"
)

// Reader reads a snapshot from front to end and verifies it on the way. Its output is only
// trustworthy as a whole after Items and then Rest have returned no error.
type Reader struct {
	r      io.Reader
	dec    *zstd.Decoder
	meta   Meta
	kind   byte   // of the block in raw; 0 without one
	raw    []byte // rest of the current block
	buf    []byte
	blocks int
	whole  uint32 // checksum of the checksums of all blocks
	before uint32 // the same without the current block
}

// NewReader reads the head of a snapshot. Close must be called.
func NewReader(r io.Reader) (*Reader, error) {
	head := make([]byte, len(magic)+4)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, fmt.Errorf("%w: it has no head: %w", ErrCorrupt, err)
	}
	if string(head[:len(magic)]) != magic {
		return nil, fmt.Errorf("%w: it does not begin as a snapshot does", ErrCorrupt)
	}
	if v := binary.LittleEndian.Uint32(head[len(magic):]); v != Version {
		return nil, fmt.Errorf("%w: version %d, this program reads %d", ErrVersion, v, Version)
	}
	dec, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxRaw))
	if err != nil {
		return nil, fmt.Errorf("start decompression of a snapshot: %w", err)
	}
	s := &Reader{r: r, dec: dec}
	if err = s.next(); err == nil && s.kind != kindMeta {
		err = s.corrupt("it begins with a block of kind %d", s.kind)
	}
	if err == nil {
		s.meta, err = decodeMeta(s.raw)
	}
	if err != nil {
		dec.Close()
		return nil, err
	}
	return s, nil
}

// Close releases memory. It does not close the underlying reader.
func (s *Reader) Close() { s.dec.Close() }

// Meta returns the description of the state.
func (s *Reader) Meta() Meta { return s.meta }

// Items calls yield with each item, in ascending order of keys.
func (s *Reader) Items(yield func(*kv.Item)) error {
	last, n := "", uint64(0)
	for {
		if err := s.next(); err != nil {
			return err
		}
		if s.kind != kindItems {
			break
		}
		for len(s.raw) > 0 {
			item, err := s.item(last)
			if err != nil {
				return err
			}
			last = item.Key
			yield(item)
			n++
		}
	}
	if n != s.meta.Items {
		return s.corrupt("it has %d items and should have %d", n, s.meta.Items)
	}
	return nil
}

// History calls yield with each step back from the revision of the items, newest first, until yield
// fails. A step shares memory with the reader, and is valid until yield returns. It is called after
// Items, if at all: Rest skips it.
func (s *Reader) History(yield func(kv.Undo) error) error {
	for s.kind == kindHistory {
		for len(s.raw) > 0 {
			u, rest, err := decodeUndo(s.raw)
			if err != nil {
				return s.corrupt("%w", err)
			}
			s.raw = rest
			if err := yield(u); err != nil {
				return s.corrupt("%w", err)
			}
		}
		if err := s.next(); err != nil {
			return err
		}
	}
	return nil
}

// Rest returns the data after the items and history: the sessions, and the running restore, nil
// without one. It calls staged with each item of that restore, in ascending order of keys. It
// verifies that the snapshot is complete. It is called after Items.
func (s *Reader) Rest(staged func(*kv.Item)) ([]Session, *Staging, error) {
	err := s.History(func(kv.Undo) error { return nil })
	if err != nil {
		return nil, nil, err
	}
	sessions, err := s.sessions()
	if err != nil {
		return nil, nil, err
	}
	staging, err := s.staging(staged)
	if err != nil {
		return nil, nil, err
	}
	if s.kind != kindEnd {
		return nil, nil, s.corrupt("a block of kind %d stands where the end should be", s.kind)
	}
	if len(s.raw) != endLen {
		return nil, nil, s.corrupt("its end has %d bytes", len(s.raw))
	}
	end, err := decodeMeta(s.raw[:endLen-4])
	if err != nil {
		return nil, nil, err
	}
	if end != s.meta || binary.LittleEndian.Uint32(s.raw[endLen-4:]) != s.before {
		return nil, nil, s.corrupt("its end does not belong to what comes before it")
	}
	return sessions, staging, nil
}

func (s *Reader) sessions() ([]Session, error) {
	var sessions []Session
	for s.kind == kindSessions {
		for len(s.raw) > 0 {
			session, rest, err := decodeSession(s.raw)
			if err != nil {
				return nil, err
			}
			s.raw = rest
			sessions = append(sessions, session)
		}
		if err := s.next(); err != nil {
			return nil, err
		}
	}
	return sessions, nil
}

func (s *Reader) staging(yield func(*kv.Item)) (*Staging, error) {
	if s.kind != kindStaging {
		return nil, nil
	}
	staging, err := decodeStaging(s.raw)
	if err != nil {
		return nil, err
	}
	if err := s.next(); err != nil {
		return nil, err
	}
	last, n := "", uint64(0)
	for s.kind == kindStaged {
		for len(s.raw) > 0 {
			item, err := s.item(last)
			if err != nil {
				return nil, err
			}
			last = item.Key
			yield(item)
			n++
		}
		if err := s.next(); err != nil {
			return nil, err
		}
	}
	if n != staging.Items {
		return nil, s.corrupt("its restore has %d items and should have %d", n, staging.Items)
	}
	return staging, nil
}

// item takes one item off the block; its key must come after last.
func (s *Reader) item(last string) (*kv.Item, error) {
	item, rest, err := command.DecodeItem(s.raw)
	if err != nil {
		return nil, s.corrupt("%w", err)
	}
	if item.Key <= last {
		return nil, s.corrupt("key %q follows key %q", item.Key, last)
	}
	s.raw = rest
	item.Value = bytes.Clone(item.Value)
	return &item, nil
}

func (s *Reader) corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: block %d: %w", ErrCorrupt, s.blocks, fmt.Errorf(format, args...))
}

// next reads the next block, verifies and unpacks it.
func (s *Reader) next() error {
	s.blocks++
	var head [blockHead]byte
	if _, err := io.ReadFull(s.r, head[:]); err != nil {
		return s.cut(err)
	}
	rawLen, storedLen := binary.LittleEndian.Uint32(head[1:]), binary.LittleEndian.Uint32(head[5:])
	if rawLen > maxRaw || storedLen > maxRaw {
		return s.corrupt("it claims %d bytes", max(rawLen, storedLen))
	}
	// The length is not trusted yet: memory grows with the actual data.
	var stored bytes.Buffer
	stored.Grow(int(min(storedLen, blockSize)))
	if _, err := io.CopyN(&stored, s.r, int64(storedLen)); err != nil {
		return s.cut(err)
	}
	s.before, s.whole = s.whole, crc32.Update(s.whole, castagnoli, head[9:])
	if checksum(head[:9], stored.Bytes()) != binary.LittleEndian.Uint32(head[9:]) {
		return s.corrupt("its checksum differs")
	}
	raw, err := s.dec.DecodeAll(stored.Bytes(), s.buf[:0])
	if err != nil {
		return s.corrupt("%w", err)
	}
	if len(raw) != int(rawLen) {
		return s.corrupt("it unpacks to %d bytes instead of %d", len(raw), rawLen)
	}
	s.kind, s.raw, s.buf = head[0], raw, raw
	return nil
}

func (s *Reader) cut(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return s.corrupt("the file ends here, too early: %w", err)
	}
	return fmt.Errorf("read block %d of a snapshot: %w", s.blocks, err)
}
