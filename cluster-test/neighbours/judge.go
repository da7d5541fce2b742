package neighbours

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// Claim is a machine's statement that it has an address.
type Claim struct {
	At   time.Time // when it arrived, by the kernel
	Addr netip.Addr
	MAC  string
	// Question is the number of the question that it answers; 0 for an announcement to all.
	Question uint32
}

// Judge judges claims. Its methods may be called by several goroutines.
type Judge struct {
	mu     sync.Mutex
	of     map[netip.Addr]*record
	faults []string

	asked, heard int
}

// record is an address's past.
type record struct {
	holder string    // the machine that has claimed it last
	last   time.Time // when it did
	lastOf map[string]time.Time
	// taken are the last changes of the holder, in order, until it is known whether announcements
	// have proven them. switches are those of a moment.
	taken    []taken
	switches []taken
	asked    []question // without an answer, in order
	answered map[uint32]time.Time
	// gap is the longest time without an answer since the last call of Gaps, and since when the
	// address is without one now.
	gap   time.Duration
	since time.Time
}

type taken struct {
	from, by string
	at       time.Time
	proven   bool // by has announced it
}

type question struct {
	number uint32
	at     time.Time
}

const (
	// proofWithin is how soon a take-over is announced. The new holder answers at once, and its
	// announcement is another thread's.
	proofWithin = 5 * time.Second
	// wavering is the time in which a machine does not lose an address, and have it again. It may
	// repeat the announcement of its take-over for as long.
	wavering = 700 * time.Millisecond
	// answerWithin is how long an answer may take before the question counts as not answered.
	answerWithin = time.Second
	// remembered is how long answers are kept, for a second one.
	remembered = time.Minute
	// mostFaults bounds what is reported.
	mostFaults = 20
)

// NewJudge returns a Judge that has heard nothing.
func NewJudge() *Judge { return &Judge{of: map[netip.Addr]*record{}} }

func (j *Judge) record(addr netip.Addr) *record {
	r := j.of[addr]
	if r == nil {
		r = &record{answered: map[uint32]time.Time{}, lastOf: map[string]time.Time{}}
		j.of[addr] = r
	}
	return r
}

func (j *Judge) fault(format string, args ...any) {
	if len(j.faults) < mostFaults {
		j.faults = append(j.faults, fmt.Sprintf(format, args...))
	}
}

// Asked takes a question that was sent.
func (j *Judge) Asked(addr netip.Addr, number uint32, at time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	r := j.record(addr)
	r.asked = append(r.asked, question{number, at})
	j.asked++
	r.pass(at)
}

// pass takes it that the time is at: older questions have no answer.
func (r *record) pass(at time.Time) {
	for len(r.asked) > 0 && at.Sub(r.asked[0].at) >= answerWithin {
		r.missed(r.asked[0].at)
		r.asked = r.asked[1:]
	}
}

// missed takes a question without an answer.
func (r *record) missed(at time.Time) {
	if r.since.IsZero() {
		r.since = at
	}
	r.gap = max(r.gap, at.Sub(r.since))
}

// met takes a question that was answered.
func (r *record) met(at time.Time) {
	if !r.since.IsZero() {
		r.gap = max(r.gap, at.Sub(r.since))
		r.since = time.Time{}
	}
}

// Heard takes a claim, in the order of their times.
func (j *Judge) Heard(c Claim) {
	j.mu.Lock()
	defer j.mu.Unlock()
	r := j.record(c.Addr)
	if c.Question != 0 {
		j.answer(r, c)
	}
	if r.holder != "" && r.holder != c.MAC {
		j.change(r, taken{from: r.holder, by: c.MAC, at: c.At})
	}
	r.holder, r.last, r.lastOf[c.MAC] = c.MAC, c.At, c.At
	j.heard++
	for i := range r.taken {
		t := &r.taken[i]
		t.proven = t.proven || c.Question == 0 && t.by == c.MAC && c.At.Sub(t.at) <= proofWithin
	}
	j.unproven(r, c.Addr, c.At)
}

// answer takes the answer to a question.
func (j *Judge) answer(r *record, c Claim) {
	maps.DeleteFunc(r.answered, func(_ uint32, at time.Time) bool { return c.At.Sub(at) > remembered })
	if _, known := r.answered[c.Question]; known {
		return
	}
	r.answered[c.Question] = c.At
	i := slices.IndexFunc(r.asked, func(q question) bool { return q.number == c.Question })
	if i < 0 {
		return // its time is over
	}
	for _, before := range r.asked[:i] { // the link keeps the order
		r.missed(before.at)
	}
	r.met(r.asked[i].at)
	r.asked = r.asked[i+1:]
}

// change takes a claim by another machine than the last one.
func (j *Judge) change(r *record, t taken) {
	r.taken = append(r.taken, t)
	r.switches = append(slices.DeleteFunc(r.switches, func(s taken) bool { return t.at.Sub(s.at) > wavering }), t)
	for _, s := range r.switches[:len(r.switches)-1] {
		if s.from == t.by {
			j.fault("%s claimed an address at %s, %s after %s had taken it over", t.by, clock(t.at), t.at.Sub(s.at),
				s.by)
			return
		}
	}
}

// unproven finds a machine that answered between two claims of another one, with no announcement of
// either. One change alone may lack it: a holder may lose an address before it has announced it.
func (j *Judge) unproven(r *record, addr netip.Addr, now time.Time) {
	for len(r.taken) > 1 && now.Sub(r.taken[1].at) > proofWithin {
		t, back := r.taken[0], r.taken[1]
		if !t.proven && !back.proven && back.by == t.from {
			j.fault("%v: %s answered at %s, between claims of %s, and neither announced a take-over", addr, t.by,
				clock(t.at), t.from)
		}
		r.taken = r.taken[1:]
	}
}

func clock(at time.Time) string { return at.Format("15:04:05.000000") }

// Faults returns what is wrong so far.
func (j *Judge) Faults() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.faults)
}

// Holder returns the machine that has claimed an address last, and when; "" for none.
func (j *Judge) Holder(addr netip.Addr) (mac string, at time.Time) {
	j.mu.Lock()
	defer j.mu.Unlock()
	r := j.record(addr)
	return r.holder, r.last
}

// LastOf returns when a machine has last claimed an address; zero if it never did.
func (j *Judge) LastOf(addr netip.Addr, mac string) time.Time {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.record(addr).lastOf[mac]
}

// Counts returns the numbers of questions and of claims.
func (j *Judge) Counts() (asked, heard int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.asked, j.heard
}

// Gaps returns the longest time for which each address was without an answer since the last call.
// It is known to the questions' interval. What is no answer yet counts until now.
func (j *Judge) Gaps(now time.Time) map[netip.Addr]time.Duration {
	j.mu.Lock()
	defer j.mu.Unlock()
	out := map[netip.Addr]time.Duration{}
	for addr, r := range j.of {
		r.pass(now)
		out[addr], r.gap = r.gap, 0
	}
	return out
}
