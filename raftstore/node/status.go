package node

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/steward"
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
	// have the same state, and Undecided what it found instead when no majority can tell who is
	// right.
	Compared  uint64 `json:"compared,omitempty"`
	Undecided string `json:"undecided,omitempty"`

	// Health is how the members do, as this server sees it while it leads.
	Health []steward.Health `json:"health,omitempty"`
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
	Start Start `json:"start"`
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
	Superseded   *Succession  `json:"superseded,omitempty"`
	Predecessors []Succession `json:"predecessors,omitempty"`
	// Detail is there when it was asked for; see PeerDetails.
	Detail *Detail `json:"detail,omitempty"`
}

// Status returns how this server sees itself.
func (n *Node) Status() Status {
	view := n.state.Latest()
	_, leader := n.leaderWithID()
	s := Status{
		ID: n.id.ServerID, Name: n.cfg.Name, ClusterID: n.id.ClusterID,
		Address: n.cfg.Stream.Addr(), Version: n.cfg.Version,
		Role: strings.ToLower(n.raft.State().String()), Term: n.raft.CurrentTerm(), LeaderID: string(leader),
		LastIndex: n.raft.LastIndex(), CommitIndex: n.raft.CommitIndex(), AppliedIndex: n.fsm.Applied().Index,
		Revision: view.Revision(), Compacted: n.state.Compacted(), StateHash: fmt.Sprintf("%016x", view.Hash()),
		Keys: view.Len(), StateBytes: view.Bytes(),
	}
	space, _, limit := n.measureSpace()
	s.StateLimit, s.Space = limit, space.String()
	if m, ok := n.member(s.ID); s.Role == "follower" && (!ok || !m.Voter) {
		s.Role = "nonvoter"
	}
	if n.raft.State() != raft.Leader {
		s.LastContact = -1
		if last := n.raft.LastContact(); !last.IsZero() {
			s.LastContact = time.Since(last)
		}
	}
	s.Quarantined, s.Compared, s.Undecided = n.quarantine.why(), n.compared.revision.Load(), n.compared.undecided()
	if health := n.health.Load(); health != nil {
		s.Health = *health
	}
	s.DiskP50, s.DiskP99, s.DiskWrites = n.storage.log.Latency()
	s.Start, s.DiskFull = n.storage.start, n.storage.reserve.exhausted()
	s.Superseded, s.Predecessors = n.superseded.Load(), predecessors(view)
	s.Changes, s.Foreign = n.leaders.newest(), n.foreign.clusters()
	if n.cfg.Warnings != nil {
		s.Warnings = n.cfg.Warnings()
	}
	if err := n.storage.log.Err(); err != nil {
		s.DiskError = err.Error()
	}
	return s
}

// PeerStatus is what is known of one member: its own word, or why there is none.
type PeerStatus struct {
	Member Member  `json:"member"`
	Status *Status `json:"status,omitempty"`
	Error  string  `json:"error,omitempty"`
}

// PeerStatus asks all members for their status, all at once, each for a limited time.
func (n *Node) PeerStatus(ctx context.Context) []PeerStatus {
	return n.askAll(ctx, statusQuestion{})
}

func (n *Node) askAll(ctx context.Context, q statusQuestion) []PeerStatus {
	members := n.Members()
	statuses := make([]PeerStatus, len(members))
	var asking sync.WaitGroup
	for i, m := range members {
		asking.Go(func() {
			statuses[i].Member = m
			status, err := n.askFor(ctx, m, q)
			if err == nil && status.ID != m.ID {
				err = fmt.Errorf("server %q answers at the address %s", status.ID, m.Address)
			}
			if err != nil {
				statuses[i].Error = err.Error()
				return
			}
			statuses[i].Status = status
		})
	}
	asking.Wait()
	return statuses
}

// ask returns the status of a member.
func (n *Node) ask(ctx context.Context, m Member) (*Status, error) {
	return n.askFor(ctx, m, statusQuestion{})
}

func (n *Node) askFor(ctx context.Context, m Member, q statusQuestion) (*Status, error) {
	if m.Self {
		status := n.statusFor(ctx, q)
		return &status, nil
	}
	data, err := n.tell(ctx, m, callStatus, q)
	if err != nil {
		return nil, err
	}
	status := new(Status)
	if err := json.Unmarshal(data, status); err != nil {
		return nil, fmt.Errorf("status of server %q: %w", m.ID, err)
	}
	return status, nil
}
