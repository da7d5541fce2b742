package runtime

import (
	"slices"
	"time"
)

// Phase of a Runner.
type Phase string

// The phases, in the order in which a term passes through them.
const (
	Waiting  Phase = "waiting"  // another server leads, or nobody does
	Leading  Phase = "leading"  // the routines run here
	Draining Phase = "draining" // the term is over, the routines are ending
	Stopped  Phase = "stopped"
)

// Status says what a Runner does, for humans.
type Status struct {
	Phase    Phase           `json:"phase"`
	Term     uint64          `json:"term,omitempty"`
	Since    time.Time       `json:"since"` // when it entered Phase
	Routines []RoutineStatus `json:"routines"`
}

// RoutineStatus says what one routine does.
type RoutineStatus struct {
	Name    string    `json:"name"`
	Running bool      `json:"running"`
	Since   time.Time `json:"since,omitzero"`
	// StartedAfter is how long after the election its work had begun in this term (see Started), 0
	// before that, and after a failure.
	StartedAfter time.Duration `json:"-"`
	Restarts     int           `json:"restarts"` // failures of its own since this server started
	LastError    string        `json:"lastError,omitempty"`
	LastErrorAt  time.Time     `json:"lastErrorAt,omitzero"`
}

// Status returns a copy of the current status.
func (r *Runner) Status() Status {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.status
	s.Routines = slices.Clone(s.Routines)
	return s
}

func (r *Runner) enter(p Phase, term uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status.Phase, r.status.Term, r.status.Since = p, term, time.Now()
}

func (r *Runner) update(i int, f func(*RoutineStatus)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f(&r.status.Routines[i])
}
