package balancer

import (
	"context"
	"errors"
	"net/netip"
	"time"
)

// grade is how good a server is, by its answers.
type grade int

const (
	silent   grade = iota // does not answer, or was not probed yet
	notReady              // answers that it cannot serve
	ready
)

func (g grade) String() string { return [...]string{"silent", "not ready", "ready"}[g] }

// ErrNotReady is returned by a Probe if the server answers that it is not ready.
var ErrNotReady = errors.New("the server is not ready")

// backend is one server with the result of its last probe; silent without an answer.
type backend struct {
	addr     netip.AddrPort
	grade    grade
	since    time.Time // when grade began, or was first seen
	answered time.Time // when it answered last
	failures int       // questions without answer in a row

	// when the first of the failures, or the question that is open, was in doubt; zero: not since
	// it answered
	doubted time.Time
	tried   time.Time // just before the last probe began of the last question that was in doubt
	outdone time.Time // when another server answered first, after doubted
	worseBy time.Time // servers tried during the last unanswered probe: those that were good until then are better

	dialed  time.Time // when the last try to connect began, while it was silent and lost; else zero
	dialing bool      // one is under way
	reached time.Time // when one was accepted last
	refused bool      // the last one was not accepted

	anew chan struct{} // of one element: outdone was set, so a new probe is due

	links  map[*link]struct{}
	urgent bool          // a probe is due soon, because a server in use is in doubt
	woken  chan struct{} // of one element: how long the next question can wait may have changed
	stop   context.CancelFunc
}

const (
	// idleFactor is how much more rarely an unused server is probed. maxBackoff bounds the factor
	// for one that has not answered for long.
	idleFactor = 5
	maxBackoff = 16
	// reachEvery is the time between two tries to connect to a silent server in use that is lost.
	// reachedFor is how long one that succeeded counts.
	reachEvery = 2 * time.Second
	reachedFor = 5 * time.Second
	// urgentFactor is how much sooner a server is probed again while one in use is in doubt. Its
	// answer arrives before that one is given up.
	urgentFactor = 3
)

// learn stores a probe's result, and reports whether the grade has changed. The caller holds the
// balancer's mutex.
func (be *backend) learn(err error, now time.Time) bool {
	was := be.grade
	if isAnswer(err) {
		if be.grade = ready; err != nil {
			be.grade = notReady
		}
		be.failures, be.answered = 0, now
		be.doubted, be.outdone, be.worseBy = time.Time{}, time.Time{}, time.Time{}
	} else {
		be.grade = silent
		// Another server is better if it answered, and this one did not answer a later probe. The
		// other's answer alone may only show that the network is back.
		be.failures++
		be.worseBy = be.tried
	}
	if be.grade == was {
		return false
	}
	be.since = now
	return true
}

// worseThan reports whether the other server is better than this one, so that connections may be
// cut to move them. The other server must have answered since, because both may have failed
// together. The caller holds the balancer's mutex.
func (be *backend) worseThan(other *backend) bool {
	if other.grade <= be.grade || other.failures > 0 {
		return false
	}
	if be.grade == silent {
		return !be.outdone.IsZero() && !be.outdone.After(be.worseBy) && !other.since.After(be.worseBy)
	}
	return other.answered.After(be.since)
}

// isCutOff reports whether the machine of a silent and lost server accepts no connections for it.
// The kernel accepts them for a process that is stopped, or that a busy machine does not let run.
// The caller holds the balancer's mutex.
func (be *backend) isCutOff(now time.Time) bool {
	return be.refused && now.Sub(be.reached) >= reachedFor
}

// cut ends the server's connections. The caller holds the balancer's mutex.
func (be *backend) cut() {
	for l := range be.links {
		l.client.Close()
	}
	clear(be.links)
}

// wake recomputes the time of the next probe.
func (be *backend) wake() {
	select {
	case be.woken <- struct{}{}:
	default:
	}
}

// pause is how long the next question can wait, from the begin of the last. The balancer's mutex is
// held.
func (be *backend) pause(interval time.Duration) time.Duration {
	switch {
	case be.urgent:
		return interval / urgentFactor
	case len(be.links) > 0, be.grade == notReady:
		return interval
	case be.grade == ready:
		return interval * idleFactor
	}
	return interval * time.Duration(min(max(1, be.failures), maxBackoff))
}
