package logstore

import (
	"errors"
	"fmt"
	"time"

	"github.com/cespare/xxhash/v2"
	"github.com/hashicorp/raft"
)

// Report holds the findings at the opening of a log.
type Report struct {
	Kind Kind `json:"kind"`
	// ConvertedFrom is the log's previous kind, if it was converted.
	ConvertedFrom Kind `json:"convertedFrom,omitempty"`
	// First and Last are the oldest and the newest entry; 0 without any.
	First uint64 `json:"first"`
	Last  uint64 `json:"last"`
	// Bytes of the entries' data, all of which were verified.
	Bytes int64 `json:"bytes"`
	// Dropped is how many entries were removed because a snapshot has them and the log ends before
	// it.
	Dropped uint64 `json:"dropped,omitempty"`
	// Unpromised is how many entries are there that were not acknowledged: the crash came between
	// the write and its acknowledgement.
	Unpromised uint64 `json:"unpromised,omitempty"`
	// Unguarded means that the promises are unknown, so a lost end would not have been noticed:
	// their file is missing or damaged.
	Unguarded bool `json:"unguarded,omitempty"`
	// Took is how long opening took, in nanoseconds.
	Took time.Duration `json:"took"`
}

// verify reads the whole log and compares it with the promises. covered is the newest entry of the
// snapshot that was read.
func (l *Log) verify(covered uint64) error {
	if err := errors.Join(l.verifyEntries(), l.verifyVote()); err != nil {
		return err
	}
	r, said := &l.report, l.mark.get()
	if r.First > covered+1 {
		if covered == 0 {
			return l.corrupt(r.First-1, "the log begins with entry %d, and there is no valid snapshot", r.First)
		}
		return l.corrupt(r.First-1,
			"the newest valid snapshot ends with entry %d and the log begins with entry %d: what lies between is lost",
			covered, r.First)
	}
	have := max(r.Last, covered)
	if promised := max(said.Last, said.Snapshot); have < promised {
		return l.corrupt(have+1, "entries %d to %d had been stored and are not there", have+1, promised)
	}
	if said.Last > 0 && r.Last > said.Last {
		r.Unpromised = r.Last - said.Last
	}
	return nil
}

func (l *Log) verifyEntries() error {
	var err error
	r, said := &l.report, l.mark.get()
	if r.First, err = l.store.FirstIndex(); err != nil {
		return fmt.Errorf("read the beginning of the log: %w", err)
	}
	if r.Last, err = l.store.LastIndex(); err != nil {
		return fmt.Errorf("read the end of the log: %w", err)
	}
	if r.Last < r.First || (r.First == 0) != (r.Last == 0) {
		return l.corrupt(r.First, "the log goes from entry %d to %d", r.First, r.Last)
	}
	term := uint64(0)
	for index := r.First; index != 0 && index <= r.Last; index++ {
		var e raft.Log
		if err := l.read(index, &e); err != nil {
			return err
		}
		if e.Term < term {
			return l.corrupt(index, "its term is %d and that of the entry before %d", e.Term, term)
		}
		if index == said.Last && said.LastTerm != 0 && e.Term != said.LastTerm {
			return l.corrupt(index, "its term is %d and was %d", e.Term, said.LastTerm)
		}
		term = e.Term
		r.Bytes += int64(len(e.Data))
	}
	return nil
}

// verifyVote reads the term and the vote: a forgotten vote could be given twice.
func (l *Log) verifyVote() error {
	said := l.mark.get()
	term, err := l.GetUint64([]byte(keyCurrentTerm))
	if err != nil {
		return err
	}
	voted, err := l.GetUint64([]byte(keyVoteTerm))
	if err != nil {
		return err
	}
	candidate, err := l.Get([]byte(keyVote))
	if err != nil {
		return err
	}
	switch {
	case term < said.Term:
		return l.corruptValue(keyCurrentTerm, "it is %d and was %d", term, said.Term)
	case voted < said.VoteTerm:
		return l.corruptValue(keyVoteTerm, "it is %d and was %d", voted, said.VoteTerm)
	case voted == said.VoteTerm && said.Vote != 0 && xxhash.Sum64(candidate) != said.Vote:
		return l.corruptValue(keyVote, "another vote was given in term %d", voted)
	}
	return nil
}

// corrupt returns a CorruptError with the place where an entry is, or should be.
func (l *Log) corrupt(index uint64, format string, args ...any) error {
	if l.home == nil {
		return corrupt("the log", fmt.Sprintf("entry %d", index), format, args...)
	}
	file, where := place(l.home.rec.Kind, l.home.path(l.home.rec), index)
	return corrupt(file, where, format, args...)
}

func (l *Log) corruptValue(key string, format string, args ...any) error {
	file := "the log"
	if l.home != nil {
		file = l.home.path(l.home.rec)
	}
	return corrupt(file, "the value "+key, format, args...)
}
