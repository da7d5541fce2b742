package verify

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Verdict is what was found.
type Verdict struct {
	Violations []string // broken promises
	Unjudged   []string // promises of which it was not found out whether they were kept, with the reason
	Calls      int      // of clients
	Checked    int      // answers that were held against the history
	Skipped    int      // answers about parts of it that nobody watched
	Events     int      // that watchers got
	Revisions  int      // changes in the history
}

// add takes over what was found about another part of the work.
func (v *Verdict) add(o *Verdict) {
	v.Violations = append(v.Violations, o.Violations[:min(len(o.Violations), max(0, maxViolations-len(v.Violations)))]...)
	v.Unjudged = append(v.Unjudged, o.Unjudged[:min(len(o.Unjudged), max(0, maxViolations-len(v.Unjudged)))]...)
	v.Calls, v.Checked, v.Skipped = v.Calls+o.Calls, v.Checked+o.Checked, v.Skipped+o.Skipped
	v.Events, v.Revisions = v.Events+o.Events, v.Revisions+o.Revisions
}

// maxViolations are told: the first ones say most.
const maxViolations = 40

// String tells what was checked in a line.
func (v *Verdict) String() string {
	return fmt.Sprintf("%d calls, %d answers held against a history of %d changes (%d could not be), %d events of watchers",
		v.Calls, v.Checked, v.Revisions, v.Skipped, v.Events)
}

// interval is what was watched without a gap: after from, where the state was base, up to to.
type interval struct {
	from, to uint64
	base     []Item
}

type judge struct {
	Verdict
	calls   []Call
	watches []*Watch
	log     []Event // in order
	told    map[uint64]string
	heard   []moment // in the order of time: the newest revision that was told until then
	later   []moment // likewise: the oldest revision of a write that began then, or later
	skipped string   // the first answer about a part that nobody watched
	covered []interval
	objects map[string][]Event // log by name
	writes  map[string]*Call   // by token
}

// Judge holds the record against itself. Nobody may add to it meanwhile. The search for an order of
// the calls is given up after patience; then the verdict says that it was not found out.
func (r *Record) Judge(patience time.Duration) *Verdict {
	r.mu.Lock()
	defer r.mu.Unlock()
	j := &judge{calls: r.calls, watches: r.watches, told: make(map[uint64]string), objects: make(map[string][]Event), writes: make(map[string]*Call)}
	j.Verdict.Calls = len(r.calls)
	for i := range j.calls {
		if c := &j.calls[i]; c.Token != "" {
			if j.writes[c.Token] != nil {
				j.fault("%s: its token is not new; the workload is wrong", c)
			}
			j.writes[c.Token] = c
		}
	}
	j.moments()
	j.history()
	j.watchers()
	j.changes()
	for i := range j.calls {
		j.answer(&j.calls[i])
	}
	j.floors()
	j.order(patience)
	if j.Skipped > 0 {
		j.Unjudged = append(j.Unjudged, fmt.Sprintf("%d answers are about times of which no watcher tells, first this: %s", j.Skipped, j.skipped))
	}
	return &j.Verdict
}

// resolved returns the calls with what the history tells of those whose clients do not know: that a
// write took effect, and at which revision, or that it never did. What is certain need not be
// searched for: a search among many unknown writes would not end. That it never did is certain of a
// history that is closed, of what began when it had.
func (j *judge) resolved() []Call {
	calls := slices.Clone(j.calls)
	closed := j.closed()
	at := make(map[string]uint64)
	for _, e := range j.log {
		if e.Kind != Deleted {
			at[e.Item.Token] = e.Item.Revision
		}
	}
	for i := range calls {
		c := &calls[i]
		switch {
		case c.Outcome != Unknown:
		case c.Verb == Delete:
			// Whose deletion it was cannot be told apart.
		case at[c.Token] > 0:
			c.Outcome, c.Revision, c.End = Done, at[c.Token], forever
		case c.Token != "" && closed && j.floor(c.Begin) >= j.covered[0].from:
			c.Outcome = Refused
		}
	}
	return calls
}

func (j *judge) fault(format string, args ...any) {
	if len(j.Violations) < maxViolations {
		j.Violations = append(j.Violations, fmt.Sprintf(format, args...))
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

func (e Event) String() string {
	return fmt.Sprintf("%s %q with %q at %d", e.Kind, e.Item.Name, e.Item.Token, e.Item.Revision)
}

// history puts together what all watchers have seen.
func (j *judge) history() {
	at := make(map[uint64]Event)
	var parts []part
	for _, w := range j.watches {
		for _, p := range w.parts {
			parts = append(parts, p)
			for _, e := range p.events {
				if e.Kind == Progress {
					continue
				}
				j.Verdict.Events++
				revision := e.Item.Revision
				if known, ok := at[revision]; ok && known != e {
					j.fault("two watchers differ: %s was told %s, and %s was told %s", j.told[revision], known, w.Name, e)
				} else if !ok {
					at[revision], j.told[revision] = e, w.Name
				}
			}
		}
	}
	for _, e := range at {
		j.log = append(j.log, e)
	}
	slices.SortFunc(j.log, func(a, b Event) int { return cmp.Compare(a.Item.Revision, b.Item.Revision) })
	j.Revisions = len(j.log)
	slices.SortFunc(parts, func(a, b part) int { return cmp.Compare(a.from, b.from) })
	for _, p := range parts {
		if n := len(j.covered); n > 0 && p.from <= j.covered[n-1].to {
			j.covered[n-1].to = max(j.covered[n-1].to, p.last())
		} else {
			j.covered = append(j.covered, interval{p.from, p.last(), p.items})
		}
	}
	for _, e := range j.log {
		j.objects[e.Item.Name] = append(j.objects[e.Item.Name], e)
	}
}

// around returns the interval in which a revision is; nil when nobody watched then.
func (j *judge) around(revision uint64) *interval {
	for i := range j.covered {
		if c := &j.covered[i]; c.from <= revision && revision <= c.to {
			return c
		}
	}
	return nil
}

// known says whether somebody knows the state at a revision.
func (j *judge) known(revision uint64) bool { return j.around(revision) != nil }

// between returns the part of the history after one revision, up to another.
func (j *judge) between(after, to uint64) []Event {
	find := func(revision uint64) int {
		n, _ := slices.BinarySearchFunc(j.log, revision+1, func(e Event, r uint64) int { return cmp.Compare(e.Item.Revision, r) })
		return n
	}
	return j.log[find(after):max(find(after), find(to))]
}

// watchers checks each by itself, and that none has missed what another one has seen.
func (j *judge) watchers() {
	for _, w := range j.watches {
		var before uint64
		for _, p := range w.parts {
			if p.from < before {
				j.fault("watcher %s began anew at revision %d, and had seen %d", w.Name, p.from, before)
			}
			before = p.from
			var got []Event
			for _, e := range p.events {
				revision := e.Item.Revision
				switch {
				case e.Kind == Progress && revision < before:
					j.fault("watcher %s: progress at revision %d after %d", w.Name, revision, before)
				case e.Kind != Progress && revision <= before:
					j.fault("watcher %s: %s after revision %d", w.Name, e, before)
				}
				before = max(before, revision)
				if e.Kind != Progress {
					got = append(got, e)
				}
			}
			want := j.between(p.from, p.last())
			for i := range max(len(want), len(got)) {
				if i >= len(got) || i < len(want) && want[i].Item.Revision < got[i].Item.Revision {
					j.fault("watcher %s was not told: %s (%s was)", w.Name, want[i], j.told[want[i].Item.Revision])
					break
				}
				if i >= len(want) || want[i] != got[i] {
					break // it came out of order, or differs from another's: that is told already
				}
			}
		}
	}
}

// changes checks that the history follows from itself and from what clients wrote.
func (j *judge) changes() {
	seen := make(map[string]uint64)
	for _, e := range j.log {
		revision := e.Item.Revision
		if !j.known(revision - 1) { // an interval begins there
			continue
		}
		before, exists := j.at(e.Item.Name, revision-1)
		if exists != (e.Kind != Added) {
			j.fault("%s, and before it was there: %v", e, exists)
		}
		if e.Kind == Deleted {
			if exists && !j.deleted(e.Item.Name, before.Revision) {
				j.fault("%s, and nobody deleted it", e)
			}
			continue
		}
		c := j.writes[e.Item.Token]
		switch {
		case c == nil || c.Name != e.Item.Name:
			j.fault("%s, and nobody wrote that", e)
		case seen[e.Item.Token] != 0:
			j.fault("%s: it took effect twice, before at %d", e, seen[e.Item.Token])
		case c.Outcome != Done && c.Outcome != Unknown:
			j.fault("%s: it was not to take effect: %s", e, c)
		}
		seen[e.Item.Token] = revision
	}
}

// deleted says whether somebody wanted to delete an object that was at a revision.
func (j *judge) deleted(name string, revision uint64) bool {
	return slices.ContainsFunc(j.calls, func(c Call) bool {
		return c.Verb == Delete && c.Name == name && c.Require == revision && (c.Outcome == Done || c.Outcome == Unknown)
	})
}

// at returns what an object was at a revision that is known.
func (j *judge) at(name string, revision uint64) (item Item, exists bool) {
	in := j.around(revision)
	events := j.objects[name]
	n, _ := slices.BinarySearchFunc(events, revision+1, func(e Event, r uint64) int { return cmp.Compare(e.Item.Revision, r) })
	if n > 0 && events[n-1].Item.Revision > in.from {
		return events[n-1].Item, events[n-1].Kind != Deleted
	}
	for _, i := range in.base {
		if i.Name == name {
			return i, true
		}
	}
	return Item{}, false
}

// answer checks one answer against the history.
func (j *judge) answer(c *Call) {
	if c.Outcome != Done {
		return
	}
	if c.Verb != Delete && !j.known(c.Revision) || c.Verb == Delete && !j.known(c.Require) {
		j.skip(c)
		return
	}
	j.Checked++
	switch c.Verb {
	case Create, Update:
		if item, _ := j.at(c.Name, c.Revision); item != (Item{c.Name, c.Token, c.Revision}) {
			j.fault("%s, but the history has %+v", c, item)
		}
	case Delete:
		j.deletion(c)
	case Get:
		if item, exists := j.at(c.Name, c.Revision); !exists || item != c.Items[0] {
			j.fault("%s as %+v, but the history has %+v (there: %v)", c, c.Items[0], item, exists)
		}
	case List:
		j.list(c)
	}
}

// skip notes an answer about a time of which no watcher tells.
func (j *judge) skip(c *Call) {
	if j.Skipped++; j.skipped == "" {
		j.skipped = c.String()
	}
}

// deletion checks that what comes after the revision that was deleted is its deletion.
func (j *judge) deletion(c *Call) {
	in := j.around(c.Require)
	for _, e := range j.objects[c.Name] {
		if e.Item.Revision <= c.Require {
			continue
		}
		if e.Item.Revision <= in.to && e.Kind != Deleted {
			j.fault("%s, but the history has %s", c, e)
		}
		return
	}
	if then := j.ceiling(c.End); then == 0 || then > in.to { // nobody has seen what came next
		j.Checked--
		j.skip(c)
		return
	}
	j.fault("%s, but the history has no deletion", c)
}

func (j *judge) list(c *Call) {
	there := make(map[string]bool)
	for _, i := range c.Items {
		there[i.Name] = true
		if item, exists := j.at(i.Name, c.Revision); !exists || item != i {
			j.fault("%s has %+v, but the history has %+v (there: %v)", c, i, item, exists)
		}
	}
	for name := range j.objects {
		if item, exists := j.at(name, c.Revision); exists && !there[name] {
			j.fault("%s misses %+v", c, item)
		}
	}
	for _, i := range j.around(c.Revision).base {
		if item, exists := j.at(i.Name, c.Revision); exists && !there[i.Name] && j.objects[i.Name] == nil {
			j.fault("%s misses %+v", c, item)
		}
	}
}

// floors checks that no answer is older than what anybody was told before the call began.
func (j *judge) floors() {
	for i := range j.calls {
		c := &j.calls[i]
		floor := j.floor(c.Begin)
		if floor == 0 || c.Outcome != Done {
			continue
		}
		switch {
		case (c.Verb == Create || c.Verb == Update) && c.Revision <= floor:
			j.fault("%s, after revision %d was told to somebody", c, floor)
		case c.Verb == List && c.Revision < floor:
			j.fault("%s, after revision %d was told to somebody", c, floor)
		case c.Verb == Get && j.known(floor):
			if item, exists := j.at(c.Name, floor); exists && c.Revision < item.Revision {
				j.fault("%s, after revision %d was told to somebody, where it was at %d", c, floor, item.Revision)
			}
		}
	}
}
