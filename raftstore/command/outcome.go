package command

import (
	"encoding/binary"
	"fmt"

	"github.com/barque/barque/raftstore/kv"
)

// Code is the outcome of a request.
type Code uint8

const (
	// Applied: it took effect, at Outcome.Revision.
	Applied Code = 1
	// Conflict: the precondition on Outcome.Key did not hold; Outcome.Current is the item there.
	Conflict Code = 2
	// Fenced: its term is over.
	Fenced Code = 3
	// Spent: a request with this ID was refused before, and the reason is forgotten. It did not
	// and will not take effect; it may be repeated with a new ID.
	Spent Code = 4
	// Refused: the step of a restore does not fit the previous steps; Outcome.Key has the reason.
	Refused Code = 5
	// NoSpace: the store would have grown over its limit; Outcome.Full has the sizes.
	NoSpace Code = 6
)

// Outcome is the answer of the state machine to one request.
type Outcome struct {
	Code     Code
	Revision uint64 // of the transaction, or at which it was refused
	Key      string
	Current  *kv.Item
	Full     kv.NoSpaceError // of NoSpace
}

// Result translates the outcome for the caller. Spent has no translation: it must be handled
// before.
func (o *Outcome) Result() (kv.Result, error) {
	switch o.Code {
	case Applied:
		return kv.Result{Revision: o.Revision}, nil
	case Conflict:
		return kv.Result{}, &kv.ConflictError{Key: o.Key, Current: o.Current, Revision: o.Revision}
	case Fenced:
		return kv.Result{}, kv.ErrFenced
	case Refused:
		return kv.Result{}, fmt.Errorf("%w: %s", kv.ErrInvalid, o.Key)
	case NoSpace:
		full := o.Full
		return kv.Result{}, &full
	}
	return kv.Result{}, fmt.Errorf("%w: the store gave the answer %d", kv.ErrUnknownOutcome, o.Code)
}

// AppendOutcome appends the outcome's bytes, for the way to another server.
func AppendOutcome(b []byte, o *Outcome) []byte {
	b = append(b, byte(o.Code))
	b = binary.AppendUvarint(b, o.Revision)
	b = appendString(b, o.Key)
	if o.Code == NoSpace {
		for _, v := range []int64{o.Full.Size, o.Full.Needed, o.Full.Limit} {
			b = binary.AppendVarint(b, v)
		}
	}
	if o.Current == nil {
		return append(b, 0)
	}
	return AppendItem(append(b, 1), o.Current)
}

// DecodeOutcome reads AppendOutcome's output. The result shares memory with data.
func DecodeOutcome(data []byte) (Outcome, error) {
	r := reader{rest: data}
	o := Outcome{Code: Code(r.byte()), Revision: r.uvarint(), Key: string(r.bytes())}
	if o.Code == NoSpace {
		o.Full = kv.NoSpaceError{Size: r.varint(), Needed: r.varint(), Limit: r.varint()}
	}
	if r.byte() == 1 {
		item := r.item()
		o.Current = &item
	}
	return o, r.err
}

// AppendItem appends the item's bytes.
func AppendItem(b []byte, item *kv.Item) []byte {
	b = appendString(b, item.Key)
	b = appendString(b, item.Value)
	b = binary.AppendUvarint(b, item.CreateRevision)
	b = binary.AppendUvarint(b, item.ModRevision)
	return binary.AppendVarint(b, item.Expires)
}

func (r *reader) item() kv.Item {
	return kv.Item{
		Key: string(r.bytes()), Value: r.bytes(),
		CreateRevision: r.uvarint(), ModRevision: r.uvarint(), Expires: r.varint(),
	}
}

// DecodeItem reads one item off the front of data and returns the rest. The item shares memory with
// data.
func DecodeItem(data []byte) (kv.Item, []byte, error) {
	r := reader{rest: data}
	item := r.item()
	return item, r.rest, r.err
}
