package nodelifecycle

import "time"

// evidence is what is known of the life of one node at one moment.
type evidence struct {
	// life is what Liveness says; heardOf is false when it has never heard of the node.
	life    Life
	heardOf bool
	// silentSince is since when the node was not known to be well, by this controller's clock: one
	// that is heard of again, and does not answer yet, is in it still.
	silentSince time.Time
	// heard is until when it was last heard of, alive; zero when that was not in this term.
	heard time.Time
	// told is when the kubelet was last seen to write its conditions; zero when it was not.
	told time.Time
	// probed says whether the node itself has been asked, and answered what it did.
	probed, answered bool
	// marked says that the Ready condition is Unknown already, and tainted that the node has the
	// taint of unreachable ones.
	marked, tainted bool
	// illSince is since when it says by gossip that it is ill and is called ready by the API; zero
	// when it does not, or is not.
	illSince time.Time
}

// judgement says what to do about a node, by its life alone.
type judgement struct {
	// probe: ask the node itself, and judge again with its answer. Nothing else is set then.
	probe bool
	// unreachable: it gets no new pods, and those that it has not acknowledged are replaced.
	unreachable bool
	// unknown: its Ready condition is to say so.
	unknown bool
	// ill: its Ready condition is to say False.
	ill bool
	// again is when it has to be looked at again at the latest.
	again time.Duration
}

// wordCounts is how long a kubelet lives for the API by what it wrote. One that is called
// unreachable writes every ten seconds.
const wordCounts = 15 * time.Second

// illPatience is how long a kubelet is given to write itself that its node is ill.
const illPatience = 15 * time.Second

// recheck is how soon a node is asked again that is heard of, and does not answer yet.
const recheck = 500 * time.Millisecond

// judge weighs the evidence:
//
//	alive ──nobody hears of it──▶ doubted ──it does not answer──▶ unreachable ──grace is over──▶ unknown
//	  ▲                              │                                │                            │
//	  └──────────it answers──────────┴─heard of again, and it answers─┴──── its kubelet says so ───┘
//
// A node that answers in doubt stays what it is and is asked again at the next look. A kubelet that
// writes lives, whoever cannot reach it: that postpones the end of the grace, and does instead of
// an answer for a node that is heard of again. A process that starts is heard of before its kubelet
// can take pods, which is why being heard of does not suffice.
func judge(e evidence, s Settings, now time.Time) judgement {
	j := judgement{again: s.Period}
	grace := graceFor(e, s)
	silent, told := now.Sub(e.silentSince), e.told.After(e.silentSince)
	if e.heard.After(e.silentSince) { // two silences with a sign of life between them are no long one
		silent = now.Sub(e.heard)
	}
	if told {
		silent, grace = min(silent, now.Sub(e.told)), max(grace, wordCounts)
	}
	alive := e.heardOf && e.life.State == Alive
	switch {
	case alive && (!e.tainted || e.marked || told):
		return judgeHealth(j, e, now)
	case e.marked: // taken back by its kubelet alone
		j.unreachable = true
		return j
	case !e.heardOf && silent < grace: // new: it is not missed before it could be here
		j.again = min(j.again, grace-silent)
		return j
	case !e.probed:
		return judgement{probe: true}
	case e.answered:
		return j
	}
	j.unreachable = true
	if alive {
		j.again = min(j.again, recheck)
		return j
	}
	if j.unknown = silent >= grace; !j.unknown {
		j.again = min(j.again, grace-silent)
	}
	return j
}

// judgeHealth judges a node of which nothing is wrong but what it says itself.
func judgeHealth(j judgement, e evidence, now time.Time) judgement {
	if e.illSince.IsZero() {
		return j
	}
	if left := illPatience - now.Sub(e.illSince); left > 0 {
		j.again = min(j.again, left)
	} else {
		j.ill = true
	}
	return j
}

// graceFor is how long a node may be silent.
func graceFor(e evidence, s Settings) time.Duration {
	switch {
	case !e.heardOf:
		return s.StartupGrace
	case e.life.State == Left:
		return s.GoodbyeGrace
	}
	return s.Grace
}
