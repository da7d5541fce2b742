package status

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/kv"
)

// electionsTaken is how many election timeouts may pass without a leader before this server reports
// that it has none. An election without a split vote takes less than one.
const electionsTaken = 2

// electionsLost is how many may pass until repeating a request is useless: with slow timeouts,
// kv.LeaderlessAfter may be few.
const electionsLost = 5

// Condition has the reasons, at one moment, that keep a server from serving, without asking another
// one.
type Condition struct {
	Closed bool
	// Removed, Fatal, Superseded, Quarantined and DiskHangs are why it cannot serve; nil where that
	// is not so.
	Removed, Fatal, Superseded, Quarantined, DiskHangs error

	HasLeader bool
	// LeaderlessSince is the time since which it has no leader; zero if it was lost just now.
	LeaderlessSince time.Time
	// ElectionTimeout is the longest time of an election without a split vote.
	ElectionTimeout time.Duration
	// Member is whether this server is one, and Voters how many have a vote.
	Member bool
	Voters int

	Restoring          bool // it is reading a snapshot
	Applied, Committed uint64
	LogFailed          error // of the last write to the log
	DiskFull           bool
}

// Ailment returns why the server cannot serve. All but ErrClosed are ErrUnavailable.
func (c *Condition) Ailment() error {
	switch {
	case c.Closed:
		return kv.ErrClosed
	case c.Removed != nil:
		return fmt.Errorf("%w: %w", kv.ErrUnavailable, c.Removed)
	case c.Fatal != nil:
		return fmt.Errorf("%w: this server cannot go on: %w", kv.ErrUnavailable, c.Fatal)
	case c.Superseded != nil:
		return c.Superseded
	case c.Quarantined != nil:
		return c.Quarantined
	case c.DiskHangs != nil:
		return fmt.Errorf("%w: %w", kv.ErrUnavailable, c.DiskHangs)
	}
	if since := c.Leaderless(); since >= electionsTaken*c.ElectionTimeout {
		return c.withoutLeader(since)
	}
	return nil
}

// Leaderless returns how long no leader has been known; 0 with a leader.
func (c *Condition) Leaderless() time.Duration {
	if c.HasLeader || c.LeaderlessSince.IsZero() {
		return 0
	}
	return time.Since(c.LeaderlessSince)
}

// NoLeader is the error of a request while there is no leader.
func (c *Condition) NoLeader() error {
	if since := c.Leaderless(); since >= LeaderlessAfter {
		return c.withoutLeader(since)
	}
	return group.ErrNoLeader
}

// withoutLeader is the error of a server that has been without a leader since then. After
// LeaderlessAfter it is an ErrLeaderless: an election is not the cause any more.
func (c *Condition) withoutLeader(since time.Duration) error {
	reason := fmt.Sprintf("no leader has been known for %s, since %s: ", since.Round(time.Second),
		time.Now().Add(-since).UTC().Format(time.RFC3339))
	if c.Member {
		reason += fmt.Sprintf("%d of the %d servers with a vote must reach each other", c.Voters/2+1, c.Voters)
	} else {
		reason += "this server is no member of the cluster yet, or hears nothing of it: it waits to be let in"
	}
	if since < max(kv.LeaderlessAfter, electionsLost*c.ElectionTimeout) {
		return fmt.Errorf("%w: %s", kv.ErrUnavailable, reason)
	}
	return &kv.LeaderlessError{For: since, Reason: reason}
}

// Explain adds the likely reason to the error of a read.
func (c *Condition) Explain(err error) error {
	if ill := c.Ailment(); ill != nil {
		return ill
	}
	var also []string
	if since := c.Leaderless(); since > 0 {
		also = append(also, fmt.Sprintf("no leader is known for %s", since.Round(time.Millisecond)))
	}
	if c.Restoring {
		also = append(also, "it is reading a snapshot of the leader")
	}
	if c.Applied < c.Committed {
		also = append(also, fmt.Sprintf("it has applied entry %d of %d", c.Applied, c.Committed))
	}
	if c.LogFailed != nil {
		also = append(also, fmt.Sprintf("its last write to the log failed: %v", c.LogFailed))
	}
	if c.DiskFull {
		also = append(also, "its disk is full")
	}
	if !errors.Is(err, kv.ErrUnavailable) && !errors.Is(err, kv.ErrClosed) {
		err = fmt.Errorf("%w: %w", kv.ErrUnavailable, err)
	}
	if len(also) == 0 {
		return err
	}
	return fmt.Errorf("%w (%s)", err, strings.Join(also, "; "))
}
