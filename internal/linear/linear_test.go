package linear

import (
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

// one is an answer about a single key.
func one(value string, revision uint64) map[string]Item {
	return map[string]Item{"/k": {Exists: true, Value: value, Revision: revision}}
}

// absent is an answer about a key that does not exist.
var absent = map[string]Item{"/k": {}}

func put(value string, revision uint64, require map[string]Item) Operation {
	return Operation{Put: map[string]string{"/k": value}, Revision: revision, Require: require}
}

func with(o Operation, outcome Outcome) Operation {
	o.Outcome = outcome
	return o
}

func read(items map[string]Item) Operation { return Operation{Read: items} }

// inTurn gives the operations of a history their times: each ends before the next begins. An
// unknown operation never ends.
func inTurn(ops ...Operation) []Operation {
	for i := range ops {
		ops[i].Client, ops[i].Call, ops[i].Return = i, int64(10*i), int64(10*i+5)
		if ops[i].Outcome == Unknown && ops[i].Read == nil {
			ops[i].Return = Never
		}
	}
	return ops
}

// atOnce gives them the same time.
func atOnce(ops ...Operation) []Operation {
	for i := range ops {
		ops[i].Client, ops[i].Call, ops[i].Return = i, 0, 10
	}
	return ops
}

// TestOrder has histories that a store may show, and histories that it must not.
func TestOrder(t *testing.T) {
	nothing := map[string]Item{}
	both := func(x, y string) map[string]Item {
		return map[string]Item{"/x": {Exists: true, Value: x}, "/y": {Exists: true, Value: y}}
	}
	pair := func(v string) Operation { return Operation{Put: map[string]string{"/x": v, "/y": v}} }
	refused := func(require, found map[string]Item) Operation {
		o := with(put("refused", 0, require), Conflict)
		o.Found = found
		return o
	}
	for name, c := range map[string]struct {
		ops  []Operation
		none bool // there is no order
	}{
		"a write is read": {
			inTurn(read(nothing), put("a", 1, absent), read(one("a", 1))), false},
		"a write is lost": {inTurn(put("a", 1, nil), read(nothing)), true},
		"a stale read": {
			inTurn(put("a", 1, nil), put("b", 2, nil), read(one("a", 1))), true},
		"a read meanwhile may be either": {atOnce(put("a", 1, nil), read(nothing), read(one("a", 1))),
			false},
		"two reads differ after the write": {
			append(inTurn(put("a", 1, nil), put("b", 2, nil), read(one("b", 2))),
				Operation{Client: 9, Call: 30, Return: 35, Read: one("a", 1)}), true},
		"a delete": {
			inTurn(put("a", 0, nil), Operation{Delete: []string{"/k"}, Require: one("a", 0)}, read(nothing)), false},
		"a delete without effect": {
			inTurn(put("a", 0, nil), Operation{Delete: []string{"/k"}}, read(one("a", 0))), true},
		"an unknown write took effect": {
			inTurn(with(put("a", 0, absent), Unknown), read(one("a", 3))), false},
		"an unknown write had no effect": {
			inTurn(with(put("a", 0, absent), Unknown), read(nothing), read(nothing)), false},
		"an unknown write took effect late": {
			inTurn(with(put("a", 0, absent), Unknown), read(nothing), read(one("a", 3))), false},
		"an unknown write took effect, and is gone": {
			inTurn(with(put("a", 0, absent), Unknown), read(one("a", 3)), read(nothing)), true},
		"an unknown write took effect twice": {
			inTurn(with(put("a", 0, nil), Unknown), read(one("a", 3)), put("b", 4, nil), read(one("a", 5))), true},
		"an unknown write whose precondition is over": {
			inTurn(with(put("a", 0, absent), Unknown), put("b", 1, nil), read(one("a", 2))), true},
		"a precondition that does not hold": {inTurn(put("a", 1, nil), put("b", 2, absent)), true},
		"a precondition on another value": {
			inTurn(put("a", 1, nil), put("b", 2, nil), put("c", 3, one("a", 1))), true},
		"a conflict": {
			inTurn(put("a", 1, nil), refused(absent, one("a", 1)), read(one("a", 1))), false},
		"a conflict where there is none": {inTurn(put("a", 1, nil), refused(one("a", 1), one("a", 1))),
			true},
		"a conflict that tells something else": {inTurn(put("a", 1, nil), refused(absent, one("b", 1))),
			true},
		"a conflict that had an effect": {
			inTurn(put("a", 1, nil), refused(absent, one("a", 1)), read(one("refused", 2))), true},
		"a revision that goes back":  {inTurn(put("a", 5, nil), put("b", 4, nil)), true},
		"a revision that stays":      {inTurn(put("a", 5, nil), put("b", 5, nil)), true},
		"a read of another revision": {inTurn(put("a", 5, nil), read(one("a", 6))), true},
		"a revision of an unknown write that goes back": {
			inTurn(put("a", 5, nil), with(put("b", 0, nil), Unknown), read(one("b", 4))), true},
		"a revision of an unknown write that changes": {
			inTurn(put("a", 5, nil), with(put("b", 0, nil), Unknown), read(one("b", 7)), read(one("b", 8))), true},
		"a write after it is above what was told last": {
			inTurn(put("a", 5, nil), with(put("b", 0, nil), Unknown), read(one("b", 7)), put("c", 6, one("b", 7))),
			true},
		"a revision that goes back over a deletion": {
			inTurn(put("a", 5, nil), Operation{Delete: []string{"/k"}, Require: one("a", 5)}, put("b", 4, absent)),
			true},
		"a revision that grows over a deletion": {
			inTurn(put("a", 5, nil), Operation{Delete: []string{"/k"}, Require: one("a", 5)}, put("b", 6, absent)),
			false},
		"a deletion at an old revision": {
			inTurn(put("a", 5, nil), Operation{Delete: []string{"/k"}, Revision: 5}), true},
		"a revision below that of a deletion": {
			inTurn(put("a", 5, nil), Operation{Delete: []string{"/k"}, Revision: 9}, put("b", 8, absent)), true},
		"a deletion of nothing tells no revision": {
			inTurn(put("a", 5, nil), Operation{Delete: []string{"/k"}}, Operation{Delete: []string{"/k"}, Revision: 5},
				put("b", 6, absent)), false},
		"by revisions alone": {
			inTurn(put("", 1, absent), read(one("", 1)), put("", 2, one("", 1)), read(one("", 2))), false},
		"by revisions alone, a stale read": {
			inTurn(put("", 1, absent), put("", 2, one("", 1)), read(one("", 1))), true},
		"by revisions alone, a stale write": {
			inTurn(put("", 1, absent), put("", 2, one("", 1)), put("", 3, one("", 1))), true},
		"by revisions alone, a conflict": {
			inTurn(put("", 1, absent), put("", 2, one("", 1)), refused(one("", 1), one("", 0))), false},
		"by revisions alone, no conflict": {inTurn(put("", 1, absent), refused(one("", 1), one("", 0))),
			true},
		"a conflict with what nobody was told": {
			inTurn(put("", 1, absent), with(put("", 0, one("", 1)), Unknown), refused(one("", 7), one("", 0)),
				read(one("", 6))), false},
		"and with what that is": {
			inTurn(put("", 1, absent), with(put("", 0, one("", 1)), Unknown), read(one("", 7)),
				refused(one("", 7), one("", 0))), true},
		"an unknown deletion, and what came after": {
			inTurn(put("", 5, absent), with(Operation{Delete: []string{"/k"}, Require: one("", 5)}, Unknown),
				put("", 6, absent)), false},
		"an unknown deletion of something else": {
			inTurn(put("", 5, absent), with(Operation{Delete: []string{"/k"}, Require: one("", 4)}, Unknown),
				read(nothing)), true},
		"keys that are written together are so read": {
			inTurn(pair("1"), read(both("1", "1")), pair("2"), read(both("2", "2"))), false},
		"keys that are written together are read apart": {
			atOnce(pair("1"), read(both("1", "1")), pair("2"), read(both("2", "1"))), true},
		"a read that leaves out a key": {
			inTurn(pair("1"), read(map[string]Item{"/x": {Exists: true, Value: "1"}})), true},
		"a value with all that may be mistaken for more": {inTurn(put("a\" \n=@5", 0, nil), read(one("a\" \n=@5", 0))),
			false},
	} {
		t.Run(name, func(t *testing.T) {
			err := Check(c.ops, time.Minute)
			if want := map[bool]error{true: ErrNone}[c.none]; !errors.Is(err, want) {
				t.Errorf("%v, want %v", err, want)
			}
		})
	}
}

// TestGroupsAreApart: the operations of one group do not constrain another.
func TestGroupsAreApart(t *testing.T) {
	ops := inTurn(put("a", 5, nil), put("b", 1, nil), read(one("a", 5)))
	if err := Check(ops, time.Minute); !errors.Is(err, ErrNone) {
		t.Errorf("in one group: %v", err)
	}
	ops[1].Group = "another"
	if err := Check(ops, time.Minute); err != nil {
		t.Errorf("in two groups: %v", err)
	}
}

// TestUndecided: a search without time proves neither an order nor its absence.
func TestUndecided(t *testing.T) {
	var ops []Operation
	for i := range 40 { // all at once, in no order that fits: more ways than can be tried
		ops = append(ops, put(strings.Repeat("x", i+1), 0, nil))
	}
	ops = append(atOnce(ops...), Operation{Client: 99, Call: 20, Return: 30, Read: one("nobody wrote it", 0)})
	if err := Check(ops, time.Millisecond); !errors.Is(err, ErrUndecided) {
		t.Errorf("%v, want %v", err, ErrUndecided)
	}
}

// TestVisualize: a page is written, also for operations without an order.
func TestVisualize(t *testing.T) {
	if err := Visualize(io.Discard, inTurn(put("a", 1, nil), read(map[string]Item{})), time.Second); err != nil {
		t.Error(err)
	}
}
