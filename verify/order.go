package verify

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/barque/barque/internal/history"
	"github.com/barque/barque/internal/linear"
)

// forever is when a call ends that nobody has answered: it may take effect at any later time.
const forever = time.Duration(math.MaxInt64 / 2)

// order checks that there is an order that explains what the clients were told of single objects.
// The search takes memory with the square of the number of calls to one object, which bounds how
// much can be judged at once.
func (j *judge) order(patience time.Duration) {
	ops := operations(j.resolved())
	switch err := linear.Check(ops, patience); {
	case errors.Is(err, linear.ErrUndecided):
		j.Unjudged = append(j.Unjudged, fmt.Sprintf("whether the history of %d calls is linearizable was not found out in %v", len(ops), patience))
	case err != nil:
		j.log.Violated(history.Linearizes, "the history of %d calls is not linearizable", len(ops))
	}
}

// operations are the calls that tell something of single objects.
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

// operation is a call as an operation on one register, by revisions alone: what was read is held
// against the history.
func (c *Call) operation() (o linear.Operation) {
	is := func(item linear.Item) map[string]linear.Item { return map[string]linear.Item{c.Name: item} }
	switch {
	case c.Outcome == Absent: // whatever was asked for
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
