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
	AppliedIndex uint64 `json:"appliedIndex"` // newest entry whose effects are visible
	Revision     uint64 `json:"revision"`
	Compacted    uint64 `json:"compacted"` // oldest revision that can be read
	StateHash    string `json:"stateHash"` // of the state at Revision; equal on all servers
	Keys         int    `json:"keys"`
	// StateBytes is what all items count, StateLimit how much they may (0: any), and Space how near
	// that is: "low" warns, "full" says that new keys are refused. They are the same on all servers
	// that are up to date.
	StateBytes int64  `json:"stateBytes"`
	StateLimit int64  `json:"stateLimit"`
	Space      string `json:"space,omitempty"`

	// Quarantined is why this server serves nothing any more: its state differs from that of most
	// servers. Empty when it serves.
	Quarantined string `json:"quarantined,omitempty"`
	// Compared is the newest revision at which this server, while it led, found that all members
	// have the same state. Undecided is what it found instead when no majority can tell which state
	// is right.
	Compared  uint64 `json:"compared,omitempty"`
	Undecided string `json:"undecided,omitempty"`

	// Health is how the members do, as this server sees it while it leads.
	Health []group.Health `json:"health,omitempty"`
	// LastContact is how long ago this server heard from the leader; 0 on the leader, negative
	// when it never has.
	LastContact time.Duration `json:"lastContact"`
	// DiskP50 and DiskP99 are how long the last writes to the log took, and DiskWrites how many
	// those are.
	DiskP50    time.Duration `json:"diskP50"`
	DiskP99    time.Duration `json:"diskP99"`
	DiskWrites int           `json:"diskWrites"`
	// DiskError is why the last write to the log failed, as when the disk is full, or that one
	// hangs; empty otherwise. Such a server is heard from, but does not follow; one whose write
	// hangs does not lead either, whatever its role says.
	DiskError string `json:"diskError,omitempty"`
	// DiskFull tells that the disk is full: the server runs on its reserve, and refuses, as a
	// leader, writes that need more room.
	DiskFull bool `json:"diskFull,omitempty"`
	// Start is what this server read when it was opened.
	Start disk.Start `json:"start"`
	// Warnings are what the program around the store wants the operator to know; see
	// Config.Warnings.
	Warnings []string `json:"warnings,omitempty"`
	// Changes are the last changes of leaders that this server saw since it was opened, newest
	// first.
	Changes []LeaderChange `json:"changes,omitempty"`
	// Foreign has, by address, the other clusters to which the servers belong that this one met
	// where it expected its own, while it is out of touch. A successor of its own cluster is none
	// of them: Superseded tells of it.
	Foreign map[string]string `json:"foreign,omitempty"`
	// Superseded tells that another cluster goes on in place of this server's, so that it stops.
	// Predecessors are the clusters in whose place this one goes on.
	Superseded   *group.Succession  `json:"superseded,omitempty"`
	Predecessors []group.Succession `json:"predecessors,omitempty"`
	// Detail is there when it was asked for; see PeerDetails.
	Detail *Detail `json:"detail,omitempty"`
}

// LeaderChange is one change of leaders, as one server saw it.
type LeaderChange struct {
	// At is when, by this server's clock, and Term the newest one that it knew then.
	At   time.Time `json:"at"`
	Term uint64    `json:"term"`
	// Leader is the ID of the server that leads from then on, empty when none is known, and Before
	// that of the one that led until then.
	Leader string `json:"leader,omitempty"`
	Before string `json:"before,omitempty"`
	// Why is what this server knows of the reason, for people. The server that lost the leadership
	// knows best, then the one that got it.
	Why string `json:"why,omitempty"`
}

// PeerStatus is what is known of one member: its own word, or why there is none.
type PeerStatus struct {
	Member group.Member `json:"member"`
	Status *Status      `json:"status,omitempty"`
	Error  string       `json:"error,omitempty"`
}
