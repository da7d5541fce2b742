// Package linear decides whether clients' answers about keys are linearizable. It searches for an
// order of the operations, each at one moment between its call and its return, that explains every
// answer (Herlihy and Wing). The search is porcupine's. It trusts nothing else that the store
// reports.
//
// An answer about a key has a value, a revision, or both. Each Put has a unique value, so that a
// value identifies its write; a key without values is judged by revisions alone. Revisions of a key
// only grow, also over a deletion. An answer without a revision is checked against later ones.
//
// The time of the search grows with the number of concurrent operations, and its memory with the
// square of the operations of a group. It is for thousands of operations, not for millions.
package linear

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// ErrNone is returned for operations that no order explains.
var ErrNone = errors.New("no order of the operations explains what the clients were told")

// ErrUndecided is returned when the time is over before the search has found an order or excluded
// one.
var ErrUndecided = errors.New("in this time no order of the operations was found; there may be one")

// Never is the Return of a write of unknown outcome: it may take effect at any later time.
const Never int64 = math.MaxInt64

// Outcome is the effect of a write.
type Outcome int

const (
	Done     Outcome = iota // it took effect
	Conflict                // it had none, because a precondition did not hold
	Unknown                 // it took effect or had none
)

func (o Outcome) String() string { return [...]string{"done", "conflict", "unknown"}[o] }

// Item is a key's state in an answer.
type Item struct {
	Exists   bool
	Value    string // empty: not in the answer
	Revision uint64 // of its last change; 0: not in the answer
}

// Operation is a read of a group of keys, or a write to some of them. Groups have nothing to do
// with each other.
type Operation struct {
	Client       int
	Group        string
	Call, Return int64 // on the clock of all clients

	// Read is the result of a read: all existing keys of the group. nil: it is a write.
	Read map[string]Item

	Require map[string]Item   // the preconditions of a write, by key
	Put     map[string]string // values by key
	Delete  []string
	Outcome Outcome
	// Revision of a write that is Done; 0: unknown.
	Revision uint64
	// Found is the keys' state in the answer of a Conflict.
	Found map[string]Item
}

// Check returns nil when some order explains the operations.
func Check(ops []Operation, within time.Duration) error {
	switch porcupine.CheckOperationsTimeout(model.ToModel(), wrap(ops), within) {
	case porcupine.Ok:
		return nil
	case porcupine.Illegal:
		return fmt.Errorf("%d operations: %w", len(ops), ErrNone)
	default:
		return fmt.Errorf("%d operations in %v: %w", len(ops), within, ErrUndecided)
	}
}

// Visualize writes an HTML page with the operations, in the order found within the time.
func Visualize(w io.Writer, ops []Operation, within time.Duration) error {
	m := model.ToModel()
	_, info := porcupine.CheckOperationsVerbose(m, wrap(ops), within)
	return porcupine.Visualize(m, info, w)
}

func wrap(ops []Operation) []porcupine.Operation {
	wrapped := make([]porcupine.Operation, len(ops))
	for i := range ops {
		o := &ops[i]
		wrapped[i] = porcupine.Operation{ClientId: o.Client, Input: o, Call: o.Call, Return: o.Return}
	}
	return wrapped
}

// model is the registers of a group.
var model = porcupine.NondeterministicModel{
	Partition: func(ops []porcupine.Operation) [][]porcupine.Operation {
		groups := make(map[string][]porcupine.Operation)
		for _, op := range ops {
			g := op.Input.(*Operation).Group
			groups[g] = append(groups[g], op)
		}
		return slices.Collect(maps.Values(groups))
	},
	Init: func() []any { return []any{state(nil)} },
	Step: func(from, input, _ any) []any {
		var next []any
		for _, s := range input.(*Operation).after(from.(state)) {
			next = append(next, s)
		}
		return next
	},
	Equal:             func(a, b any) bool { return slices.Equal(a.(state), b.(state)) },
	DescribeOperation: func(input, _ any) string { return input.(*Operation).String() },
	DescribeState:     func(s any) string { return s.(state).String() },
}

// String describes the operation and its outcome.
func (o *Operation) String() string {
	if o.Read != nil {
		return fmt.Sprint("read ", o.Read)
	}
	text := o.Outcome.String()
	for _, key := range slices.Sorted(maps.Keys(o.Put)) {
		text += fmt.Sprintf(" %s=%s", key, o.Put[key])
	}
	if len(o.Delete) > 0 {
		text += fmt.Sprint(" delete ", o.Delete)
	}
	if len(o.Require) > 0 {
		text += fmt.Sprint(" if ", o.Require)
	}
	return text
}

// after returns the possible states after the operation; none when it cannot be the next.
func (o *Operation) after(s state) []state {
	if o.Read != nil {
		if len(o.Read) != s.count() || s.fits(o.Read) == no {
			return nil
		}
		return []state{s.learn(o.Read)}
	}
	holds := s.fits(o.Require)
	switch {
	case o.Outcome == Conflict && holds != yes && s.fits(o.Found) != no:
		return []state{s.learn(o.Found)}
	case o.Outcome == Conflict:
		return nil
	case o.Outcome == Unknown && holds == no:
		return []state{s}
	case holds == no:
		return nil
	}
	next, possible := s.learn(o.Require).write(o)
	switch {
	case !possible:
		return nil
	case o.Outcome == Unknown:
		return []state{s, next}
	}
	return []state{next}
}

// state is the state of the keys, in their order. Keys that never existed are left out.
type state []register

// register is the state of a key. Its revision is that of the last change if known, otherwise a
// lower bound. For a key that does not exist it is one of its former revisions.
type register struct {
	key, value string
	revision   uint64
	exists     bool
	known      bool
}

// fit is whether a state fits an answer.
type fit int

const (
	no fit = iota
	perhaps
	yes
)

func (r *register) fits(told Item) fit {
	switch {
	case r.exists != told.Exists, told.Value != "" && told.Value != r.value:
		return no
	case !told.Exists || told.Revision == 0:
		return yes
	case r.known && told.Revision == r.revision:
		return yes
	case r.known || told.Revision <= r.revision:
		return no
	case told.Value != "": // no other write has this value
		return yes
	}
	return perhaps
}

func (s state) find(key string) (at int, found bool) {
	return slices.BinarySearchFunc(s, key, func(r register, key string) int { return strings.Compare(r.key, key) })
}

func (s state) get(key string) register {
	if at, found := s.find(key); found {
		return s[at]
	}
	return register{key: key}
}

// with returns the state with another register in the place of its key's.
func (s state) with(r register) state {
	at, found := s.find(r.key)
	switch {
	case r == register{key: r.key} && found:
		return slices.Concat(s[:at], s[at+1:])
	case r == register{key: r.key}:
		return s
	case found && s[at] == r:
		return s
	case found:
		next := slices.Clone(s)
		next[at] = r
		return next
	}
	return slices.Concat(s[:at], state{r}, s[at:])
}

// count is how many keys exist.
func (s state) count() (n int) {
	for i := range s {
		if s[i].exists {
			n++
		}
	}
	return n
}

// fits reports whether the keys fit an answer.
func (s state) fits(told map[string]Item) fit {
	all := yes
	for key, item := range told {
		r := s.get(key)
		all = min(all, r.fits(item))
	}
	return all
}

// learn returns the state with the revisions of an answer that fits.
func (s state) learn(told map[string]Item) state {
	for key, item := range told {
		if r := s.get(key); r.exists && item.Revision != 0 {
			r.revision, r.known = item.Revision, true
			s = s.with(r)
		}
	}
	return s
}

// write returns the state after a write. The write is possible if its revision is above those of
// the keys.
func (s state) write(o *Operation) (next state, possible bool) {
	for key, value := range o.Put {
		r := s.get(key)
		if o.Revision != 0 && o.Revision <= r.revision {
			return nil, false
		}
		s = s.with(
			register{key: key, value: value, exists: true, revision: max(r.revision, o.Revision),
				known: o.Revision != 0})
	}
	for _, key := range o.Delete {
		r := s.get(key)
		if !r.exists {
			continue
		}
		if o.Revision != 0 && o.Revision <= r.revision {
			return nil, false
		}
		s = s.with(register{key: key, revision: max(r.revision, o.Revision)})
	}
	return s, true
}

// String describes the keys' state.
func (s state) String() string {
	var b strings.Builder
	for _, r := range s {
		what := "gone"
		if r.exists {
			what = fmt.Sprintf("%q", r.value)
		}
		fmt.Fprintf(&b, "%q=%s", r.key, what)
		if r.revision != 0 {
			fmt.Fprintf(&b, "%s%d", map[bool]string{true: "@", false: ">"}[r.known], r.revision)
		}
		b.WriteByte(' ')
	}
	return b.String()
}
