package nodelifecycle

import "time"

// evidence is the evidence on a node's life at one moment.
type evidence struct {
	// life is Liveness' evidence; heardOf is false when it has never heard of the node.
	life    Life
	heardOf bool
	// silentSince is the time since which the node was not well, by this controller's clock. A node
	// that is heard again and does not answer yet is still in that time.
	silentSince time.Time
	// heard is when it was last heard, alive; zero when that was not in this term.
	heard time.Time
	// told is when the kubelet's last write was seen; zero without one.
	told time.Time
	// probed means that the node was probed, and answered is the result.
	probed, answered bool
	// marked says that the Ready condition is Unknown already, and tainted that the node has the
	// taint of unreachable ones.
	marked, tainted bool
	// illSince is since when it reports an illness by gossip and is ready in the API; zero
	// otherwise.
	illSince time.Time
}

// judgement has the changes for a node, by its life alone.
type judgement struct {
	// probe: probe the node, and judge again with the result. No other field is set then.
	probe bool
	// unreachable: it gets no new pods, and its unacknowledged pods are replaced.
	unreachable bool
	// unknown: its Ready condition becomes Unknown.
	unknown bool
	// ill: its Ready condition is to say False.
	ill bool
	// again is when it has to be looked at again at the latest.
	again time.Duration
}

// wordCounts is how long a kubelet counts as alive after a write. A kubelet that is marked
// unreachable writes every ten seconds.
const wordCounts = 15 * time.Second

// illPatience is how long a kubelet has to write the illness of its node itself.
const illPatience = 15 * time.Second

// recheck is the pause before a node is probed again that gossip hears and that does not answer
// yet.
const recheck = 500 * time.Millisecond

// judge weighs the evidence:
//
//	alive ──gossip loses it──▶ doubted ──it does not answer──▶ unreachable ──grace is over──▶ unknown
//	  ▲                           │                                │                            │
//	  └─────────it answers────────┴─heard of again, and it answers─┴──its kubelet writes again──┘
//
// A doubted node that answers keeps its state and is probed again at the next check. A kubelet that
// writes is alive, even if no server can reach it. A write postpones the end of the grace, and
// replaces the answer of a node that is heard again. A starting process is heard before its kubelet
// can take pods, so hearing it is not enough.
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

// judgeHealth judges a live node by its own report of an illness.
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
