package election

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/raftfix"
)

// SilentMember is a member that does not answer this server, which leads.
type SilentMember struct {
	ID, Name string
	// Since is when it last answered, or when this server was elected if it has not since.
	Since time.Time
}

// followers knows which members do not answer this server while it leads.
//
// Raft sends every member a heartbeat every few tens of milliseconds, also under load. A
// member is silent from the first heartbeat that fails, or once nothing was heard of it for as long
// as a follower waits for its leader, until it answers again. The first rule lets a new leader know
// at once that the old one is gone, whose address refuses connections; the second finds those whose
// address says nothing, long before the transport's timeout does.
//
// This is little evidence: a caller that acts on it asks the member by another way first.
type followers struct {
	limit  time.Duration
	logger *slog.Logger
	wake   chan struct{} // holds a token when the heartbeats of a member begin or cease to fail

	mu      sync.Mutex
	hearing *hearing // of this term; nil while this server does not lead
	silent  []SilentMember
	changed chan struct{} // closed and replaced with silent
}

// hearing is the contact with the members in one term.
type hearing struct {
	members map[raft.ServerID]*contact
}

// contact is the contact with one member.
type contact struct {
	heard  time.Time
	fell   time.Time // when it was last heard before it fell silent
	failed error     // of the newest heartbeat, if nothing was heard since
	silent bool      // as published
}

func newFollowers(limit time.Duration, logger *slog.Logger) *followers {
	return &followers{limit: limit, logger: logger, wake: make(chan struct{}, 1), changed: make(chan struct{})}
}

// watch keeps the list of the silent until ctx, the context of the term, ends. others returns all
// members but this one.
func (s *followers) watch(ctx context.Context, others func() []group.Member) {
	h := &hearing{members: make(map[raft.ServerID]*contact)}
	s.mu.Lock()
	s.hearing = h
	s.mu.Unlock()
	defer s.end(h)
	ticker := time.NewTicker(s.limit / 3)
	defer ticker.Stop()
	for {
		s.look(h, others(), time.Now())
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-s.wake:
		}
	}
}

// end forgets everything, unless the next term has begun already.
func (s *followers) end(h *hearing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hearing == h {
		s.hearing = nil
		s.publish(nil)
	}
}

// look draws the list anew. A member that is new to this term counts as heard of just now.
func (s *followers) look(h *hearing, others []group.Member, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hearing != h {
		return
	}
	var silent []SilentMember
	for _, m := range others {
		c := h.members[raft.ServerID(m.ID)]
		if c == nil {
			c = &contact{heard: now}
			h.members[raft.ServerID(m.ID)] = c
		}
		before := c.silent
		if c.silent = c.failed != nil || now.Sub(c.heard) >= s.limit; c.silent {
			silent = append(silent, SilentMember{ID: m.ID, Name: m.Name, Since: c.heard})
		}
		s.log(m, c, before, now)
	}
	if !slices.Equal(s.silent, silent) {
		s.publish(silent)
	}
}

// log logs when a member falls silent, and when it answers again.
func (s *followers) log(m group.Member, c *contact, before bool, now time.Time) {
	switch {
	case c.silent && !before:
		c.fell = c.heard
		args := []any{"server", m.ID, "address", m.Address, "heard", now.Sub(c.heard).Round(time.Millisecond)}
		if c.failed != nil {
			args = append(args, "err", c.failed)
		}
		s.logger.Warn("a member does not answer", args...)
	case before && !c.silent:
		s.logger.Info("a member answers again", "server", m.ID, "address", m.Address, "after",
			now.Sub(c.fell).Round(time.Millisecond))
	}
}

// publish is called with the lock held.
func (s *followers) publish(silent []SilentMember) {
	s.silent = silent
	close(s.changed)
	s.changed = make(chan struct{})
}

// note takes the result of a message to a member.
func (s *followers) note(id raft.ServerID, failed error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hearing == nil {
		return
	}
	c := s.hearing.members[id]
	if c == nil {
		return // the next look knows it
	}
	if c.failed = failed; failed == nil {
		c.heard = time.Now()
	}
	if (failed != nil) != c.silent {
		select {
		case s.wake <- struct{}{}:
		default: // a token is there
		}
	}
}

func (s *followers) members() ([]SilentMember, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.silent), s.changed
}

// heard is Raft's transport. It records which members answer.
type heard struct {
	raftfix.Transport
	followers *followers
}

// AppendEntries implements raft.Transport. Any answer is a sign of life. Of failures only those of
// heartbeats count: another message may be too large for its time while heartbeats pass beside it.
func (h *heard) AppendEntries(
	id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse,
) error {
	err := h.Transport.AppendEntries(id, target, args, resp)
	if err == nil || raftfix.IsHeartbeat(args) {
		h.followers.note(id, err)
	}
	return err
}
