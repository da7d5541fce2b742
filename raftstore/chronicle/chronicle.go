// Package chronicle keeps the last changes of leaders, for an operator who asks later why they were. It is in memory only:
// the log has the rest. It decides nothing.
package chronicle

import (
	"slices"
	"sync"
	"time"
)

// Change is one change of leaders, as one server saw it.
type Change struct {
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

// length is how many changes are kept. Each election is two: the old leader goes, the new one comes.
const length = 16

// Chronicle is that of one server. The zero value is empty. Its methods are safe for concurrent use.
type Chronicle struct {
	mu      sync.Mutex
	changes []Change // oldest first
	// blamed is why this server stands for election just now, where it knows better than by its clock, and blamedIn
	// the term of that election. Nothing may come of it, and later changes have other reasons.
	blamed   string
	blamedIn uint64
}

// Blame notes why this server is about to stand for election in a term. When it does so again, because nothing came of the
// election before, why the last leader went is still what people want to know first. It returns what it notes.
func (c *Chronicle) Blame(term uint64, why string, again bool) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := len(c.changes); again && n > 0 && c.changes[n-1].Leader == "" && c.changes[n-1].Why != "" {
		why = c.changes[n-1].Why + "; then " + why
	}
	c.blamed, c.blamedIn = why, term
	return why
}

// Blamed returns what is noted for an election in that term; empty when nothing is.
func (c *Chronicle) Blamed(term uint64) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.blamedIn != term {
		return ""
	}
	return c.blamed
}

// Unblame takes back what was noted for that term, if nothing else was since.
func (c *Chronicle) Unblame(term uint64, why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.blamedIn == term && c.blamed == why {
		c.blamed = ""
	}
}

// blameFor takes what is blamed for a change in a term. Once somebody leads it is blamed no more.
func (c *Chronicle) blameFor(term uint64, leads bool) (why string) {
	if term <= c.blamedIn {
		why = c.blamed
	}
	if leads || term > c.blamedIn {
		c.blamed = ""
	}
	return why
}

// Ended notes that the leader is none any more.
func (c *Chronicle) Ended(at time.Time, term uint64, before, why string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if blamed := c.blameFor(term, false); blamed != "" {
		why = blamed
	}
	c.add(Change{At: at, Term: term, Before: before, Why: why})
}

// Began notes that a server leads. Why is that for which the one before it went; guess tells it when that was not
// noticed, and may be nil. It is asked with no name when this server has known of no leader before: then nobody was lost.
func (c *Chronicle) Began(at time.Time, term uint64, leader string, guess func(before string) string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change := Change{At: at, Term: term, Leader: leader}
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
	first := ""
	if len(c.changes) == 0 && guess != nil {
		first = guess("")
		change.Why = first
	}
	if blamed := c.blameFor(term, true); blamed != "" {
		change.Why = blamed
		if first != "" {
			change.Why = first + "; then " + blamed
		}
	}
	c.add(change)
}

func (c *Chronicle) add(change Change) {
	c.changes = append(c.changes, change)
	if over := len(c.changes) - length; over > 0 {
		c.changes = slices.Delete(c.changes, 0, over)
	}
}

// Newest returns the changes, newest first.
func (c *Chronicle) Newest() []Change {
	c.mu.Lock()
	defer c.mu.Unlock()
	changes := slices.Clone(c.changes)
	slices.Reverse(changes)
	return changes
}
