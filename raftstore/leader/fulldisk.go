package leader

import (
	"context"
	"sync"
	"time"

	"github.com/barque/barque/raftstore/group"
)

// Handing leadership from a leader with a full disk to a server with free space.
const (
	// FullLook is the interval of looks for a transferee. StuckAfter is the time without one before
	// it is logged: a silent server may answer in a moment, and the log is shortened meanwhile.
	FullLook   = 500 * time.Millisecond
	StuckAfter = 5 * time.Second
	// maxHandOverLag is the largest number of entries that a transferee may be behind.
	maxHandOverLag = 1024
)

// leaveFullDisk hands leadership over when the disk of this server is full, and another voter's is
// not. It ends with the term.
func (l *Leadership) leaveFullDisk(ctx context.Context) {
	r := l.parts.Reserve
	r.Stuck.Store(false)
	wait := time.NewTimer(0) // the disk may be full when this server is elected
	defer wait.Stop()
	var since time.Time // of the begin of the search; zero without one
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
		// Once the lack of a transferee is logged, looks are not urgent, and slow servers get a
		// call's full timeout.
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

// withRoom asks the other voters that stay, and returns the first one that can lead and has free
// space on its disk.
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
			if err != nil || s.Quarantined != "" || s.DiskFull || s.DiskError != "" ||
				s.LastIndex+maxHandOverLag < last {
				return
			}
			found.Do(func() { to, ok = m, true })
			cancel() // one is enough
		})
	}
	asking.Wait()
	return to, ok
}
