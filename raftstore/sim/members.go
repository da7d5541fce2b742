package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/barque/barque/raftstore"
)

func limited(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, d)
}

// exchange removes servers, wipes them, and lets them join again, while everything else goes on. It
// ends with ctx.
func (c *cluster) exchange(ctx context.Context) {
	rnd := rand.New(rand.NewPCG(c.opts.Seed, 3))
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Duration(2000+rnd.IntN(4000)) * time.Millisecond):
		}
		s := c.servers[rnd.IntN(len(c.servers))]
		if c.remove(ctx, rnd, s) {
			s.renew()
			c.join(ctx, s)
		}
	}
}

// remove takes a server out of the cluster and returns whether that is done for sure.
func (c *cluster) remove(ctx context.Context, rnd *rand.Rand, s *server) bool {
	ctx, cancel := limited(ctx, 5*time.Second)
	defer cancel()
	id := s.id()
	for ctx.Err() == nil {
		asked := c.servers[rnd.IntN(len(c.servers))]
		if p := asked.live(); p != nil && asked != s {
			try, cancel := limited(ctx, time.Second)
			err := p.Remove(try, id, "exchange")
			cancel()
			var refused *raftstore.RefusedError
			switch {
			case err == nil && c.gone(id):
				c.note("%s is removed", id)
				return true
			case errors.As(err, &refused):
				return false
			}
		}
		pause(ctx, 100*time.Millisecond)
	}
	return false
}

// gone reports whether a leader says that there is no such member.
func (c *cluster) gone(id string) bool {
	for _, s := range c.servers {
		if p := s.live(); p != nil && p.Status().Role == "leader" {
			return !slices.ContainsFunc(p.Members(), func(m raftstore.Member) bool { return m.ID == id })
		}
	}
	return false
}

func (c *cluster) join(ctx context.Context, s *server) {
	ctx, cancel := limited(ctx, 10*time.Second)
	defer cancel()
	for ctx.Err() == nil {
		if p := s.live(); p != nil {
			try, cancel := limited(ctx, 2*time.Second)
			err := p.Join(try, c.others(s))
			cancel()
			if err == nil {
				return
			}
		}
		pause(ctx, 100*time.Millisecond)
	}
}

func (c *cluster) others(s *server) []string {
	var addrs []string
	for i := range c.servers {
		if i != s.index {
			addrs = append(addrs, addr(i))
		}
	}
	return addrs
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// steady is how long all servers must have had their vote until the cluster counts as complete: a
// server that is to leave does so in that time.
const steady = 3 * time.Second

// complete lets in the servers that are no members, and waits until all vote and stay. It returns
// false when that does not happen.
func (c *cluster) complete(ctx context.Context) bool {
	since := time.Now()
	for ctx.Err() == nil {
		voters := make(map[string]bool)
		for _, s := range c.servers {
			if p := s.live(); p != nil && p.Status().Role == "leader" {
				for _, m := range p.Members() {
					voters[m.ID] = m.Voter
				}
			}
		}
		missing := 0
		for _, s := range c.servers {
			if vote, member := voters[s.id()]; len(voters) > 0 && !member {
				c.note("server %d was left outside", s.index)
				s.renew()
				c.join(ctx, s)
				missing++
			} else if !vote {
				missing++
			}
		}
		if missing > 0 {
			since = time.Now()
		} else if time.Since(since) > steady {
			return true
		}
		pause(ctx, 100*time.Millisecond)
	}
	return false
}

// look describes each server as it sees itself and its group.
func (c *cluster) look() string {
	var text strings.Builder
	for i, s := range c.servers {
		p := s.live()
		if p == nil {
			fmt.Fprintf(&text, "\n server %d is down", i)
			continue
		}
		status := p.Status()
		fmt.Fprintf(&text, "\n server %d: %+v\n   members %+v", i, status, p.Members())
	}
	return text.String()
}
