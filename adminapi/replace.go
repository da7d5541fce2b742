package adminapi

import (
	"context"
	"fmt"
	"time"

	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/raftstore"
)

// Replacing removes a dead server from the store, in favour of a rebuilt machine of the same name.
// It uses the store and gossip.
type Replacing struct {
	Store interface {
		PeerStatus(ctx context.Context) []raftstore.PeerStatus
		Remove(ctx context.Context, id, why string) error
	}
	Pool interface {
		Member(name string) (gossip.Member, bool)
		Changed() <-chan struct{}
	}
}

// Replace takes the dead predecessor of a machine of the same name out of the store.
func (r Replacing) Replace(ctx context.Context, name string) error {
	if err := r.awaitDeath(ctx, name); err != nil {
		return err
	}
	for _, p := range r.Store.PeerStatus(ctx) {
		if p.Member.Name != name {
			continue
		}
		if p.Status != nil && p.Status.Quarantined == "" {
			return fmt.Errorf(
				"the server %q that is to be replaced lives and answers at %s: stop it first, or give this machine another name", name, p.Member.Address)
		}
		if err := r.Store.Remove(ctx, p.Member.ID, "a rebuilt machine of the same name replaces it"); err != nil {
			return fmt.Errorf("the server %q cannot be replaced: %w", name, err)
		}
	}
	return nil
}

// deathPatience is how long a replacement waits until gossip calls its predecessor dead.
const deathPatience = 20 * time.Second

func (r Replacing) awaitDeath(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, deathPatience)
	defer cancel()
	for {
		changed := r.Pool.Changed()
		m, ok := r.Pool.Member(name)
		if !ok || m.State != gossip.Alive {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf(
				"the node %q that is to be replaced is alive at %s: stop it first, or give this machine another name",
				name, m.Addr.Addr())
		}
	}
}
