package verify

import (
	"cmp"
	"slices"
	"time"
)

// moment is a time in the record, and a revision that is certainly later.
type moment struct {
	at       time.Duration
	revision uint64
}

// wrote reports whether the call is an acknowledged write.
func (c *Call) wrote() bool {
	return c.Outcome == Done && (c.Verb == Create || c.Verb == Update)
}

// moments indexes the revisions of answers by the time of the answer. It indexes the revisions of
// writes by the time of their beginning.
func (j *judge) moments() {
	for i := range j.calls {
		c := &j.calls[i]
		if c.Outcome == Done && c.Revision > 0 {
			j.heard.Add(int64(c.End), c.Revision)
		}
		if c.wrote() {
			j.later = append(j.later, moment{c.Begin, c.Revision})
		}
	}
	slices.SortFunc(j.later, func(a, b moment) int { return cmp.Compare(a.at, b.at) })
	for i := len(j.later) - 2; i >= 0; i-- {
		j.later[i].revision = min(j.later[i].revision, j.later[i+1].revision)
	}
}

// floor returns the newest revision in any answer before a time; 0 if there was none.
func (j *judge) floor(at time.Duration) uint64 { return j.heard.Before(int64(at)) }

// ceiling returns a revision above all changes made by a time: that of a write which began later; 0
// if none did.
func (j *judge) ceiling(at time.Duration) uint64 {
	n, _ := slices.BinarySearchFunc(j.later, at+1,
		func(m moment, at time.Duration) int { return cmp.Compare(m.at, at) })
	if n < len(j.later) {
		return j.later[n].revision
	}
	return 0
}

// closed reports whether the history has the effects of all calls, and its first revision. It must
// be without a gap and have the last write, which began after all other calls had ended. A watcher
// that did not reach the end leaves the history open.
func (j *judge) closed() (from uint64, closed bool) {
	last := -1
	for i, c := range j.calls {
		if c.Verb != List && (last < 0 || c.Begin > j.calls[last].Begin) {
			last = i
		}
	}
	spans := j.log.Spans
	if last < 0 || !j.calls[last].wrote() || len(spans) != 1 || j.calls[last].Revision > spans[0].To {
		return 0, false
	}
	for i, c := range j.calls {
		if i != last && c.Verb != List && c.End > j.calls[last].Begin {
			return 0, false
		}
	}
	return spans[0].From, true
}
