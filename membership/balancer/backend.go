package balancer

import (
	"context"
	"errors"
	"net/netip"
	"time"
)

// grade is how good a server is, by its probes.
type grade int

const (
	silent   grade = iota // does not answer, or was not asked yet
	notReady              // answers that it cannot serve
	ready
)

func (g grade) String() string { return [...]string{"silent", "not ready", "ready"}[g] }

// ErrNotReady is returned by a Probe when the server answers, and says that it is not ready.
var ErrNotReady = errors.New("the server is not ready")

// backend is one server.
//
//	silent ◀──two probes without answer── ready ◀──a probe──▶ not ready
//
// and whatever a probe is answered, it is that at once.
type backend struct {
	addr     netip.AddrPort
	grade    grade
	since    time.Time // when grade began
	answered time.Time // when a probe was answered last
	doubted  time.Time // when the first of the failures was
	failures int       // probes without answer in a row
	links    map[*link]struct{}
	stop     context.CancelFunc
}

const (
	// silentAfter is how many probes in a row must stay without answer: one lost packet cuts nobody off.
	silentAfter = 2
	// idleFactor is how much more rarely a server is probed that nothing runs through, and maxBackoff bounds by how
	// much more one that has not answered for long.
	idleFactor = 5
	maxBackoff = 16
)

// learn takes what a probe said, and tells whether the grade is another one now. The balancer's mutex is held.
func (be *backend) learn(err error, now time.Time) bool {
	was := be.grade
	switch {
	case err == nil:
		be.grade, be.failures, be.answered = ready, 0, now
	case errors.Is(err, ErrNotReady):
		be.grade, be.failures, be.answered = notReady, 0, now
	default:
		if be.failures++; be.failures == 1 {
			be.doubted = now
		}
		if be.failures >= silentAfter {
			be.grade = silent
		}
	}
	if be.grade == was {
		return false
	}
	be.since = now
	return true
}

// cut ends what runs through the server. The balancer's mutex is held.
func (be *backend) cut() {
	for l := range be.links {
		l.client.Close()
	}
}

// pause is how long the next probe can wait. The balancer's mutex is held.
func (be *backend) pause(interval time.Duration) time.Duration {
	switch {
	case len(be.links) > 0, be.failures == 1, be.grade == notReady:
		return interval
	case be.grade == ready:
		return interval * idleFactor
	}
	return interval * time.Duration(min(max(1, be.failures), maxBackoff))
}

// probe asks one server until ctx ends.
func (b *Balancer) probe(ctx context.Context, be *backend) {
	for {
		b.mu.Lock()
		alarm := b.alarm
		b.mu.Unlock()
		began := time.Now()
		probeCtx, cancel := context.WithTimeout(ctx, b.config.Timeout)
		err := b.config.Probe(probeCtx, be.addr)
		cancel()
		if ctx.Err() != nil {
			return
		}
		now := time.Now()
		b.mu.Lock()
		changed, grade := be.learn(err, now), be.grade
		if err != nil && be.failures <= 1 && len(be.links) > 0 {
			// What runs through it needs another server soon, perhaps.
			b.probeAll()
			alarm = b.alarm
		}
		b.cutWorse(now)
		pause := be.pause(b.config.Interval)
		b.mu.Unlock()
		if changed {
			b.config.Logger.Info("API server changed", "server", be.addr, "is", grade, "reason", err)
		}
		if !b.await(ctx, alarm, pause, began) {
			return
		}
	}
}

// probeAll has all servers probed soon. The mutex is held.
func (b *Balancer) probeAll() {
	close(b.alarm)
	b.alarm = make(chan struct{})
}

// await waits until the pause since the last probe's begin is over, or for the alarm, which does not make probes more
// frequent than the interval. It returns false when ctx ended.
func (b *Balancer) await(ctx context.Context, alarm <-chan struct{}, pause time.Duration, probed time.Time) bool {
	timer := time.NewTimer(max(0, pause-time.Since(probed)))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	case <-alarm:
	}
	timer.Reset(max(0, b.config.Interval-time.Since(probed)))
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// cutWorse ends what runs through servers that are worse than another one: at once when they are silent, after the
// patience when they say that they are not ready. Where no server is better it ends nothing: one that was when it was last
// asked may have gone with this one, so it has to have answered since. The mutex is held.
func (b *Balancer) cutWorse(now time.Time) {
	for _, be := range b.backends {
		ill := be.since
		if be.grade == silent {
			ill = be.doubted
		} else if now.Sub(be.since) < b.config.Patience {
			continue
		}
		for _, other := range b.backends {
			if other.grade > be.grade && other.failures == 0 && other.answered.After(ill) {
				be.cut()
				break
			}
		}
	}
}
