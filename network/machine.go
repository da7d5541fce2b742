package network

import (
	"context"
	"fmt"
	"time"

	"github.com/barque/barque/network/faults"
	"github.com/barque/barque/network/pace"
)

// lookPace bounds how often the machine is looked at for faults of its network.
var lookPace = pace.Pace{MinInterval: time.Second, Every: 10 * time.Second}

// movePatience is how long the node's address must have been away before others are taken for it:
// network managers take one away and give it back when they are started anew.
const movePatience = 30 * time.Second

// watchMachine tells what goes wrong with the machine's network, until ctx ends. It fails when the
// machine has moved to other addresses, if nobody chose the ones that the node has.
func (n *Network) watchMachine(ctx context.Context) error {
	ctx, end := context.WithCancel(ctx)
	defer end()
	var moved error
	unreadable := false // and told so
	pace.Run(ctx, lookPace, n.look, func(context.Context) error {
		connections, err := faults.ReadConnections()
		if err == nil {
			n.faults.Connections(connections)
		} else if !unreadable {
			n.config.Logger.Warn("network: how many connections the kernel tracks is not known", "error", err)
		}
		unreadable = err != nil
		missing := n.faults.Address(n.config.Addresses.Up())
		if n.config.Detected && missing >= movePatience {
			if before, now, found := n.config.Addresses.Moved(); found {
				moved = fmt.Errorf("network: no link of this machine has had the node's address %v for %v, and others are reached from %v now: "+
					"Barque is to be started again, and takes that one (or another with --node-ip)", before, missing.Round(time.Second), now)
				end()
			}
		}
		return nil
	}, func(error) {}) // it does not fail
	return moved
}

// Moved tells of other addresses than the Node object had.
func (n *Network) Moved(before, now []string) { n.faults.Moved(before, now) }
