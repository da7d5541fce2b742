package logstore

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

// ErrHangs is returned by Watchdog.Check.
var ErrHangs = errors.New("the disk of this server does not finish a write to the log")

// Watchdog detects hanging writes to the log. Its methods may be called from any goroutine.
//
//	well ──a write takes longer than the limit──▶ hung ──every such write has returned──▶ well
//
// A leader with a hanging disk would stay leader: Raft's heartbeats come from goroutines that need
// no disk, while the goroutine that could step down waits for it. So a server with a hung disk
// sends nothing that makes a leader (see raftfix.SendGate), and the others elect one of them.
//
// A slow disk is not a hung one: it has finished slow writes a moment ago. So a write may take
// three times as long as the slowest of the last minutes, up to a bound. A server that is short of
// CPU sees late that a write is done: the limit is extended for it.
//
// DeleteRange is not watched. It may be long, and the writes that wait behind it are watched.
type Watchdog struct {
	limit     time.Duration
	extension func() time.Duration
	changed   chan struct{} // holds a token when the disk begins or ceases to hang

	mu    sync.Mutex
	slow  slowest
	busy  int           // writes under way
	late  int           // those that take longer than limit
	since time.Time     // when the first of them began
	hung  chan struct{} // closed while the disk hangs
}

// NewWatchdog returns a Watchdog for writes that take no longer than the limit and its extension.
// extension may be nil: there is none.
func NewWatchdog(limit time.Duration, extension func() time.Duration) *Watchdog {
	if extension == nil {
		extension = func() time.Duration { return 0 }
	}
	return &Watchdog{limit: limit, extension: extension, changed: make(chan struct{}, 1), hung: make(chan struct{})}
}

// guard makes a write.
func (w *Watchdog) guard(write func() error) error {
	began := time.Now()
	late, done := false, false // guarded by mu, as is timer
	var timer *time.Timer
	look := func() {
		extension := w.extension()
		w.mu.Lock()
		defer w.mu.Unlock()
		if done {
			return
		}
		if left := w.slow.limit(w.limit, time.Now()) + extension - time.Since(began); left > 0 {
			timer.Reset(left)
			return
		}
		late = true
		if w.late++; w.late == 1 {
			w.since = began
			close(w.hung)
			w.tell()
		}
	}
	w.mu.Lock()
	w.busy++
	timer = time.AfterFunc(w.limit, look)
	w.mu.Unlock()
	err := write()
	w.mu.Lock()
	defer w.mu.Unlock()
	timer.Stop()
	if err == nil {
		w.slow.note(w.limit, time.Since(began), time.Now())
	}
	w.busy--
	if done = true; late {
		if w.late--; w.late == 0 {
			w.hung = make(chan struct{})
			w.tell()
		}
	}
	return err
}

func (w *Watchdog) tell() {
	select {
	case w.changed <- struct{}{}:
	default: // a token is there
	}
}

// Hanging returns a channel that is closed while the disk hangs. It is of no use after that.
func (w *Watchdog) Hanging() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.hung
}

// Busy reports whether a write is under way.
func (w *Watchdog) Busy() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.busy > 0
}

// Check returns an error that wraps ErrHangs while the disk hangs.
func (w *Watchdog) Check() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.late == 0 {
		return nil
	}
	return fmt.Errorf("%w, for %s now", ErrHangs, time.Since(w.since).Round(time.Second))
}

// Changed returns a channel that holds a token after the disk began or ceased to hang.
func (w *Watchdog) Changed() <-chan struct{} { return w.changed }
