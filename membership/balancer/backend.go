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
	silent   grade = iota // does not answer, or was not asked yet
	notReady              // answers that it cannot serve
	ready
)

func (g grade) String() string { return [...]string{"silent", "not ready", "ready"}[g] }

// ErrNotReady is returned by a Probe when the server answers, and says that it is not ready.
var ErrNotReady = errors.New("the server is not ready")

// backend is one server. It is what the last question to it was answered; silent, when it was not.
type backend struct {
	addr     netip.AddrPort
	grade    grade
	since    time.Time // when grade began, or when it became known
	answered time.Time // when it answered last
	failures int       // questions without answer in a row

	doubted time.Time // when the first of the failures, or the question that is open, was in doubt; zero: not since it answered
	tried   time.Time // just before the last probe began of the last question that was in doubt
	outdone time.Time // when another server answered first, after doubted
	worseBy time.Time // tried, of the last question that was unanswered: who was good until then is better

	anew chan struct{} // of one element: outdone was set, which is reason to ask anew

	links  map[*link]struct{}
	urgent bool          // it is to be asked soon, because one that is in use is in doubt
	woken  chan struct{} // of one element: how long the next question can wait may have changed
	stop   context.CancelFunc
}

const (
	// idleFactor is how much more rarely a server is asked that nothing runs through, and
	// maxBackoff bounds by how much more one that has not answered for long.
	idleFactor = 5
	maxBackoff = 16
	// urgentFactor is how much sooner than usual a server is asked again when one in use is in
	// doubt: its answer is there before that one is given up.
	urgentFactor = 3
)

// learn takes what a question brought, and tells whether the grade is another one now. The
// balancer's mutex is held.
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
		// Another server is better if it answered, and this one did not when it was asked anew
		// after that: the other's answer alone may show no more than that the network is back.
		be.failures++
		be.worseBy = be.tried
	}
	if be.grade == was {
		return false
	}
	be.since = now
	return true
}

// worseThan tells whether what runs through the server is to be cut, because the other is better:
// after the patience, when it is silent or says that it is not ready. A busy server is silent for a
// second now and then, and answers what it was asked all the same; the connections of one that died
// are closed by the kernel. The other has to have answered since, because it may have gone together
// with this one. The balancer's mutex is held.
func (be *backend) worseThan(other *backend, now time.Time, patience time.Duration) bool {
	if other.grade <= be.grade || other.failures > 0 || now.Sub(be.since) < patience {
		return false
	}
	if be.grade == silent {
		return !be.outdone.IsZero() && !be.outdone.After(be.worseBy) && !other.since.After(be.worseBy)
	}
	return other.answered.After(be.since)
}

// cut ends what runs through the server. The balancer's mutex is held.
func (be *backend) cut() {
	for l := range be.links {
		l.client.Close()
	}
	clear(be.links)
}

// wake has it looked at again how long the next question can wait.
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
