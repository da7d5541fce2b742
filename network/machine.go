package network

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"runtime"
	"time"

	"github.com/barque/barque/network/faults"
	"github.com/barque/barque/network/pace"
)

// lookPace bounds how often the machine is looked at for faults of its network.
var lookPace = pace.Pace{MinInterval: time.Second, Every: 10 * time.Second}

// watchMachine tells what goes wrong with the machine's network, until ctx ends. It fails when the
// machine has got another address in place of the node's, if nobody chose that.
func (n *Network) watchMachine(ctx context.Context) error {
	ctx, end := context.WithCancel(ctx)
	defer end()
	var moved error
	var awaited replacement
	links := map[netip.Addr]string{} // that have, or had, the addresses
	table := connectionTable{network: n}
	pace.Run(ctx, lookPace, n.look, func(context.Context) error {
		table.look()
		fault, err := n.config.Addresses.Up()
		if err != nil {
			return err
		}
		n.faults.Address(fault)
		if !n.config.Detected {
			return nil
		}
		maps.Copy(links, n.config.Addresses.Links())
		before, now, found := n.config.Addresses.Replaced(links)
		if awaited.lasts(before, now, found, time.Now()) {
			moved = fmt.Errorf("network: the link %s has had the address %v in place of the node's %v for %v: "+
				"Barque is to be started again, and takes that one (or another with --node-ip)", links[before], now, before, replacedFor)
			end()
		}
		return nil
	}, func(err error) {
		n.config.Logger.Warn("network: whether the node's addresses are there is not known", "error", err)
	})
	return moved
}

// replacedFor is how long another address must have been in the place of the node's before it is
// taken for it: network managers take one away and give it back when they are started anew.
const replacedFor = 30 * time.Second

// replacement is another address in the place of the node's that is there, or not.
type replacement struct {
	before, now netip.Addr
	since       time.Time
}

// lasts takes what is found, and tells whether it has been so for long.
func (r *replacement) lasts(before, now netip.Addr, found bool, at time.Time) bool {
	switch {
	case !found:
		*r = replacement{}
	case r.since.IsZero() || r.before != before || r.now != now:
		*r = replacement{before, now, at}
	}
	return found && at.Sub(r.since) >= replacedFor
}

// connectionTable looks after the kernel's table of connections.
type connectionTable struct {
	network *Network
	roomy   bool // it has been made so, or that failed
	unknown bool // said not to be known
}

// look tells how full the table is. Where the kernel loads connection tracking with the first rule
// that needs it, there is no table until then.
func (t *connectionTable) look() {
	n := t.network
	connections, err := faults.ReadConnections()
	switch {
	case err == nil:
		n.faults.Connections(connections)
	case errors.Is(err, fs.ErrNotExist) && !n.isReady():
		return
	case !t.unknown:
		t.unknown = true
		n.config.Logger.Warn("network: how many connections the kernel tracks is not known", "error", err)
	}
	if t.roomy {
		return
	}
	t.roomy = true
	if err := faults.MakeRoom(runtime.NumCPU()); err != nil {
		n.config.Logger.Warn("network: the kernel's table of connections stays as it is", "error", err)
	}
}

// Moved tells of other addresses than the Node object had.
func (n *Network) Moved(before, now []string) { n.faults.Moved(before, now) }
