package leader

import (
	"context"
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/logstore"
)

// ErrDiskHangs is for requests that were not proposed.
var ErrDiskHangs = fmt.Errorf("%w: %w", kv.ErrUnavailable, logstore.ErrHangs)

// MayLead returns an ErrUnavailable while this server does not lead, whatever Raft reports.
func (l *Leadership) MayLead() error {
	if l.parts.Disk.Check() != nil {
		return ErrDiskHangs
	}
	return nil
}

// Follow handles Raft's notifications, and those of the disk, until Raft has stopped. Raft blocks
// until each is taken, so Follow never blocks. Terms end with ctx at the latest.
func (l *Leadership) Follow(ctx context.Context, stopped <-chan struct{}) {
	hung := false
	for {
		select {
		case elected := <-l.notify:
			if elected {
				l.begin(ctx)
			} else {
				l.Depose(l.whyDeposed())
			}
		case <-l.parts.Disk.Changed():
			hung = l.followDisk(ctx, hung)
		case <-stopped:
			return
		}
	}
}

// begin begins a term if Raft has this server for the leader and nothing prevents it. Raft may have
// elected the only voter, or may not have stepped down yet, while the server could not lead. Only
// Follow calls it, and sees the end after this.
func (l *Leadership) begin(ctx context.Context) {
	if l.parts.Raft.State() == raft.Leader && l.MayLead() == nil {
		l.elected(ctx)
	}
}

// followDisk ends leadership when the disk begins to hang. It resumes leadership when the disk is
// healthy and no other server was elected. told is whether the hang was logged; it returns the new
// value.
func (l *Leadership) followDisk(ctx context.Context, told bool) bool {
	if err := l.parts.Disk.Check(); err != nil {
		if !told {
			l.opts.Logger.Error(
				"the disk hangs: this server neither leads nor campaigns until the write to the log is done; "+
					"look for the cause in the kernel's log and at the volume below the directory, and stop this server if it lasts",
				"dir", l.opts.Dir, "limit", l.opts.Timeouts.DiskWrite, "err", err)
			if l.parts.Raft.State() == raft.Leader {
				l.parts.Elections.Disk()
			}
		}
		l.Depose(logstore.ErrHangs)
		return true
	}
	if told {
		l.opts.Logger.Warn("the disk writes again: this server takes part as before", "dir", l.opts.Dir)
	}
	l.begin(ctx)
	return false
}

// whyDeposed returns why Raft has just ended the leadership of this server.
func (l *Leadership) whyDeposed() error {
	transferee := l.transferee.Swap(nil)
	switch now := l.parts.Raft.CurrentTerm(); {
	case transferee != nil:
		return &endedError{"it has handed over to " + *transferee}
	case now > l.Term():
		return &endedError{fmt.Sprintf("another server campaigns, or leads, in term %d", now)}
	}
	if m, ok := group.Find(l.server.Members(), l.opts.ID); !ok || !m.Voter {
		return &endedError{"it has no vote any more"}
	}
	return &endedError{
		fmt.Sprintf("too few servers have answered it for %s: it may be cut off",
			l.opts.Timeouts.Lease.Round(time.Millisecond))}
}

// firstEntryAgain is how long a server waits that could not bring its first entry through the log.
const firstEntryAgain = 10 * time.Millisecond

// serve commits an empty entry. When it is applied, all entries committed in earlier terms are,
// too. The entry also has the term in which it was committed. Then the work begins.
//
// A server in quarantine does no work: it is elected only to hand leadership on.
func (l *Leadership) serve(t *term) {
	l.running.Go(func() { l.parts.Work.Elected(t.ctx) })
	for t.ctx.Err() == nil && l.server.MayServe() == nil {
		number, err := l.server.FirstEntry()
		if err == nil {
			l.leading(t, number)
			l.parts.Elections.Leads(number)
			for _, work := range l.parts.Work.Leading {
				l.running.Go(func() { work(t.ctx, number) })
			}
			l.running.Go(func() { l.leaveFullDisk(t.ctx) })
			return
		}
		l.opts.Logger.Debug("this server is elected and cannot lead yet", "err", err)
		select {
		case <-t.ctx.Done():
		case <-time.After(firstEntryAgain):
		}
	}
}
