package status

import (
	"time"

	"github.com/barque/barque/raftstore/disk"
	"github.com/barque/barque/raftstore/group"
)

// Status is how one server sees itself.
type Status struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	ClusterID string `json:"clusterID"`
	Address   string `json:"address"`
	Version   string `json:"version"`
	// Role is "leader", "follower", "candidate" or "nonvoter".
	Role     string `json:"role"`
	Term     uint64 `json:"term"`
	LeaderID string `json:"leaderID"`

	LastIndex    uint64 `json:"lastIndex"`    // newest entry in the log
	CommitIndex  uint64 `json:"commitIndex"`  // newest entry known to be on a quorum
	AppliedIndex uint64 `json:"appliedIndex"` // newest entry with visible effects
	Revision     uint64 `json:"revision"`
	Compacted    uint64 `json:"compacted"` // oldest revision that can be read
	StateHash    string `json:"stateHash"` // of the state at Revision; equal on all servers
	Keys         int    `json:"keys"`
	// StateBytes is the size of all items, StateLimit the limit (0: none), and Space the level:
	// "low" warns, "full" refuses new keys. They are the same on all servers that are up to date.
	StateBytes int64  `json:"stateBytes"`
	StateLimit int64  `json:"stateLimit"`
	Space      string `json:"space,omitempty"`

	// Quarantined is why this server serves nothing any more: its state differs from that of most
	// servers. Empty when it serves.
	Quarantined string `json:"quarantined,omitempty"`
	// Compared is the newest revision at which this server, as the leader, found the same state on
	// all members. Undecided is the finding if no majority shows which state is right.
	Compared  uint64 `json:"compared,omitempty"`
	Undecided string `json:"undecided,omitempty"`

	// Health is how the members do, as this server sees it while it leads.
	Health []group.Health `json:"health,omitempty"`
	// LastContact is the time since the last message from the leader; 0 on the leader, negative
	// without any.
	LastContact time.Duration `json:"lastContact"`
	// DiskP50 and DiskP99 are the durations of the last writes to the log, and DiskWrites their
	// number.
	DiskP50    time.Duration `json:"diskP50"`
	DiskP99    time.Duration `json:"diskP99"`
	DiskWrites int           `json:"diskWrites"`
	// SchedulingDelay is how late this process was scheduled lately, and Extension by how much it
	// extends time-outs for that.
	SchedulingDelay time.Duration `json:"schedulingDelay,omitempty"`
	Extension       time.Duration `json:"extension,omitempty"`
	// DiskError is why the last write to the log failed, as on a full disk, or that one hangs;
	// empty otherwise. Such a server answers, but does not follow; one with a hanging write does
	// not lead either, whatever its role.
	DiskError string `json:"diskError,omitempty"`
	// DiskFull is set if the disk is full: the server runs on its reserve, and, as a leader,
	// refuses writes that need more space.
	DiskFull bool `json:"diskFull,omitempty"`
	// Start describes the data that this server read when it was opened.
	Start disk.Start `json:"start"`
	// Warnings are those of the program around the store; see Config.Warnings.
	Warnings []string `json:"warnings,omitempty"`
	// Changes are the last changes of leaders that this server saw since it was opened, newest
	// first.
	Changes []LeaderChange `json:"changes,omitempty"`
	// Foreign has, by address, the IDs of other clusters whose servers answered in place of this
	// cluster's, while this server is out of touch. A successor of its own cluster is in Superseded
	// instead.
	Foreign map[string]string `json:"foreign,omitempty"`
	// Superseded is set if this server's cluster has a successor, so that it stops. Predecessors
	// are the clusters that this one replaces.
	Superseded   *group.Succession  `json:"superseded,omitempty"`
	Predecessors []group.Succession `json:"predecessors,omitempty"`
	// Detail is there when it was asked for; see PeerDetails.
	Detail *Detail `json:"detail,omitempty"`
}

// LeaderChange is one change of leaders, as one server saw it.
type LeaderChange struct {
	// At is the time by this server's clock, and Term the newest term that it knew then.
	At   time.Time `json:"at"`
	Term uint64    `json:"term"`
	// Leader is the ID of the server that leads from then on, empty if unknown. Before is that of
	// the former leader.
	Leader string `json:"leader,omitempty"`
	Before string `json:"before,omitempty"`
	// Why is the reason in this server's view, for people. The server that lost the leadership
	// knows best, then the one that got it.
	Why string `json:"why,omitempty"`
	// Gap is the time from the last sign of the former leader to the first of the new one, in this
	// server's view. No write was accepted for at most that long. It is 0 if unknown, and where no
	// leader is known yet.
	Gap time.Duration `json:"gap,omitempty"`
}

// PeerStatus is one member's own status, or why there is none.
type PeerStatus struct {
	Member group.Member `json:"member"`
	Status *Status      `json:"status,omitempty"`
	Error  string       `json:"error,omitempty"`
}
