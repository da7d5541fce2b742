// Package upgrade brings all nodes of a cluster to another version, one server after the other, and
// then the agents by groups; on the way down the agents go first.
//
// The order and the progress are an object of the API, an Upgrade. Who creates one begins an
// upgrade; `barque upgrade` does that after it has brought the release to a server. The leader
// makes the steps (Leader), in its term: each is decided purely (Decide) by the object and by what
// the nodes answer, then written, and only then made. So any leader goes on after any crash.
//
//	         all programs are there        all nodes are done
//	Preparing ───────────────────▶ Running ─────────────────▶ Complete, or Incomplete
//	    │ refused              ▲      │  │
//	    ▼                      │      │  └─ a gate has failed, the node is back ──▶ Failed
//	  Failed            Paused ◀──────┘ pauseAfter, paused
//
// and of a node:
//
//	Waiting ─▶ Prepared ─▶ Restarting ─▶ Checking ─▶ Confirming ─▶ Done
//	              │             │           │ a gate fails
//	              ▼             ▼           ▼
//	           Skipped    TakenBack ◀─ TakingBack          (Lost: it does not answer any more)
//
// At any time at most one server, or one group of agents, is between Prepared and Done. The next
// one begins when all voters answer at the leader's revision. A node whose program is not confirmed
// goes back to the one before by itself (package versions), also without a leader.
package upgrade
