package command

import (
	"encoding/binary"
	"fmt"
)

// Step is a part of a restore. All of them may be repeated without harm.
type Step uint8

const (
	RestoreBegin  Step = 1 // make room for the items that follow
	RestoreChunk  Step = 2 // some items
	RestoreCommit Step = 3 // replace the state by the items
	RestoreAbort  Step = 4 // forget them
)

// Restore is one step of replacing the whole state by other items, while the store keeps serving.
// The items come in many entries and are staged; the last step takes effect at one revision.
type Restore struct {
	Step Step
	ID   uint64 // names the restore; drawn at random by its maker
	Term uint64 // of RestoreAbort by the leader; 0 is not fenced

	// Seq counts the chunks, from 1. For RestoreCommit it is their number. For RestoreAbort by the
	// leader it is one more than the leader has seen: the restore continues if more have come
	// since.
	Seq uint64
	// Data of RestoreChunk: items, as AppendItem writes them, in ascending order of keys. Their
	// revisions do not count.
	Data []byte
	// Items of RestoreCommit is the number of all items, Sum the result of mvcc.ContentSum over
	// them.
	Items, Sum uint64
	// AtLeast is the lowest revision that RestoreCommit may get.
	AtLeast uint64
}

func appendRestore(b []byte, r *Restore) []byte {
	b = append(b, byte(r.Step))
	for _, v := range []uint64{r.ID, r.Term, r.Seq, r.Items, r.Sum, r.AtLeast} {
		b = binary.AppendUvarint(b, v)
	}
	return appendString(b, r.Data)
}

func (r *reader) restore() Restore {
	out := Restore{
		Step: Step(r.byte()), ID: r.uvarint(), Term: r.uvarint(), Seq: r.uvarint(),
		Items: r.uvarint(), Sum: r.uvarint(), AtLeast: r.uvarint(), Data: r.bytes(),
	}
	if r.err == nil && (out.Step < RestoreBegin || out.Step > RestoreAbort) {
		r.err = fmt.Errorf("%w: step %d of a restore", ErrVersion, out.Step)
	}
	return out
}
