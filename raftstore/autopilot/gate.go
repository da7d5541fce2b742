package autopilot

import (
	"context"
	"fmt"

	"github.com/barque/barque/raftstore/kv"
)

// gate lets one caller in at a time. Unlike with a mutex, a waiting caller can give up: the one
// inside may wait for other servers. It is made with room for one.
type gate chan struct{}

// enter waits to be let in. It fails with ErrUnavailable when ctx ends first.
func (g gate) enter(ctx context.Context) error {
	select {
	case g <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%w: other changes of the members are under way: %w", kv.ErrUnavailable, context.Cause(ctx))
	}
}

func (g gate) leave() { <-g }
