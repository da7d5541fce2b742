package nodelifecycle

import "time"

// evidence is what is known of the life of one node at one moment.
type evidence struct {
	// life is what Liveness says; heardOf is false when it has never heard of the node.
	life    Life
	heardOf bool
	// silentSince is since when there was no sign of life by this controller's clock.
	silentSince time.Time
	// told is when the kubelet was last seen to write its conditions; zero when it was not.
	told time.Time
	// probed says whether the node itself has been asked, and answered what it did.
	probed, answered bool
	// marked says that the Ready condition is Unknown already.
	marked bool
}

// judgement says what to do about a node, by its life alone.
type judgement struct {
	// probe: ask the node itself, and judge again with its answer. Nothing else is set then.
	probe bool
	// unreachable: it gets no new pods, and those that it has not acknowledged are replaced.
	unreachable bool
	// unknown: its Ready condition is to say so.
	unknown bool
	// again is when it has to be looked at again at the latest.
	again time.Duration
}

// judge weighs the evidence:
//
//	alive ──nobody hears of it──▶ doubted ──it does not answer──▶ unreachable ──grace is over──▶ unknown
//	  ▲                              │                                │                            │
//	  └──────────────────────────────┴────────── heard of again ──────┴──────── its kubelet says so
//
// A node that answers in doubt stays what it is and is asked again at the next look. A kubelet that
// writes lives, whoever cannot reach it: that postpones the end of the grace.
func judge(e evidence, s Settings, now time.Time) judgement {
	j := judgement{again: s.Period}
	grace := s.Grace
	if !e.heardOf {
		grace = s.StartupGrace
	}
	silent := now.Sub(e.silentSince)
	if e.told.After(e.silentSince) {
		silent = now.Sub(e.told)
	}
	switch {
	case e.heardOf && e.life.State == Alive:
		return j
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
	if j.unknown = silent >= grace; !j.unknown {
		j.again = min(j.again, grace-silent)
	}
	return j
}
