package balancer

import (
	"context"
	"sync"
	"time"
)

// watch asks one server again and again, until ctx ends.
func (b *Balancer) watch(ctx context.Context, be *backend) {
	var probes sync.WaitGroup
	defer probes.Wait() // they have ended with ctx
	lane := 0
	for {
		began := time.Now()
		b.mu.Lock()
		be.urgent = false
		select {
		case <-be.anew: // this question is
		default:
		}
		b.mu.Unlock()
		err := b.ask(ctx, &probes, be.addr, lane, be.anew, func() { b.doubt(be) })
		if ctx.Err() != nil {
			return
		}
		b.mu.Lock()
		changed, grade := b.learn(be, err), be.grade
		b.reach(ctx, &probes, be)
		if lane = 1 - lane; len(be.links) == 0 {
			lane = 0 // the other connection is opened when it is needed, and closes when it is not
		}
		b.mu.Unlock()
		if changed {
			b.config.Logger.Info("API server changed", "server", be.addr, "is", grade, "reason", err)
		}
		if !b.await(ctx, be, began) {
			return
		}
	}
}

// reach finds out whether the machine of a silent server in use accepts connections for it. It is
// not needed while the other machines have not lost the server. The caller holds the mutex.
func (b *Balancer) reach(ctx context.Context, probes *sync.WaitGroup, be *backend) {
	if be.grade > silent || len(be.links) == 0 || !b.config.Lost(be.addr) {
		be.dialed, be.reached, be.refused = time.Time{}, time.Time{}, false
		return
	}
	began := time.Now()
	if be.dialing || began.Sub(be.dialed) < reachEvery {
		return
	}
	be.dialing, be.dialed = true, began
	probes.Go(func() { // ends with ctx
		dialCtx, cancel := context.WithTimeout(ctx, dialTimeout)
		defer cancel()
		conn, err := b.config.Dial(dialCtx, "tcp", be.addr.String())
		if err == nil {
			conn.Close()
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		be.dialing = false
		if !be.dialed.Equal(began) || ctx.Err() != nil {
			return // it is of no meaning any more
		}
		if be.refused = err != nil; !be.refused {
			be.reached = time.Now()
		}
		b.cutWorse(time.Now())
	})
}

// doubt notes that a question to the server is unanswered so far, and that another probe begins.
func (b *Balancer) doubt(be *backend) {
	b.mu.Lock()
	defer b.mu.Unlock()
	be.tried = time.Now()
	if be.doubted.IsZero() {
		be.doubted = be.tried
	}
	b.hurry(be)
}

// hurry probes the others while a server in use is in doubt, because its connections may soon need
// them. Silent servers are skipped: if all are slow, more probes make them slower. The caller holds
// the mutex.
func (b *Balancer) hurry(be *backend) {
	if len(be.links) == 0 || be.doubted.IsZero() || !be.outdone.IsZero() {
		return
	}
	for _, other := range b.backends {
		if other != be && other.grade > silent {
			other.urgent = true
			other.wake()
		}
	}
}

// use records a connection through the server. It returns false if the server is no longer known.
func (b *Balancer) use(be *backend, l *link) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.backends[be.addr] != be {
		return false
	}
	if be.links[l] = struct{}{}; len(be.links) == 1 {
		be.wake() // it was asked rarely
		b.hurry(be)
	}
	return true
}

// learn stores a probe's result, and cuts the connections that have a better server. The caller
// holds the mutex.
func (b *Balancer) learn(be *backend, err error) bool {
	now := time.Now()
	changed := be.learn(err, now)
	if isAnswer(err) {
		for _, other := range b.backends {
			if other != be && !other.doubted.IsZero() && other.outdone.IsZero() {
				other.outdone = now
				select {
				case other.anew <- struct{}{}:
				default: // its signal is pending already
				}
			}
		}
	}
	b.cutWorse(now)
	return changed
}

// cutWorse cuts the connections that have a better server. The caller holds the mutex.
func (b *Balancer) cutWorse(now time.Time) {
	for _, one := range b.backends {
		if len(one.links) == 0 || now.Sub(one.since) < b.patienceWith(one) {
			continue
		}
		for _, other := range b.backends {
			if one.worseThan(other) {
				b.config.Logger.Info("connections are cut: another API server is better", "server", one.addr, "is",
					one.grade, "connections", len(one.links), "other", other.addr)
				one.cut()
				break
			}
		}
	}
}

// patienceWith returns how long a server may have its grade before its connections are cut.
func (b *Balancer) patienceWith(be *backend) time.Duration {
	if be.grade == silent && (!b.config.Lost(be.addr) || !be.isCutOff(time.Now())) {
		return b.config.Requests
	}
	return b.config.Patience
}

// await waits until the next question is due, and returns false when ctx ended.
func (b *Balancer) await(ctx context.Context, be *backend, began time.Time) bool {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		b.mu.Lock()
		pause := be.pause(b.config.Interval)
		b.mu.Unlock()
		timer.Reset(max(0, pause-time.Since(began)))
		select {
		case <-ctx.Done():
			return false
		case <-timer.C:
			return true
		case <-be.woken:
		}
	}
}
