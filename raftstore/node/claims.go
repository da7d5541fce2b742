package node

import (
	"slices"
	"time"
)

// claim is somebody's word that the cluster of this server was recovered.
type claim struct {
	Succession
	from  string    // address
	heard time.Time // with the clock that nobody sets
	ago   ago       // then
}

// trial is what is known so far of a claim: of one recovery, whoever tells of it. It belongs to judgeClaims.
type trial struct {
	claim // as it was heard last
	heard []claim
	due   bool // heard, and not judged since
	open  bool // it is to be judged again by itself
	holds bool // this server holds back for it

	doubts int // one after the other
	// How often in a row it was found that the cluster had lost its quorum, and since when.
	out      int
	outSince time.Time
}

const (
	// trialsKept is how many claims are kept. There is one for each time that somebody recovered a server of this cluster.
	trialsKept = 4
	// hearingsKept is more than one hears of a claim in the time for which that counts.
	hearingsKept = 64
	// doubtsOfLeader is after how many doubts a server that leads holds back: others may just be slow to answer.
	doubtsOfLeader = 3
	// It must be found so often in a row, and for so long, that a cluster had lost its quorum: a server that knows better may have
	// missed a question, or be about to start.
	outlivedTimes = 4
	outlivedAfter = 10 * time.Second
)

// hear takes down that a claim was heard once more.
func (t *trial) hear(c claim) {
	t.claim, t.due = c, true
	t.heard = append(t.heard, c)
	t.heard = slices.Delete(t.heard, 0, max(0, len(t.heard)-hearingsKept))
	t.heard = slices.DeleteFunc(t.heard, func(h claim) bool { return c.heard.Sub(h.heard) > sayingHolds })
}

// when is how long ago the recovery was, by what was heard of late: of one from several servers, or from one whose clock was set
// meanwhile, that it may have been at different times.
func (t *trial) when(now time.Time) ago {
	all := ago{Least: longAgo}
	for _, h := range t.heard {
		since := now.Sub(h.heard)
		all.Least, all.Most = min(all.Least, h.ago.Least+since), max(all.Most, h.ago.Most+since)
	}
	return all
}

// weigh takes what was found now together with what was found before, and tells what follows.
func (t *trial) weigh(found judgement, leads bool, now time.Time) judgement {
	t.due = false
	lost := found == isOutlived // for certain, if nobody turns out to know better
	if !lost {
		t.out = 0
	} else {
		if t.out == 0 {
			t.outSince = now
		}
		if t.out++; t.out >= outlivedTimes && now.Sub(t.outSince) >= outlivedAfter {
			return isOutlived
		}
		found = inDoubt
	}
	t.open = found == inDoubt || found == notYet
	if found != inDoubt {
		t.doubts, t.holds = 0, false
		return found
	}
	if t.doubts++; lost || !leads || t.doubts >= doubtsOfLeader { // what a leader took meanwhile would be lost with its cluster
		t.holds = true
	}
	return found
}

// docket has the claims that a server was told of, the one that was heard last at the end. It belongs to judgeClaims.
type docket struct{ trials []*trial }

// hear takes down a claim, instead of the one that was heard least lately when there are too many.
func (d *docket) hear(c claim) {
	i := slices.IndexFunc(d.trials, func(t *trial) bool { return t.recovery() == c.recovery() })
	t := new(trial)
	if i >= 0 {
		t = d.trials[i]
		d.trials = slices.Delete(d.trials, i, i+1)
	}
	t.hear(c)
	d.trials = append(d.trials, t)
	d.trials = slices.Delete(d.trials, 0, max(0, len(d.trials)-trialsKept))
}

// open tells whether one is to be judged again by itself.
func (d *docket) open() bool {
	return slices.ContainsFunc(d.trials, func(t *trial) bool { return t.open })
}

// holder returns a claim for which this server holds back; nil when there is none.
func (d *docket) holder() *trial {
	if i := slices.IndexFunc(d.trials, func(t *trial) bool { return t.holds }); i >= 0 {
		return d.trials[i]
	}
	return nil
}
