package leader

import (
	"context"
	"sync"
	"time"

	"github.com/barque/barque/raftstore/group"
)

// When a leader whose disk is full hands leadership to a server that has room.
const (
	// FullLook is how often it looks for one. StuckAfter is how long it looks without a result
	// before the log says so: a silent server may answer in a moment, and the log is shortened
	// meanwhile.
	FullLook   = 500 * time.Millisecond
	StuckAfter = 5 * time.Second
	// maxHandOverLag is how many entries a server may be behind that is to lead at once.
	maxHandOverLag = 1024
)

// leaveFullDisk hands leadership over when the disk of this server is full, and another voter's is
// not. It ends with the term.
func (l *Leadership) leaveFullDisk(ctx context.Context) {
	r := l.parts.Reserve
	r.Stuck.Store(false)
	wait := time.NewTimer(0) // the disk may be full when this server is elected
	defer wait.Stop()
	var since time.Time // when the search began; zero when there is none
	for {
		select {
		case <-wait.C:
		case <-r.Filled:
		case <-ctx.Done():
			return
		}
		if !r.Full.Load() {
			since = time.Time{}
			r.Stuck.Store(false)
			continue
		}
		if since.IsZero() {
			since = time.Now()
		}
		// Once it is logged that no server has room, nothing depends on how soon a look ends, and
		// slow servers may take the time that a call has.
		limit, again := l.opts.Timeouts.Call, StuckAfter
		if !r.Stuck.Load() {
			limit, again = max(StuckAfter-time.Since(since), FullLook), FullLook
		}
		if to, ok := l.withRoom(ctx, limit); ok {
			since = time.Time{}
			r.Stuck.Store(false)
			l.passOn(ctx, to)
		} else {
			r.Stuck.Store(time.Since(since) >= StuckAfter)
		}
		wait.Reset(again)
	}
}

func (l *Leadership) passOn(ctx context.Context, to group.Member) {
	const reason = "its disk is full"
	l.opts.Logger.Warn("this server hands leadership over", "to", to.ID, "reason", reason)
	ctx, cancel := context.WithTimeout(ctx, l.transferTime())
	defer cancel()
	if err := l.Transfer(ctx, to, reason); err != nil {
		l.opts.Logger.Warn("cannot hand leadership over", "to", to.ID, "err", err)
		return
	}
	l.opts.Stats.HandOvers.Inc()
}

// withRoom asks the other voters that are to stay, and returns the first to answer that can lead
// and has room on its disk.
func (l *Leadership) withRoom(ctx context.Context, limit time.Duration) (to group.Member, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var found sync.Once
	var asking sync.WaitGroup
	last, decisions := l.parts.Raft.LastIndex(), group.Decisions(l.server.State().Latest())
	for _, m := range l.server.Members() {
		if m.Self || !m.Voter || decisions[m.ID].State != group.Regular {
			continue
		}
		asking.Go(func() {
			s, err := l.parts.Survey.Ask(ctx, m)
			if err != nil || s.Quarantined != "" || s.DiskFull || s.DiskError != "" || s.LastIndex+maxHandOverLag < last {
				return
			}
			found.Do(func() { to, ok = m, true })
			cancel() // one is enough
		})
	}
	asking.Wait()
	return to, ok
}
