package verify

import (
	"fmt"
	"math"
	"time"

	"github.com/anishathalye/porcupine"
)

// state of one object, as far as somebody must know it who wants to tell whether an answer is possible.
type state struct {
	exists   bool
	revision uint64 // the last one that is known
	// lost: a write whose revision nobody was told took effect after revision.
	lost bool
}

// at says whether the object may be at a revision.
func (s state) at(revision uint64) bool {
	return s.exists && (!s.lost && revision == s.revision || s.lost && revision > s.revision)
}

// step returns the states in which the object may be after a call with its outcome; none when that outcome is
// impossible in the state.
func (s state) step(c Call) []state {
	same := []state{s}
	only := func(ok bool, next state) []state {
		if ok {
			return []state{next}
		}
		return nil
	}
	// Everybody who knows a revision knows that all later ones are greater.
	met := max(s.revision, c.Require)
	switch {
	case c.Outcome == Refused:
		return same
	case c.Outcome == Exists:
		return only(s.exists, s)
	case c.Outcome == Absent:
		return only(!s.exists, s)
	case c.Outcome == Conflict:
		return only(s.exists && (s.lost || c.Require != s.revision), s)
	case c.Verb == Get && c.Outcome == Done:
		return only(s.at(c.Revision), state{exists: true, revision: c.Revision})
	case c.Verb == Get:
		return same
	case c.Verb == Create && c.Outcome == Done:
		return only(!s.exists && c.Revision > s.revision, state{exists: true, revision: c.Revision})
	case c.Verb == Create && !s.exists:
		return []state{s, {exists: true, revision: s.revision, lost: true}}
	case c.Verb == Create || c.Outcome == Unknown && !s.at(c.Require):
		return same
	case c.Verb == Update && c.Outcome == Done:
		return only(s.at(c.Require) && c.Revision > c.Require, state{exists: true, revision: c.Revision})
	case c.Verb == Update:
		return []state{s, {exists: true, revision: met, lost: true}}
	case c.Outcome == Done:
		return only(s.at(c.Require), state{revision: met})
	}
	return []state{s, {revision: met}}
}

// objects is the model of single objects.
var objects = porcupine.NondeterministicModel{
	Partition: func(ops []porcupine.Operation) (parts [][]porcupine.Operation) {
		byName := make(map[string][]porcupine.Operation)
		for _, op := range ops {
			name := op.Input.(Call).Name
			byName[name] = append(byName[name], op)
		}
		for _, part := range byName {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() []any { return []any{state{}} },
	Step: func(from, in, _ any) (next []any) {
		for _, s := range from.(state).step(in.(Call)) {
			next = append(next, s)
		}
		return next
	},
	Equal: func(a, b any) bool { return a == b },
}

// forever is when a call ends that nobody has answered: it may take effect at any later time.
const forever = time.Duration(math.MaxInt64 / 2)

// order checks that there is an order that explains what the clients were told of single objects. The search takes memory
// with the square of the number of calls to one object, which bounds how much can be judged at once.
func (j *judge) order(patience time.Duration) {
	ops := operations(j.resolved())
	switch porcupine.CheckOperationsTimeout(objects.ToModel(), ops, patience) {
	case porcupine.Illegal:
		j.fault("the history of %d calls is not linearizable", len(ops))
	case porcupine.Unknown:
		j.Unjudged = append(j.Unjudged, fmt.Sprintf("whether the history of %d calls is linearizable was not found out in %v", len(ops), patience))
	}
}

// operations are the calls that tell something of single objects, as porcupine takes them.
func operations(calls []Call) []porcupine.Operation {
	var ops []porcupine.Operation
	clients := make(map[string]int)
	for _, c := range calls {
		if c.Verb == List || c.Outcome == Refused || c.Verb == Get && c.Outcome == Unknown {
			continue
		}
		id, ok := clients[c.Client]
		if !ok {
			id = len(clients)
			clients[c.Client] = id
		}
		end := int64(c.End)
		if c.Outcome == Unknown {
			end = int64(forever)
		}
		ops = append(ops, porcupine.Operation{ClientId: id, Input: c, Call: int64(c.Begin), Return: end})
	}
	return ops
}
