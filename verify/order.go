package verify

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/barque/barque/internal/history"
	"github.com/barque/barque/internal/linear"
)

// forever is the end of a call without an answer: it may take effect at any later time.
const forever = time.Duration(math.MaxInt64 / 2)

// order checks that one order explains all answers about single objects. The search takes memory
// with the square of the calls to one object, which bounds the length of a record.
func (j *judge) order(patience time.Duration) {
	ops := operations(j.resolved())
	switch err := linear.Check(ops, patience); {
	case errors.Is(err, linear.ErrUndecided):
		j.Unjudged = append(j.Unjudged,
			fmt.Sprintf("whether the history of %d calls is linearizable was not found out in %v", len(ops), patience))
	case err != nil:
		j.log.Violated(history.Linearizes, "the history of %d calls is not linearizable", len(ops))
	}
}

// operations returns the calls whose outcome says something of a single object.
func operations(calls []Call) []linear.Operation {
	var ops []linear.Operation
	clients := make(map[string]int)
	for i := range calls {
		c := &calls[i]
		if c.Verb == List || c.Outcome == Refused || c.Verb == Get && c.Outcome == Unknown {
			continue
		}
		id, ok := clients[c.Client]
		if !ok {
			id = len(clients)
			clients[c.Client] = id
		}
		o := c.operation()
		o.Client, o.Group, o.Call, o.Return = id, c.Name, int64(c.Begin), int64(c.End)
		if c.Outcome == Unknown {
			o.Return = linear.Never
		}
		ops = append(ops, o)
	}
	return ops
}

// operation returns the call as an operation on one register. It has revisions only: the contents
// of reads are compared with the history.
func (c *Call) operation() (o linear.Operation) {
	is := func(item linear.Item) map[string]linear.Item { return map[string]linear.Item{c.Name: item} }
	switch {
	case c.Outcome == Absent: // for any verb
		o.Read = map[string]linear.Item{}
		return o
	case c.Outcome == Exists:
		o.Outcome, o.Require = linear.Conflict, is(linear.Item{})
		return o
	case c.Verb == Get:
		o.Read = is(linear.Item{Exists: true, Revision: c.Revision})
		return o
	}
	o.Require = is(linear.Item{Exists: c.Verb != Create, Revision: c.Require})
	switch c.Outcome {
	case Conflict:
		o.Outcome, o.Found = linear.Conflict, is(linear.Item{Exists: true})
	case Unknown:
		o.Outcome = linear.Unknown
	default:
		o.Revision = c.Revision
	}
	if c.Verb == Delete {
		o.Delete = []string{c.Name}
	} else {
		o.Put = map[string]string{c.Name: ""}
	}
	return o
}
