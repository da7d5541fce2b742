package group

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/mvcc"
)

// Decisions about servers complement Raft's own configuration of the group: which one is to leave,
// to stay without a vote, or was removed. They are replicated like all data, under keys of the
// store's own, so the next leader continues them.
//
//	         Remove                        it is not in the configuration any more
//	regular ───────▶ leaving ──────────────────────────────────────────────▶ removed, for ever
//	   ▲                │  Promote
//	   ├────────────────┘
//	   │   Demote ▶ standby;  Promote ▶ regular
//	   │   dead before it had its vote ▶ dropped;  it joins again ▶ regular
//
// A decision is carried out, however long the quorum needs the server and under any leader. Only
// Promote takes it back. A removed server stays removed: its ID is never admitted again, and a
// server with that ID learns of its removal.

// DecisionPrefix is the prefix of decisions' keys. A server's ID follows.
const DecisionPrefix = kv.ReservedPrefix + "members/"

// Decision is a decision about a server.
type Decision struct {
	State State  `json:"state"`
	Name  string `json:"name"`
	Why   string `json:"why,omitempty"`
	Since int64  `json:"since"` // Unix milliseconds

	Revision uint64 `json:"-"` // of its entry; 0 without one
}

// At returns when it was decided.
func (s Decision) At() time.Time { return time.UnixMilli(s.Since).UTC() }

// Effective is the state of a server that is in the configuration.
func (s Decision) Effective() State {
	switch s.State {
	case Removed: // it was let in while it was removed
		return Leaving
	case Dropped: // it has joined again just now
		return Regular
	}
	return s.State
}

// DecisionOf returns the decision about a server.
func DecisionOf(view *mvcc.View, id string) Decision {
	item, ok := view.Get(DecisionPrefix + id)
	if !ok {
		return Decision{}
	}
	return ReadDecision(item)
}

// Decisions returns all that was decided, by the server's ID.
func Decisions(view *mvcc.View) map[string]Decision {
	all := make(map[string]Decision)
	view.Ascend(DecisionPrefix, "", func(item kv.Item) bool {
		all[strings.TrimPrefix(item.Key, DecisionPrefix)] = ReadDecision(item)
		return true
	})
	return all
}

// Op returns the operation that stores a decision. A regular server has no entry.
func (s Decision) Op(id string) (kv.Op, error) {
	op := kv.Op{Kind: kv.Delete, Key: DecisionPrefix + id}
	if s.State == Regular {
		return op, nil
	}
	var err error
	op.Kind = kv.Put
	op.Value, err = json.Marshal(s)
	return op, err
}

func ReadDecision(item kv.Item) Decision {
	var s Decision
	if err := json.Unmarshal(item.Value, &s); err != nil {
		// This version cannot read the decision of a newer version, and must not act on it.
		s = Decision{State: Unreadable}
	}
	s.Revision = item.ModRevision
	return s
}

// Removal is the notice for a removed or dropped server.
func (s Decision) Removal() Removal {
	return Removal{Name: s.Name, At: s.At(), Why: s.Why, Dropped: s.State == Dropped}
}

// MemberChange is a change of the members that the leader has carried out.
type MemberChange struct {
	Change   string // promote, demote, expire, remove or drop: see package autopilot
	ID, Name string // of the server
	Why      string
}

// Removal records when and why a server was taken out of the group.
type Removal struct {
	Name string    `json:"name"`
	At   time.Time `json:"at"`
	Why  string    `json:"why"`
	// Dropped means that it is not for good: the server had no vote yet, and joins again when it is
	// back.
	Dropped bool `json:"dropped,omitempty"`
}

// RemovedError is returned by Open for the directory of a server that was taken out of its group.
type RemovedError struct {
	Dir     string
	Removal Removal
}

func (e *RemovedError) Error() string {
	return fmt.Sprintf(
		"this server, %s, was taken out of its cluster at %s (%s): it can join again, as a new one, with an empty directory in place of %s",
		e.Removal.Name, e.Removal.At.Format(time.RFC3339), e.Removal.Why, e.Dir)
}
