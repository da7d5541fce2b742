// Package command is the format of the entries in the Raft log, and of the answers to them.
//
// One entry carries the requests of many callers. It has all input of Apply that must be equal on
// all replicas: the time, the fence and the request's identity.
//
// Invariants: an entry is decoded to its original, or not at all. A version, a kind or a flag that
// this program does not know is an error, because to skip it would let replicas diverge. A released
// version is never changed: a new layout gets a new number.
package command

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"time"

	"github.com/barque/barque/raftstore/kv"
)

// Version of the layout that this program writes.
const Version = 2

var (
	// ErrVersion is returned for an entry that a newer program wrote.
	ErrVersion = errors.New("log entry of an unknown version")
	// ErrCorrupt is returned for bytes that are no entry.
	ErrCorrupt = errors.New("log entry is damaged")
)

// Command is one log entry. Without requests it marks its place in the log.
type Command struct {
	Now int64 // the proposer's clock, in Unix milliseconds
	// StateBytes is the proposer's limit for the size of all items, 0 for none. It is in the entry
	// so that all replicas refuse the same transactions, whatever their configuration.
	StateBytes int64
	Requests   []Request
}

// ID names a request, so that it takes effect once however often it is proposed. The zero ID asks
// for no such protection.
type ID struct {
	Origin uint64 // drawn at random by each store when it starts
	Seq    uint64 // counts the origin's requests, from 1
}

// Kind is the kind of a request.
type Kind uint8

const (
	KindTxn     Kind = 1
	KindCompact Kind = 2
	KindExpire  Kind = 3
	KindRestore Kind = 8
)

// Request is one caller's request.
type Request struct {
	ID ID
	// Done: the origin has no use for the answers to its requests below this number.
	Done uint64
	Kind Kind
	Txn  kv.Txn // of KindTxn
	// Revision up to which history goes, of KindCompact.
	Revision uint64
	Restore  Restore // of KindRestore
	Expire   Expire  // of KindExpire
}

// Expire deletes the items that were due at a time, which the leader chose.
type Expire struct {
	Term uint64 // of the choice: in another one nothing is deleted
	Due  int64  // in Unix milliseconds
	Most uint32 // how many items are deleted at most: the oldest deadlines first
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

const headLen = 1 + 4 // version, checksum

// Encode returns the entry's bytes.
func Encode(c *Command) []byte {
	size := headLen + 3*binary.MaxVarintLen64
	for i := range c.Requests {
		size += SizeOf(&c.Requests[i])
	}
	b := make([]byte, headLen, size)
	b[0] = Version
	b = binary.AppendVarint(b, c.Now)
	b = binary.AppendUvarint(b, uint64(max(c.StateBytes, 0)))
	b = binary.AppendUvarint(b, uint64(len(c.Requests)))
	for i := range c.Requests {
		b = AppendRequest(b, &c.Requests[i])
	}
	binary.LittleEndian.PutUint32(b[1:], crc32.Checksum(b[headLen:], castagnoli))
	return b
}

// SizeOf returns an upper bound of the bytes that the request takes.
func SizeOf(r *Request) int {
	size := 64
	for i := range r.Txn.Require {
		size += 16 + len(r.Txn.Require[i].Key)
	}
	for i := range r.Txn.Ops {
		size += 24 + len(r.Txn.Ops[i].Key) + len(r.Txn.Ops[i].Value)
	}
	return size + len(r.Restore.Data)
}

// AppendRequest appends the request's bytes.
func AppendRequest(b []byte, r *Request) []byte {
	b = append(b, byte(r.Kind))
	b = binary.AppendUvarint(b, r.ID.Origin)
	b = binary.AppendUvarint(b, r.ID.Seq)
	b = binary.AppendUvarint(b, r.Done)
	switch r.Kind {
	case KindCompact:
		return binary.AppendUvarint(b, r.Revision)
	case KindRestore:
		return appendRestore(b, &r.Restore)
	case KindExpire:
		b = binary.AppendUvarint(b, r.Expire.Term)
		b = binary.AppendVarint(b, r.Expire.Due)
		return binary.AppendUvarint(b, uint64(r.Expire.Most))
	}
	b = binary.AppendUvarint(b, r.Txn.Term)
	b = binary.AppendUvarint(b, uint64(len(r.Txn.Require)))
	for i := range r.Txn.Require {
		b = appendString(b, r.Txn.Require[i].Key)
		b = binary.AppendUvarint(b, r.Txn.Require[i].ModRevision)
	}
	b = binary.AppendUvarint(b, uint64(len(r.Txn.Ops)))
	for i := range r.Txn.Ops {
		op := &r.Txn.Ops[i]
		b = append(b, byte(op.Kind))
		b = appendString(b, op.Key)
		b = appendString(b, op.Value)
		b = binary.AppendUvarint(b, milliseconds(op.TTL))
	}
	return b
}

// milliseconds of a time to live: 0 would be none.
func milliseconds(ttl time.Duration) uint64 {
	if ttl > 0 && ttl < time.Millisecond {
		return 1
	}
	return uint64(ttl / time.Millisecond)
}

func appendString[T string | []byte](b []byte, s T) []byte {
	b = binary.AppendUvarint(b, uint64(len(s)))
	return append(b, s...)
}

// Decode reads an entry. Values of the result share memory with data.
func Decode(data []byte) (*Command, error) {
	if len(data) < headLen {
		return nil, fmt.Errorf("%w: %d bytes are too few", ErrCorrupt, len(data))
	}
	if data[0] != Version {
		return nil, fmt.Errorf("%w: version %d, this program reads up to %d", ErrVersion, data[0], Version)
	}
	if sum := crc32.Checksum(data[headLen:], castagnoli); sum != binary.LittleEndian.Uint32(data[1:]) {
		return nil, fmt.Errorf("%w: checksum differs", ErrCorrupt)
	}
	r := reader{rest: data[headLen:]}
	c := &Command{Now: r.varint(), StateBytes: r.size()}
	n := r.count()
	for range n {
		req := r.request()
		if r.err != nil {
			return nil, r.err
		}
		c.Requests = append(c.Requests, req)
	}
	if r.err == nil && len(r.rest) > 0 {
		r.fail("%d bytes follow the last request", len(r.rest))
	}
	if r.err != nil {
		return nil, r.err
	}
	return c, nil
}

// DecodeRequest reads one request, as AppendRequest wrote it. The result shares memory with data.
func DecodeRequest(data []byte) (Request, error) {
	r := reader{rest: data}
	req := r.request()
	if r.err == nil && len(r.rest) > 0 {
		r.fail("%d bytes follow the request", len(r.rest))
	}
	return req, r.err
}

// reader takes values off the front of rest. After the first error all reads give zero values.
type reader struct {
	rest []byte
	err  error
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("%w: %s", ErrCorrupt, fmt.Sprintf(format, args...))
		r.rest = nil
	}
}

func (r *reader) byte() byte {
	if len(r.rest) == 0 {
		r.fail("it ends early")
		return 0
	}
	v := r.rest[0]
	r.rest = r.rest[1:]
	return v
}

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.rest)
	if n <= 0 {
		r.fail("bad number")
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

func (r *reader) varint() int64 {
	v, n := binary.Varint(r.rest)
	if n <= 0 {
		r.fail("bad number")
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

// size reads a number of bytes.
func (r *reader) size() int64 {
	v := r.uvarint()
	if v > math.MaxInt64 {
		r.fail("size of %d bytes", v)
		return 0
	}
	return int64(v)
}

func (r *reader) uint32() uint32 {
	v := r.uvarint()
	if v > math.MaxUint32 {
		r.fail("number %d is too large", v)
		return 0
	}
	return uint32(v)
}

// count reads how many elements follow. Each takes a byte at least, so that a forged count cannot
// ask for more memory than was sent.
func (r *reader) count() int {
	n := r.uvarint()
	if n > uint64(len(r.rest)) {
		r.fail("%d elements in %d bytes", n, len(r.rest))
		return 0
	}
	return int(n)
}

func (r *reader) bytes() []byte {
	n := r.count()
	v := r.rest[:n:n]
	r.rest = r.rest[n:]
	return v
}

func (r *reader) request() Request {
	req := Request{Kind: Kind(r.byte())}
	req.ID = ID{Origin: r.uvarint(), Seq: r.uvarint()}
	req.Done = r.uvarint()
	switch req.Kind {
	case KindTxn:
		req.Txn = r.txn()
	case KindCompact:
		req.Revision = r.uvarint()
	case KindRestore:
		req.Restore = r.restore()
	case KindExpire:
		req.Expire = Expire{Term: r.uvarint(), Due: r.varint(), Most: r.uint32()}
	default:
		if r.err == nil {
			r.err = fmt.Errorf("%w: request of kind %d", ErrVersion, req.Kind)
		}
	}
	return req
}

func (r *reader) txn() kv.Txn {
	t := kv.Txn{Term: r.uvarint()}
	for range r.count() {
		p := kv.Precondition{Key: string(r.bytes()), ModRevision: r.uvarint()}
		if r.err != nil {
			return t
		}
		t.Require = append(t.Require, p)
	}
	for range r.count() {
		op := kv.Op{Kind: kv.OpKind(r.byte())}
		op.Key = string(r.bytes())
		op.Value = r.bytes()
		op.TTL = r.ttl()
		if r.err == nil && op.Kind != kv.Put && op.Kind != kv.Delete {
			r.err = fmt.Errorf("%w: operation of kind %d", ErrVersion, op.Kind)
		}
		if r.err != nil {
			return t
		}
		t.Ops = append(t.Ops, op)
	}
	return t
}

const maxTTL = uint64(1<<63-1) / uint64(time.Millisecond)

func (r *reader) ttl() time.Duration {
	ms := r.uvarint()
	if ms > maxTTL {
		r.fail("time to live of %d ms", ms)
		return 0
	}
	return time.Duration(ms) * time.Millisecond
}
