package node

import (
	"slices"
	"sync"
	"time"
)

// LeaderChange is one change of leaders, as one server saw it.
type LeaderChange struct {
	// At is when, by this server's clock, and Term the newest one that it knew then.
	At   time.Time `json:"at"`
	Term uint64    `json:"term"`
	// Leader is the ID of the server that leads from then on, empty when none is known, and Before that of the one that
	// led until then.
	Leader string `json:"leader,omitempty"`
	Before string `json:"before,omitempty"`
	// Why is what this server knows of the reason, for people. The server that lost the office knows best, then the
	// one that got it.
	Why string `json:"why,omitempty"`
}

// chronicleLength is how many changes are kept. Each election is two: the old leader goes, the new one comes.
const chronicleLength = 16

// chronicle keeps the last changes of leaders, for an operator who asks later why they were. It is in memory only:
// the log has the rest.
type chronicle struct {
	mu      sync.Mutex
	changes []LeaderChange // oldest first
	// blamed is why this server stands for election just now, where it knows better than by its clock, and blamedIn
	// the term of that election. Nothing may come of it, and later changes have other reasons.
	blamed   string
	blamedIn uint64
}

// blame notes why this server is about to stand for election in a term.
func (c *chronicle) blame(term uint64, why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.blamed, c.blamedIn = why, term
}

// blameFor takes what is blamed for a change in a term. Once somebody leads it is blamed no more.
func (c *chronicle) blameFor(term uint64, leads bool) (why string) {
	if term <= c.blamedIn {
		why = c.blamed
	}
	if leads || term > c.blamedIn {
		c.blamed = ""
	}
	return why
}

// ended notes that the leader is none any more.
func (c *chronicle) ended(at time.Time, term uint64, before, why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if blamed := c.blameFor(term, false); blamed != "" {
		why = blamed
	}
	c.add(LeaderChange{At: at, Term: term, Before: before, Why: why})
}

// began notes that a server leads. Why is that for which the one before it went; guess tells it when that was not
// noticed, and may be nil.
func (c *chronicle) began(at time.Time, term uint64, leader string, guess func(before string) string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change := LeaderChange{At: at, Term: term, Leader: leader}
	if n := len(c.changes); n > 0 {
		last := c.changes[n-1]
		change.Why, change.Before = last.Why, last.Before
		if last.Leader != "" { // no time in between was noticed
			change.Before, change.Why = last.Leader, ""
			if guess != nil && last.Leader != leader {
				change.Why = guess(last.Leader)
			}
		}
	}
	if blamed := c.blameFor(term, true); blamed != "" {
		change.Why = blamed
	}
	c.add(change)
}

func (c *chronicle) add(change LeaderChange) {
	c.changes = append(c.changes, change)
	if over := len(c.changes) - chronicleLength; over > 0 {
		c.changes = slices.Delete(c.changes, 0, over)
	}
}

// newest returns the changes, newest first.
func (c *chronicle) newest() []LeaderChange {
	c.mu.Lock()
	defer c.mu.Unlock()
	changes := slices.Clone(c.changes)
	slices.Reverse(changes)
	return changes
}
