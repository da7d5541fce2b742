package verify

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/barque/barque/internal/history"
)

// Verdict is the result of judging a record.
type Verdict struct {
	Violations []string // broken promises
	Unjudged   []string // promises that could not be judged, with the reason
	Calls      int      // of clients
	Checked    int      // answers compared with the history
	Skipped    int      // answers about parts of the history that no watcher saw
	Events     int      // received by watchers
	Revisions  int      // changes in the history
}

// add adds the verdict of another part of the work.
func (v *Verdict) add(o *Verdict) {
	v.Violations = append(v.Violations,
		o.Violations[:min(len(o.Violations), max(0, maxViolations-len(v.Violations)))]...)
	v.Unjudged = append(v.Unjudged, o.Unjudged[:min(len(o.Unjudged), max(0, maxViolations-len(v.Unjudged)))]...)
	v.Calls, v.Checked, v.Skipped = v.Calls+o.Calls, v.Checked+o.Checked, v.Skipped+o.Skipped
	v.Events, v.Revisions = v.Events+o.Events, v.Revisions+o.Revisions
}

// maxViolations bounds the reported violations: the first ones say most.
const maxViolations = history.Most

// String sums up the checks in one line.
func (v *Verdict) String() string {
	return fmt.Sprintf(
		"%d calls, %d answers held against a history of %d changes (%d could not be), %d events of watchers",
		v.Calls, v.Checked, v.Revisions, v.Skipped, v.Events)
}

type judge struct {
	Verdict
	log    *history.Log
	calls  []Call
	heard  history.NewestAnswer // the newest revision in any answer, by time
	later  []moment             // by time: the lowest revision of the writes that began at this time or later
	writes map[*Call]*history.Write
}

// Judge checks the record against itself. Nothing may be added to the record meanwhile. The search
// for an order of the calls ends after patience; the verdict then says that it was unfinished.
func (r *Record) Judge(patience time.Duration) *Verdict {
	r.mu.Lock()
	defer r.mu.Unlock()
	j := &judge{log: history.New(), calls: r.calls, writes: make(map[*Call]*history.Write)}
	for i := range j.calls {
		if c := &j.calls[i]; c.Token != "" {
			j.writes[c] = &history.Write{What: c, Ops: []history.Op{{Key: c.Name, Value: c.Token}},
				Never: c.Outcome != Done && c.Outcome != Unknown}
			j.log.Write(j.writes[c])
		}
	}
	for _, w := range r.watches {
		j.watcher(w)
	}
	j.log.Gather()
	j.log.Watchers()
	j.deletions()
	j.moments()
	for i := range j.calls {
		j.answer(&j.calls[i])
	}
	j.floors()
	j.order(patience)
	j.Calls, j.Checked, j.Skipped = len(j.calls), j.log.Checked, j.log.Skipped
	for _, v := range j.log.All {
		j.Violations = append(j.Violations, v.What)
	}
	if j.Skipped > 0 {
		j.Unjudged = append(j.Unjudged,
			fmt.Sprintf("%d answers are about times of which no watcher tells, first this: %s", j.Skipped, j.log.First))
	}
	return &j.Verdict
}

// watcher adds a watcher's events to the history.
func (j *judge) watcher(w *Watch) {
	into := j.log.Watch(w.Name, nil)
	for _, p := range w.parts {
		into.Begin(p.from, entries(p.items))
		for _, e := range p.events {
			if e.Kind == Progress {
				into.Received(e.Item.Revision)
			} else {
				j.Events++
				into.Received(e.Item.Revision, history.Event{Kind: history.Kind(e.Kind), Item: e.Item.entry()})
			}
		}
	}
}

func (c *Call) String() string {
	text := fmt.Sprintf("%s of %q by %s through %s", c.Verb, c.Name, c.Client, c.Server)
	if c.Require > 0 {
		text += fmt.Sprintf(" at revision %d", c.Require)
	}
	text += fmt.Sprintf(" (%v to %v): %s", c.Begin.Round(time.Millisecond), c.End.Round(time.Millisecond), c.Outcome)
	if c.Revision > 0 {
		text += fmt.Sprintf(" at revision %d", c.Revision)
	}
	return text
}

func (i Item) entry() history.Item {
	return history.Item{Key: i.Name, Value: i.Token, Revision: i.Revision}
}

func entries(items []Item) (all []history.Item) {
	for _, i := range items {
		all = append(all, i.entry())
	}
	return all
}

// deletions checks that a client asked for each deletion.
func (j *judge) deletions() {
	for _, entry := range j.log.Between(0, math.MaxUint64) {
		j.Revisions++
		e := entry.Events[0]
		if before, exists := j.log.At(e.Item.Key, e.Item.Revision-1); e.Kind == history.Deleted && exists &&
			!j.deleted(e.Item.Key, before.Revision) {
			j.log.Violated(history.OneHistory, "%s, and nobody deleted it", e)
		}
	}
}

// deleted reports whether a client asked to delete an object at a revision.
func (j *judge) deleted(name string, revision uint64) bool {
	return slices.ContainsFunc(j.calls, func(c Call) bool {
		return c.Verb == Delete && c.Name == name && c.Require == revision &&
			(c.Outcome == Done || c.Outcome == Unknown)
	})
}

// answer checks one answer against the history.
func (j *judge) answer(c *Call) {
	switch {
	case c.Outcome != Done:
	case c.wrote():
		j.log.Acknowledged(j.writes[c], c.Revision)
	case c.Verb == List:
		j.log.Found(c, c.Revision, entries(c.Items), nil)
	case c.Verb == Delete:
		j.deletion(c)
	case j.log.Known(c, c.Revision):
		if item, exists := j.log.At(c.Name, c.Revision); !exists || item != c.Items[0].entry() {
			j.log.Violated(history.OneHistory, "%s as %+v, but the history has %v (there: %v)", c, c.Items[0], item,
				exists)
		}
	}
}

// deletion checks that the change after the deleted revision is its deletion.
func (j *judge) deletion(c *Call) {
	if !j.log.Known(c, c.Require) {
		return
	}
	in, _ := j.log.Span(c.Require)
	for _, entry := range j.log.Between(c.Require, in.To) {
		if e := entry.Events[0]; e.Item.Key == c.Name {
			if e.Kind != history.Deleted {
				j.log.Violated(history.Acknowledged, "%s, but the history has %s", c, e)
			}
			return
		}
	}
	if then := j.ceiling(c.End); then == 0 || then > in.To { // no watcher saw the next change
		j.log.Checked--
		j.log.Skip(c)
		return
	}
	j.log.Violated(history.Acknowledged, "%s, but the history has no deletion", c)
}

// floors checks that no answer is older than an answer which came before the call began.
func (j *judge) floors() {
	for i := range j.calls {
		c := &j.calls[i]
		floor := j.floor(c.Begin)
		if c.Outcome != Done {
			continue
		}
		switch c.Verb {
		case Create, Update, List:
			j.log.Fresh(c, c.Verb != List, c.Revision, floor)
		case Get:
			_, known := j.log.Span(floor)
			if item, exists := j.log.At(c.Name, floor); known && exists && c.Revision < item.Revision {
				j.log.Violated(history.Linearizes, "%s, after revision %d was told to somebody, where it was at %d", c,
					floor, item.Revision)
			}
		}
	}
}

// resolved returns the calls, with outcomes from the history where the client knows none. A write
// in the history took effect at that revision. A write that is missing from a closed history had no
// effect, if it began after the history did. Known outcomes keep the search short: among many
// unknown writes it would not end.
func (j *judge) resolved() []Call {
	calls := slices.Clone(j.calls)
	from, closed := j.closed()
	for i := range calls {
		c := &calls[i]
		if c.Outcome != Unknown || c.Token == "" { // a deletion has no token that identifies its call
			continue
		}
		if seen := j.writes[&j.calls[i]].Seen; seen > 0 {
			c.Outcome, c.Revision, c.End = Done, seen, forever
		} else if closed && j.floor(c.Begin) >= from {
			c.Outcome = Refused
		}
	}
	return calls
}
