package node

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/raftstore"
)

// ExitRemoved is the exit code of a server that was taken out of its cluster: starting it again is
// no use.
const ExitRemoved = 3

// joinAgain tells, in the store's messages, how a server joins again as a new one.
const joinAgain = "let it join again as a new one: start it with --wipe --join https://SERVER:6443 --token TOKEN"

// removedError ends a server that is a member no more.
type removedError struct {
	name    string
	removal raftstore.Removal
}

func (e *removedError) Error() string {
	return fmt.Sprintf("this server, %s, was taken out of its cluster at %s (%s). It serves nothing and stops. To let the machine join again, as a new server: "+
		"start it with --wipe --join https://SERVER:6443 --token TOKEN, or with an empty data directory; its pods are left as they are",
		e.name, e.removal.At.Format(time.RFC3339), e.removal.Why)
}

// ExitCode is the code with which the process should end.
func (e *removedError) ExitCode() int { return ExitRemoved }

// untilRemoved waits until this server has learned that it is out.
func (s *server) untilRemoved(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case r := <-s.removed:
		return &removedError{s.options.Name, r}
	}
}

// replaceMember takes the dead predecessor of a machine of the same name out of the store, in
// favour of it.
func (s *server) replaceMember(ctx context.Context, name string) error {
	if err := s.awaitDeath(ctx, name); err != nil {
		return err
	}
	for _, p := range s.store.PeerStatus(ctx) {
		if p.Member.Name != name {
			continue
		}
		if p.Status != nil && p.Status.Quarantined == "" {
			return fmt.Errorf("the server %q that is to be replaced lives and answers at %s: stop it first, or give this machine another name", name, p.Member.Address)
		}
		if err := s.store.Remove(ctx, p.Member.ID, "a rebuilt machine of the same name replaces it"); err != nil {
			return fmt.Errorf("the server %q cannot be replaced: %w", name, err)
		}
	}
	return nil
}

// deathPatience is how long a replacement waits until gossip calls its predecessor dead.
const deathPatience = 20 * time.Second

func (s *server) awaitDeath(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, deathPatience)
	defer cancel()
	for {
		changed := s.pool.Changed()
		m, ok := s.pool.Member(name)
		if !ok || m.State != "alive" {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("the node %q that is to be replaced is alive at %s: stop it first, or give this machine another name", name, m.Addr.Addr())
		}
	}
}

// IsAgent tells whether gossip knows an agent of that name.
func (s *server) IsAgent(name string) bool {
	m, ok := s.pool.Member(name)
	return ok && m.Role == pki.RoleAgent
}

// IsFormer tells whether a server of that name was a member of the store: it was taken out, or its
// Node is there yet.
func (s *server) IsFormer(name string) bool {
	return slices.Contains(s.goneNames(), name) ||
		slices.ContainsFunc(s.formerServers(), func(f clusterstatus.FormerServer) bool { return f.Name == name })
}

// goneNames returns the names of servers that were taken out and have not come back as new ones.
func (s *server) goneNames() []string {
	members := s.store.Members()
	var names []string
	for _, r := range s.store.Gone() {
		if !slices.ContainsFunc(members, func(m raftstore.Member) bool { return m.Name == r.Name }) {
			names = append(names, r.Name)
		}
	}
	return names
}
