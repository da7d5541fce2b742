package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/barque/barque/raftstore/command"
	"github.com/barque/barque/raftstore/kv"
	"github.com/barque/barque/raftstore/steward"
)

// The roster is what was decided about servers, beside Raft's own configuration of the group: who
// is to leave, who is to stay without a vote, who was taken out. It is replicated like all data,
// under keys of the store's own, so that whoever leads next goes on with what was begun.
//
//	         Remove                        it is not in the configuration any more
//	regular ───────▶ leaving ──────────────────────────────────────────────▶ removed, for ever
//	   ▲                │  Promote
//	   ├────────────────┘
//	   │   Demote ▶ standby;  Promote ▶ regular
//	   │   dead before it had its vote ▶ dropped;  it joins again ▶ regular
//
// What is recorded is carried out, however long the quorum needs the server and whoever leads
// meanwhile. Only Promote takes it back. Who is removed stays so: the ID is never let in again, and
// whoever bears it is told that it is out.

// rosterPrefix is that of the roster's keys. A server's ID follows.
const rosterPrefix = kv.ReservedPrefix + "members/"

// Removed is the standing of a server that was taken out of the group.
const Removed steward.Standing = "removed"

// Dropped is the standing of a server that was taken out of the group because it died before it had
// its vote. It may join again, and does so by itself: see rejoin. The entry is for people, and goes
// when it is a member.
const Dropped steward.Standing = "dropped"

// unreadable is the standing of a server about which something was decided that this version does
// not know. The steward leaves such a server as it is.
const unreadable steward.Standing = "unreadable"

// standing is one entry of the roster.
type standing struct {
	State steward.Standing `json:"state"`
	Name  string           `json:"name"`
	Why   string           `json:"why,omitempty"`
	Since int64            `json:"since"` // Unix milliseconds

	revision uint64 // at which it was written; 0 when there is none
}

func (s standing) since() time.Time { return time.UnixMilli(s.Since).UTC() }

// forSteward is the standing of a server that is in the configuration.
func (s standing) forSteward() steward.Standing {
	switch s.State {
	case Removed: // it was let in while it was removed
		return steward.Leaving
	case Dropped: // it has joined again just now
		return steward.Regular
	}
	return s.State
}

// standing returns what this server knows to be decided about another one, or about itself.
func (n *Node) standing(id string) standing {
	item, ok := n.state.Latest().Get(rosterPrefix + id)
	if !ok {
		return standing{}
	}
	return readStanding(item)
}

func readStanding(item kv.Item) standing {
	var s standing
	if err := json.Unmarshal(item.Value, &s); err != nil {
		// A newer version may write what this one cannot read. It is not for this one to act on it.
		s = standing{State: unreadable}
	}
	s.revision = item.ModRevision
	return s
}

// roster returns all that is decided, by ID.
func (n *Node) roster() map[string]standing {
	all := make(map[string]standing)
	n.state.Latest().Ascend(rosterPrefix, "", func(item kv.Item) bool {
		all[strings.TrimPrefix(item.Key, rosterPrefix)] = readStanding(item)
		return true
	})
	return all
}

// decide writes to the roster, unless it was changed since old was read, or another term than the
// one in which it was decided has begun: whoever leads then decides by what he sees. The zero
// standing deletes.
func (n *Node) decide(ctx context.Context, term uint64, id string, old, new standing) error {
	op := kv.Op{Kind: kv.Delete, Key: rosterPrefix + id}
	if new.State != steward.Regular {
		new.Since = n.cfg.Now().UnixMilli()
		value, err := json.Marshal(new)
		if err != nil {
			return err
		}
		op.Kind, op.Value = kv.Put, value
	}
	outcome, err := n.Propose(ctx, &command.Request{Kind: command.KindTxn, Txn: kv.Txn{
		Require: []kv.Precondition{{Key: op.Key, ModRevision: old.revision}}, Ops: []kv.Op{op}, Term: term,
	}})
	if err != nil {
		return err
	}
	_, err = outcome.Result()
	var conflict *kv.ConflictError
	switch {
	case errors.Is(err, kv.ErrFenced):
		return errNoLeader
	case errors.As(err, &conflict):
		return fmt.Errorf("%w: somebody else decided about server %q at the same time", kv.ErrUnavailable, id)
	}
	return err
}

// Leaving tells whether it is recorded that a member leaves, as this server knows.
func (n *Node) Leaving(id string) bool { return n.standing(id).State == steward.Leaving }

// Gone returns who was taken out of the group, by ID, as this server knows.
func (n *Node) Gone() map[string]Removal {
	gone := make(map[string]Removal)
	for id, s := range n.roster() {
		if s.State == Removed || s.State == Dropped {
			gone[id] = Removal{Name: s.Name, At: s.since(), Why: s.Why, Dropped: s.State == Dropped}
		}
	}
	return gone
}

// Removal tells that, when and why a server was taken out of the group.
type Removal struct {
	Name string    `json:"name"`
	At   time.Time `json:"at"`
	Why  string    `json:"why"`
	// Dropped tells that it is not for good: the server had no vote yet, and joins again when it is
	// back.
	Dropped bool `json:"dropped,omitempty"`
}

// RemovedError is returned by Open for the directory of a server that was taken out of its group.
type RemovedError struct {
	Dir     string
	Removal Removal
}

func (e *RemovedError) Error() string {
	return fmt.Sprintf("this server, %s, was taken out of its cluster at %s (%s): it can join again, as a new one, with an empty directory in place of %s",
		e.Removal.Name, e.Removal.At.Format(time.RFC3339), e.Removal.Why, e.Dir)
}

// removedFile marks the directory of a server that has learned that it was taken out.
const removedFile = "removed.json"

// checkNotRemoved refuses a directory that is marked.
func checkNotRemoved(cfg *Config) error {
	if cfg.InMemory {
		return nil
	}
	data, err := os.ReadFile(filepath.Join(cfg.Dir, removedFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read whether this server was removed: %w", err)
	}
	e := &RemovedError{Dir: cfg.Dir}
	if err := json.Unmarshal(data, &e.Removal); err != nil {
		e.Removal = Removal{Name: cfg.Name, Why: "the mark cannot be read: " + err.Error()}
	}
	return e
}

// expelled takes note that this server is a member no more.
func (n *Node) expelled(r Removal) {
	n.removal.Do(func() {
		n.cfg.Logger.Error("this server was taken out of the cluster", "server", n.id.ServerID, "at", r.At, "why", r.Why)
		if !n.cfg.InMemory {
			if err := writeJSON(filepath.Join(n.cfg.Dir, removedFile), r); err != nil { // the others will tell it again at the next start
				n.cfg.Logger.Warn("cannot mark the directory of a server that was removed", "err", err)
			}
		}
		n.removed.Store(&r)
		close(n.out)
		if n.cfg.OnRemoved != nil {
			n.cfg.OnRemoved(r)
		}
	})
}
