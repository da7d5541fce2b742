// Package order decides whether what clients were told of keys is linearizable: it looks for an order of their
// operations, each at one moment between its call and its return, that explains every answer (Herlihy and Wing). It does so by
// search, with porcupine, and believes nothing else of the store. Revisions may be told or not; where they are, they
// must agree with the order as well, from one delete of a key to the next: what a key was before is forgotten with it.
//
// Each Put has a value that no other has, so that a value says who wrote it. The search takes time that grows with how
// much goes on at once; it is for thousands of operations, not for millions.
package order

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// ErrNone is returned for operations of which no order explains the answers.
var ErrNone = errors.New("no order of the operations explains what the clients were told")

// ErrUndecided is returned when neither an order was found in the time, nor that there is none.
var ErrUndecided = errors.New("in this time no order of the operations was found; there may be one")

// Never is the Return of a write whose outcome is not known: it may take effect at any later time.
const Never int64 = math.MaxInt64

// Outcome is what became of a write.
type Outcome int

const (
	Done     Outcome = iota // it took effect
	Conflict                // it had none, because a precondition did not hold
	Unknown                 // it took effect or had none
)

func (o Outcome) String() string { return [...]string{"done", "conflict", "unknown"}[o] }

// Item is what somebody was told of a key.
type Item struct {
	Exists   bool
	Value    string
	Revision uint64 // of its last change; 0: that was not told
}

// Operation is a read of a group of keys, or a write to some of them. Groups have nothing to do with each other.
type Operation struct {
	Client       int
	Group        string
	Call, Return int64 // on the clock of all clients

	// Read is what a read found: all keys of the group that exist. nil: it is a write.
	Read map[string]Item

	Require map[string]Item   // what a write demands of keys
	Put     map[string]string // values by key
	Delete  []string
	Outcome Outcome
	// Revision of a write that is Done; 0: it was not told.
	Revision uint64
	// Found is what keys were told to be by a Conflict.
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

// Visualize writes an HTML page with the operations, as far as they can be ordered in the time.
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

// model is a map of keys to registers, as text.
var model = porcupine.NondeterministicModel{
	Partition: func(ops []porcupine.Operation) [][]porcupine.Operation {
		groups := make(map[string][]porcupine.Operation)
		for _, op := range ops {
			g := op.Input.(*Operation).Group
			groups[g] = append(groups[g], op)
		}
		return slices.Collect(maps.Values(groups))
	},
	Init: func() []any { return []any{seal(state{})} },
	Step: func(from, input, _ any) []any {
		var next []any
		for _, s := range input.(*Operation).after(from.(sealed).state.clone()) {
			next = append(next, seal(s))
		}
		return next
	},
	Equal:             func(a, b any) bool { return a.(sealed).text == b.(sealed).text },
	DescribeOperation: func(input, _ any) string { return input.(*Operation).String() },
	DescribeState:     func(s any) string { return s.(sealed).text },
}

// sealed is a state that does not change any more, and all of it as text.
type sealed struct {
	state state
	text  string
}

func seal(s state) sealed { return sealed{s, s.String()} }

// String tells people what the operation was and what came of it.
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

// after returns the states to which the operation may lead from one, which it changes; none when it cannot be the next.
func (o *Operation) after(s state) []state {
	if o.Read != nil {
		if len(o.Read) != len(s) || !s.agrees(o.Read) {
			return nil
		}
		return []state{s}
	}
	before := s.clone()
	holds := s.agrees(o.Require)
	switch {
	case o.Outcome == Conflict && !holds && before.agrees(o.Found):
		return []state{before}
	case o.Outcome == Conflict:
		return nil
	case o.Outcome == Unknown && !holds:
		return []state{before}
	case !holds || !s.write(o):
		return nil
	case o.Outcome == Unknown:
		return []state{before, s}
	}
	return []state{s}
}

// state is what the keys that exist are.
type state map[string]register

// register is what a key is. Its revision is the one of its last change, when that is known, and else one that is lower.
type register struct {
	value    string
	revision uint64
	known    bool
}

func (s state) clone() state { return maps.Clone(s) }

// agrees tells whether the keys may be what somebody was told, and learns the revisions.
func (s state) agrees(told map[string]Item) bool {
	for key, item := range told {
		r, exists := s[key]
		switch {
		case exists != item.Exists:
			return false
		case !exists || item.Revision == 0 && r.value == item.Value:
			continue
		case r.value != item.Value, r.known && r.revision != item.Revision, !r.known && r.revision >= item.Revision:
			return false
		}
		s[key] = register{item.Value, item.Revision, true}
	}
	return true
}

// write changes the keys, unless the revision that was told is not above those that they have.
func (s state) write(o *Operation) bool {
	for key, value := range o.Put {
		r := register{value: value, revision: s[key].revision}
		if o.Revision != 0 {
			if o.Revision <= r.revision {
				return false
			}
			r.revision, r.known = o.Revision, true
		}
		s[key] = r
	}
	for _, key := range o.Delete {
		delete(s, key)
	}
	return true
}

// String returns all of it: two states are equal when their texts are.
func (s state) String() string {
	var b strings.Builder
	for _, key := range slices.Sorted(maps.Keys(s)) {
		r := s[key]
		b.WriteString(strconv.Quote(key))
		b.WriteByte('=')
		b.WriteString(strconv.Quote(r.value))
		if r.revision != 0 {
			b.WriteString(map[bool]string{true: "@", false: ">"}[r.known])
			b.WriteString(strconv.FormatUint(r.revision, 10))
		}
		b.WriteByte(' ')
	}
	return b.String()
}
