package main

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	clustertest "github.com/barque/barque/cluster-test"
)

func keyFaults() []fault {
	return []fault{
		{name: "rotate gossip keys", spares: true, run: rotateKeys},
		{name: "kill in a key rotation", run: killInRotation},
	}
}

// gossipKeys is the output of the commands about the keys of gossip.
type gossipKeys struct {
	Generation uint64
	Step       string // empty at rest
	Keys       []struct{ ID string }
	Members    []struct {
		Name       string
		Generation uint64
	}
}

// keys runs a command about the keys of gossip.
func (t *trial) keys(ctx context.Context, args ...string) (*gossipKeys, error) {
	out, err := t.barque(ctx, append([]string{"cluster", "keys", "-o", "json"}, args...)...)
	if err != nil {
		return nil, err
	}
	k := new(gossipKeys)
	return k, json.Unmarshal([]byte(out), k)
}

// beginRotation begins one as soon as it is not refused any more, and returns how the keys were and
// are.
func (t *trial) beginRotation(ctx context.Context) (before, begun *gossipKeys, err error) {
	err = clustertest.Poll(ctx, time.Minute, func(ctx context.Context) (err error) {
		if before, err = t.keys(ctx, "list"); err == nil {
			begun, err = t.keys(ctx, "rotate", "--wait", "0")
		}
		return err
	})
	return before, begun, err
}

// awaitRotated waits until all members have one key, another one than before, without any command
// that asks for it.
func (t *trial) awaitRotated(ctx context.Context, before *gossipKeys) error {
	return clustertest.Poll(ctx, patience, func(ctx context.Context) error {
		now, err := t.keys(ctx, "list")
		if err != nil {
			return err
		}
		if now.Step != "" || len(now.Keys) != 1 || now.Keys[0].ID == before.Keys[0].ID {
			return fmt.Errorf("the rotation is not done: %+v", now)
		}
		for _, m := range now.Members {
			if m.Generation != now.Generation {
				return fmt.Errorf("%s has generation %d of the keys, not %d", m.Name, m.Generation, now.Generation)
			}
		}
		return nil
	})
}

// rotateKeys gives gossip another key.
func rotateKeys(ctx context.Context, t *trial) error {
	t.say("all nodes")
	before, _, err := t.beginRotation(ctx)
	if err != nil {
		return err
	}
	return t.awaitRotated(ctx, before)
}

// killInRotation gives gossip another key, and kills the leader meanwhile: another one goes on.
func killInRotation(ctx context.Context, t *trial) error {
	t.meet(t.leader)
	before, begun, err := t.beginRotation(ctx)
	if err != nil {
		return err
	}
	t.hold(ctx, 0, time.Second)
	if err := t.Cluster.KillNodes(ctx, t.leader); err != nil {
		return err
	}
	t.say("%s was killed after step %q had begun", t.leader, begun.Step)
	t.hold(ctx, 0, 2*time.Second)
	if err := t.Cluster.StartNode(ctx, t.leader); err != nil {
		return err
	}
	return t.awaitRotated(ctx, before)
}
