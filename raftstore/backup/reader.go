package backup

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"

	"filippo.io/age"

	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/mvcc"
	"github.com/barque/barque/raftstore/snapshot"
)

// Reader reads a backup from front to end and verifies it on the way. Its output is only
// trustworthy as a whole after Items has returned nil.
type Reader struct {
	blocks  *blockReader
	about   About
	content io.Reader
	secrets map[string][]byte
}

// NewReader reads the head of a backup. The key is nil for an unsealed one. With a key an unsealed
// file is refused, because its author is unknown. It fails with ErrCorrupt, ErrVersion, or ErrKey.
func NewReader(r io.Reader, key *Key) (*Reader, error) {
	blocks, about, err := open(r)
	if err != nil {
		return nil, err
	}
	b := &Reader{blocks: blocks, about: about, content: blocks}
	switch {
	case about.Sealed:
		if err := b.unseal(key); err != nil {
			return nil, err
		}
	case key != nil:
		return nil, errNotSealed
	}
	return b, b.readHead()
}

var errNotSealed = fmt.Errorf("%w: it is not sealed, and a key to open it was given: anybody may have written it. "+
	"Give no key to take it as it is", ErrKey)

func (b *Reader) unseal(key *Key) error {
	if key == nil || key.identity == nil {
		return fmt.Errorf("%w: it is sealed, and the key to open it was not given", ErrKey)
	}
	content, err := age.Decrypt(b.blocks, key.identity)
	var other *age.NoIdentityMatchError
	switch {
	case b.blocks.failed() != nil:
		return b.blocks.failed()
	case errors.As(err, &other):
		return fmt.Errorf("%w: it is sealed with another key", ErrKey)
	case err != nil:
		return fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	b.content = content
	return nil
}

func (b *Reader) readHead() error {
	var length [4]byte
	if _, err := io.ReadFull(b.content, length[:]); err != nil {
		return b.damaged("its content has no head", err)
	}
	n := le.Uint32(length[:])
	if n > maxBlock {
		return b.damaged("its content begins with a head of %d bytes", nil, n)
	}
	data := make([]byte, n)
	if _, err := io.ReadFull(b.content, data); err != nil {
		return b.damaged("the head of its content ends early", err)
	}
	var h head
	if err := json.Unmarshal(data, &h); err != nil {
		return b.damaged("the head of its content cannot be read", err)
	}
	clear, err := json.Marshal(b.about)
	if err != nil {
		return err
	}
	sealed, err := json.Marshal(h.About)
	if err != nil {
		return err
	}
	if !bytes.Equal(clear, sealed) {
		return b.damaged("what it says of itself in clear is not what its content says", nil)
	}
	b.secrets = h.Secrets
	return nil
}

// damaged returns the file's own damage, if any, and otherwise the fault of its content.
func (b *Reader) damaged(format string, cause error, args ...any) error {
	if err := b.blocks.failed(); err != nil {
		return err
	}
	err := fmt.Errorf("%w: %s", ErrCorrupt, fmt.Sprintf(format, args...))
	if cause != nil {
		err = fmt.Errorf("%w: %w", err, cause)
	}
	return err
}

// About returns the backup's description of itself.
func (b *Reader) About() About { return b.about }

// Secrets returns the secrets of the cluster, by name; empty when they were left out.
func (b *Reader) Secrets() map[string][]byte { return b.secrets }

// Items calls yield with each item, in ascending order of keys, until it fails. At the end it
// verifies the hash of the state and that the file is complete. It is called once.
func (b *Reader) Items(yield func(*kv.Item) error) error {
	source := &stoppable{r: b.content}
	s, err := snapshot.NewReader(source)
	if err != nil {
		return b.damaged("its snapshot", err)
	}
	defer s.Close()
	var hash uint64
	err = s.Items(func(item *kv.Item) {
		hash += mvcc.Hash(item)
		if source.err == nil {
			source.err = yield(item)
		}
	})
	if source.err != nil {
		return source.err
	}
	if err == nil {
		_, _, err = s.Rest(func(*kv.Item) {}) // a backup has no restore in its middle
	}
	if err != nil {
		return b.damaged("its snapshot", err)
	}
	meta := s.Meta()
	if hash != meta.Hash || meta.Revision != b.about.Revision || meta.Items != b.about.Items ||
		hashText(hash) != b.about.StateHash {
		return b.damaged("its %d items of revision %d have the hash %016x, and should be %d of revision %d with %s",
			nil, meta.Items, meta.Revision, hash, b.about.Items, b.about.Revision, b.about.StateHash)
	}
	if n, err := io.Copy(io.Discard, b.content); err != nil || n > 0 {
		return b.damaged("%d bytes follow the snapshot", err, n)
	}
	return b.blocks.failed()
}

// stoppable fails when its reader has failed.
type stoppable struct {
	r   io.Reader
	err error
}

func (s *stoppable) Read(p []byte) (int, error) {
	if s.err != nil {
		return 0, s.err
	}
	return s.r.Read(p)
}

// Check looks for damage without the key: it verifies all checksums, and that the file is complete.
// It returns the backup's description of itself.
func Check(r io.Reader) (About, error) {
	blocks, about, err := open(r)
	if err != nil {
		return about, err
	}
	if _, err := io.Copy(io.Discard, blocks); err != nil {
		return about, err
	}
	return about, nil
}

// open reads up to the content.
func open(r io.Reader) (*blockReader, About, error) {
	var about About
	b := &blockReader{r: r, sum: sha256.New()}
	start := make([]byte, fileHead)
	if n, err := io.ReadFull(r, start); err != nil {
		return nil, about, fmt.Errorf("%w: it ends after %d bytes: %w", ErrCorrupt, n, err)
	}
	if string(start[:len(magic)]) != magic {
		return nil, about, fmt.Errorf("%w: it does not begin as a backup does", ErrCorrupt)
	}
	if v := le.Uint32(start[len(magic):]); v != Version {
		return nil, about, fmt.Errorf("%w: version %d, this program reads %d", ErrVersion, v, Version)
	}
	b.sum.Write(start)
	b.offset = int64(fileHead)
	kind, payload, err := b.next()
	if err == nil && kind != kindAbout {
		err = b.corrupt("it is of kind %d, and should say what the backup is", kind)
	}
	if err == nil {
		if parse := json.Unmarshal(payload, &about); parse != nil {
			err = b.corrupt("it cannot be read: %w", parse)
		}
	}
	return b, about, err
}

// blockReader is the stream that the blocks carry.
type blockReader struct {
	r      io.Reader
	sum    hash.Hash // over everything before the current block
	offset int64     // of the current block
	length int64     // of the current block
	block  int
	rest   []byte
	total  uint64
	err    error // io.EOF after the last block
}

// failed returns why the file is damaged or unreadable; nil if it is not known to be.
func (b *blockReader) failed() error {
	if errors.Is(b.err, io.EOF) {
		return nil
	}
	return b.err
}

func (b *blockReader) corrupt(format string, args ...any) error {
	return fmt.Errorf("%w: block %d, at byte %d: %w", ErrCorrupt, b.block, b.offset, fmt.Errorf(format, args...))
}

// next reads and verifies one block.
func (b *blockReader) next() (kind byte, payload []byte, err error) {
	b.block++
	b.offset += b.length
	b.length = 0
	var h [blockHead]byte
	if _, err := io.ReadFull(b.r, h[:]); err != nil {
		return 0, nil, b.cut(err)
	}
	n := le.Uint32(h[1:])
	if n > maxBlock {
		return 0, nil, b.corrupt("it claims %d bytes", n)
	}
	payload = make([]byte, n)
	if _, err := io.ReadFull(b.r, payload); err != nil {
		return 0, nil, b.cut(err)
	}
	if blockChecksum(h[:5], payload) != le.Uint32(h[5:]) {
		return 0, nil, b.corrupt("its checksum differs")
	}
	b.length = int64(blockHead) + int64(n)
	if h[0] != kindEnd {
		b.sum.Write(h[:])
		b.sum.Write(payload)
	}
	return h[0], payload, nil
}

func (b *blockReader) cut(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return b.corrupt("the file ends in it, too early")
	}
	return fmt.Errorf("read block %d of the backup, at byte %d: %w", b.block, b.offset, err)
}

// Read implements io.Reader.
func (b *blockReader) Read(p []byte) (int, error) {
	for b.err == nil && len(b.rest) == 0 {
		b.rest, b.err = b.data()
	}
	if len(b.rest) == 0 {
		return 0, b.err
	}
	n := copy(p, b.rest)
	b.rest = b.rest[n:]
	return n, nil
}

// data returns the next part of the stream, and io.EOF after the last one if that ends the file
// rightly.
func (b *blockReader) data() ([]byte, error) {
	kind, payload, err := b.next()
	switch {
	case err != nil:
		return nil, err
	case kind == kindData:
		b.total += uint64(len(payload))
		return payload, nil
	case kind != kindEnd:
		return nil, b.corrupt("it is of an unknown kind, %d", kind)
	case len(payload) != endLen || le.Uint64(payload) != b.total || !bytes.Equal(payload[8:], b.sum.Sum(nil)):
		return nil, b.corrupt("this end does not belong to what comes before it")
	}
	if n, _ := io.ReadFull(b.r, make([]byte, 1)); n > 0 {
		return nil, b.corrupt("something follows the end, from byte %d", b.offset+b.length)
	}
	return nil, io.EOF
}
