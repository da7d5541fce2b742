package node

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/barque/barque/raftstore/steward"
)

// When a leader hands its office to another server because of its disk.
const (
	// diskLook is how often a leader looks at its disk, and diskWindow how far back.
	diskLook   = 5 * time.Second
	diskWindow = 30 * time.Second
	// fullLook is how often it looks while its disk is full, and stuckAfter for how long it looks in vain until that is
	// said to be of no use: a server that does not answer may do so in a moment, and the log is shortened meanwhile.
	fullLook   = 500 * time.Millisecond
	stuckAfter = 5 * time.Second
	// diskLooks is how many looks in a row must come to the same end.
	diskLooks = 3
	// diskSamples is how many writes of each server the comparison needs.
	diskSamples = 20
	// slowMedian and slowTail are what a disk must take at least, for half of its writes or for one in a hundred,
	// to be called slow, and slowTimes how many times as long as that of another server.
	slowMedian = 25 * time.Millisecond
	slowTail   = 250 * time.Millisecond
	slowTimes  = 4
	// restAfter is how long a server leads before it thinks of handing over, so that two servers never
	// play ball with the office.
	restAfter = time.Minute
)

// DiskSpeed is how long the writes of the last half minute to the log took.
type DiskSpeed struct {
	Writes int           `json:"writes"` // at most 256
	P50    time.Duration `json:"p50"`
	P99    time.Duration `json:"p99"`
}

// diskView is what a leader knows of a server's disk.
type diskView struct {
	member Member
	speed  DiskSpeed
	full   bool
	err    bool   // the last write failed, or hangs
	lag    uint64 // entries that it has not got yet
}

// handover is where leadership should be instead of here, and why.
type handover struct {
	to     diskView
	reason string // empty: stay
}

// judgeDisk decides whether another server should lead. Only a disk that is clearly the slow one counts: where
// all are slow alike, as on a machine that is short of CPU, leadership stays where it is.
func judgeDisk(own diskView, others []diskView) handover {
	var best handover
	for _, o := range others {
		if o.full || o.err || o.lag > maxHandOverLag {
			continue
		}
		reason := ""
		switch {
		case own.full:
			reason = "its disk is full"
		case own.speed.Writes < diskSamples || o.speed.Writes < diskSamples:
		case own.speed.P50 >= slowMedian && own.speed.P50 >= slowTimes*o.speed.P50:
			reason = fmt.Sprintf("its disk is slow: half of its writes take %s or more, and %s on %s", own.speed.P50, o.speed.P50, o.member.Name)
		case own.speed.P99 >= slowTail && own.speed.P99 >= slowTimes*o.speed.P99:
			reason = fmt.Sprintf("its disk is slow now and then: one write in a hundred takes %s or more, and %s on %s", own.speed.P99, o.speed.P99, o.member.Name)
		}
		if reason != "" && (best.reason == "" || o.speed.P50 < best.to.speed.P50) {
			best = handover{to: o, reason: reason}
		}
	}
	return best
}

// maxHandOverLag is how many entries a server may be behind that is to lead at once.
const maxHandOverLag = 1024

// suspicious tells whether the others are asked at all: a healthy leader asks nobody.
func (d *diskView) suspicious() bool {
	return d.full || d.speed.Writes >= diskSamples && (d.speed.P50 >= slowMedian || d.speed.P99 >= slowTail)
}

// watchOwnDisk hands leadership over when this server's disk is the slow one, or is full, and another voter's
// is not. A disk that has become full is looked at at once. It ends with the tenure.
func (n *Node) watchOwnDisk(ctx context.Context) {
	began, looks := time.Now(), 0
	var search search
	n.storage.reserve.stuck.Store(false)
	wait := time.NewTimer(diskLook)
	defer wait.Stop()
	if n.ownDisk().full { // it was when this server was elected
		wait.Reset(0)
	}
	for {
		select {
		case <-wait.C:
		case <-n.storage.reserve.filled:
		case <-ctx.Done():
			return
		}
		own, v := n.ownDisk(), handover{}
		if search.begin(own.full, time.Now()); own.suspicious() {
			v = judgeDisk(own, n.lookAround(ctx, own, &search))
		}
		stuck := search.end(v.reason != "", time.Now())
		n.storage.reserve.stuck.Store(stuck)
		if wait.Reset(diskLook); own.full && !stuck {
			wait.Reset(fullLook)
		}
		if v.reason == "" {
			looks = 0
			continue
		}
		looks++
		if !own.full && (looks < diskLooks || time.Since(began) < restAfter) {
			continue
		}
		looks = 0
		n.passOn(ctx, v)
	}
}

// search is the search for a server that can lead in place of this one, whose disk is full.
type search struct {
	since time.Time // when it began; zero while the disk is not full, and once somebody was found
	stuck bool      // whether it was said that nobody was found
}

// begin begins a search, or goes on with one, while the disk is full.
func (s *search) begin(full bool, now time.Time) {
	switch {
	case !full:
		s.since = time.Time{}
	case s.since.IsZero():
		s.since = now
	}
}

// end tells, after a look, whether nobody was found for so long that it is said.
func (s *search) end(found bool, now time.Time) (stuck bool) {
	if found {
		s.since = time.Time{}
	}
	s.stuck = !s.since.IsZero() && now.Sub(s.since) >= stuckAfter
	return s.stuck
}

// patience is how long a look may take: until the search is said to be in vain, but long enough for an answer. Once it is
// said nothing depends on how soon a look ends, and who is slow to answer has all the time that a call has.
func (s *search) patience(now time.Time, call time.Duration) time.Duration {
	if s.stuck {
		return call
	}
	return max(stuckAfter-now.Sub(s.since), fullLook)
}

// lookAround asks the others for their disks. When this one is full the first that can lead is enough, and those that do
// not answer do not delay that it is said when nobody has room.
func (n *Node) lookAround(ctx context.Context, own diskView, s *search) []diskView {
	if !own.full {
		return n.otherDisks(ctx, func(diskView) bool { return false })
	}
	ctx, cancel := context.WithTimeout(ctx, s.patience(time.Now(), n.cfg.Timeouts.Call))
	defer cancel()
	return n.otherDisks(ctx, func(v diskView) bool { return judgeDisk(own, []diskView{v}).reason != "" })
}

func (n *Node) passOn(ctx context.Context, v handover) {
	n.cfg.Logger.Warn("this server hands leadership over", "to", v.to.member.ID, "reason", v.reason)
	ctx, cancel := context.WithTimeout(ctx, n.transferTime())
	defer cancel()
	if err := n.transfer(ctx, v.to.member, v.reason); err != nil {
		n.cfg.Logger.Warn("cannot hand leadership over", "to", v.to.member.ID, "err", err)
		return
	}
	n.stats.handOvers.Inc()
}

func (n *Node) ownDisk() diskView {
	return diskView{speed: n.diskSpeed(), full: n.storage.reserve.exhausted()}
}

func (n *Node) diskSpeed() (s DiskSpeed) {
	s.P50, s.P99, s.Writes = n.storage.log.Latency(time.Now().Add(-diskWindow))
	return s
}

// otherDisks asks the other voters that are to stay. Those that do not answer are left out, and so are those that have not
// answered when one of the answers is enough.
func (n *Node) otherDisks(ctx context.Context, enough func(diskView) bool) []diskView {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var mu sync.Mutex
	var views []diskView
	var asking sync.WaitGroup
	last, roster := n.raft.LastIndex(), n.roster()
	for _, m := range n.Members() {
		if m.Self || !m.Voter || roster[m.ID].State != steward.Regular {
			continue
		}
		asking.Go(func() {
			status, err := n.ask(ctx, m)
			if err != nil || status.Quarantined != "" {
				return
			}
			view := diskView{
				member: m, speed: status.Disk, full: status.DiskFull, err: status.DiskError != "",
				lag: last - min(last, status.LastIndex),
			}
			mu.Lock()
			defer mu.Unlock()
			if views = append(views, view); enough(view) {
				cancel()
			}
		})
	}
	asking.Wait()
	return views
}
