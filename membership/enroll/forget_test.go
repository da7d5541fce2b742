package enroll

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/pki"
)

func TestGoneAgents(t *testing.T) {
	now := time.Now()
	member := func(name, role string, state gossip.State, since time.Duration) gossip.Member {
		return gossip.Member{Name: name, Role: role, State: state, Since: now.Add(-since)}
	}
	got := GoneAgents([]gossip.Member{
		member("alive", pki.RoleAgent, gossip.Alive, time.Hour),
		member("dead", pki.RoleAgent, gossip.Dead, time.Minute),
		member("left", pki.RoleAgent, gossip.Left, time.Minute),
		member("just dead", pki.RoleAgent, gossip.Dead, time.Second),
		member("server", pki.RoleServer, gossip.Dead, time.Hour), // the store says when it was removed
	}, now, 10*time.Second)
	if want := []string{"dead", "left"}; !slices.Equal(got, want) {
		t.Errorf("gone are %v, want %v", got, want)
	}
}

// pool is members that a test makes up.
type pool struct {
	mu      sync.Mutex
	members map[string]gossip.Member
}

func (p *pool) Members() []gossip.Member {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Values(p.members))
}

func (p *pool) Forget(name string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.members, name)
}

// A lost agent is an operator's matter as long as it has its Node, and forgotten when that is
// deleted; not before the Nodes are known, and not one whose Node may be under way.
func TestALostAgentIsForgottenOnceItsNodeIsDeleted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &pool{members: map[string]gossip.Member{}}
		add := func(name, role string, state gossip.State) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.members[name] = gossip.Member{Name: name, Role: role, State: state, Since: time.Now()}
		}
		var mu sync.Mutex
		var nodes []string // nil: not known
		know := func(names ...string) {
			mu.Lock()
			defer mu.Unlock()
			nodes = names
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			done <- ForgetRemoved(ctx, p, func() ([]string, bool) {
				mu.Lock()
				defer mu.Unlock()
				return nodes, nodes != nil
			}, slog.New(slog.DiscardHandler))
		}()
		left := func(what string, want ...string) {
			t.Helper()
			synctest.Wait()
			var got []string
			for _, m := range p.Members() {
				got = append(got, m.Name)
			}
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Errorf("%s: it knows %v, want %v", what, got, want)
			}
		}
		add("s1", pki.RoleServer, gossip.Dead)
		add("a1", pki.RoleAgent, gossip.Dead)
		add("a2", pki.RoleAgent, gossip.Left)
		add("a3", pki.RoleAgent, gossip.Alive)
		<-time.After(time.Hour)
		left("the Nodes are not known", "a1", "a2", "a3", "s1")
		know("a1", "a2")
		<-time.After(time.Hour)
		left("they have their Nodes, but for one that lives", "a1", "a2", "a3", "s1")
		know("a2")
		<-time.After(forgetEvery)
		left("one Node is deleted", "a2", "a3", "s1")
		know("none")
		<-time.After(forgetEvery)
		left("the other one is", "a3", "s1")
		add("a4", pki.RoleAgent, gossip.Dead)
		<-time.After(removedAfter - time.Second)
		left("one has died just now, and has no Node yet", "a3", "a4", "s1")
		<-time.After(forgetEvery + time.Second)
		left("it got none", "a3", "s1")
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}
