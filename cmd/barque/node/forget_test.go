package node

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/membership/join"
)

func TestGoneAgents(t *testing.T) {
	now := time.Now()
	member := func(name, role string, state gossip.State, since time.Duration) gossip.Member {
		return gossip.Member{Name: name, Role: role, State: state, Since: now.Add(-since)}
	}
	got := goneAgents([]gossip.Member{
		member("alive", roleAgent, gossip.Alive, time.Hour),
		member("dead", roleAgent, gossip.Dead, time.Minute),
		member("left", roleAgent, gossip.Left, time.Minute),
		member("just dead", roleAgent, gossip.Dead, time.Second),
		member("server", roleServer, gossip.Dead, time.Hour), // the store says when it was removed
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

// A lost agent is an operator's matter as long as it has its Node, and forgotten when that is deleted; not before the Nodes
// are known, and not one whose Node may be under way.
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
			done <- forgetRemoved(ctx, p, func() ([]string, bool) {
				mu.Lock()
				defer mu.Unlock()
				return nodes, nodes != nil
			}, quiet())
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
		add("s1", roleServer, gossip.Dead)
		add("a1", roleAgent, gossip.Dead)
		add("a2", roleAgent, gossip.Left)
		add("a3", roleAgent, gossip.Alive)
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
		add("a4", roleAgent, gossip.Dead)
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

// An agent forgets a server that shows no life for a week in which others did, also over its own restarts; it forgets none
// while it sees no server at all.
func TestAnAgentForgetsServersThatAreGone(t *testing.T) {
	address := netip.MustParseAddrPort("10.0.0.1:6443")
	r := &record{dir: t.TempDir(), Phase: phaseMember, Name: "a1", Role: roleAgent, Cluster: join.Cluster{
		Servers: []join.Server{{Name: "s1", API: address}, {Name: "s2", API: address}, {Name: "s3", API: address}}}}
	if err := r.save(); err != nil {
		t.Fatal(err)
	}
	members := func(states map[string]gossip.State) (out []gossip.Member) {
		for name, state := range states {
			out = append(out, gossip.Member{Name: name, Role: roleServer, State: state})
		}
		return append(out, gossip.Member{Name: "a2", Role: roleAgent, State: gossip.Dead}, gossip.Member{Name: "a1", Role: roleAgent, State: gossip.Alive})
	}
	now := time.Now()
	look := func(what string, after time.Duration, states map[string]gossip.State, want ...string) {
		t.Helper()
		now = now.Add(after)
		gone, err := r.goneServers(members(states), now)
		if err != nil || !slices.Equal(gone, want) {
			t.Errorf("%s: %v are gone, %v; want %v", what, gone, err, want)
		}
		if r, err = loadRecord(r.dir); err != nil { // a restart
			t.Fatal(err)
		}
	}
	const day = 24 * time.Hour
	look("nobody is seen yet", 0, nil)
	look("one is", 0, map[string]gossip.State{"s1": gossip.Alive})
	look("one is back", time.Minute, map[string]gossip.State{"s1": gossip.Alive, "s2": gossip.Alive})
	look("one dies", day, map[string]gossip.State{"s1": gossip.Alive, "s2": gossip.Dead})
	look("the agent is cut off", 30*day, map[string]gossip.State{"s1": gossip.Dead, "s2": gossip.Dead, "s3": gossip.Dead})
	look("one was away all the time, two come back", 0, map[string]gossip.State{"s1": gossip.Alive, "s2": gossip.Alive}, "s3")
	if err := r.remember(nil, []string{"s3"}); err != nil {
		t.Fatal(err)
	}
	look("it is forgotten", 0, map[string]gossip.State{"s1": gossip.Alive, "s2": gossip.Left})
	look("another one is away", 6*day, map[string]gossip.State{"s1": gossip.Alive})
	look("for a week", day, map[string]gossip.State{"s1": gossip.Alive}, "s2")
	if len(r.Away) != 1 {
		t.Errorf("it remembers %v", r.Away)
	}
	// A record that cannot be written changes nothing.
	if err := errors.Join(os.Remove(r.path()), os.MkdirAll(filepath.Join(r.path(), "x"), 0o700)); err != nil {
		t.Fatal(err)
	}
	if gone, err := r.goneServers(members(map[string]gossip.State{"s2": gossip.Alive}), now); err == nil || gone != nil || len(r.Away) != 1 {
		t.Errorf("%v are gone, %v are away: %v", gone, r.Away, err)
	}
}
