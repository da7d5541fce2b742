package network

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"runtime"
	"time"

	"github.com/barque/barque/network/faults"
	"github.com/barque/barque/network/pace"
)

// lookPace bounds the checks for faults of the machine's network.
var lookPace = pace.Pace{MinInterval: time.Second, Every: 10 * time.Second}

// watchMachine reports faults of the machine's network, until ctx ends. It fails if the machine has
// got another address in place of a detected one of the node.
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
				"Barque is to be started again, and takes that one (or another with --node-ip)", links[before], now,
				before, replacedFor)
			end()
		}
		return nil
	}, func(err error) {
		n.config.Logger.Warn("network: cannot check the node's addresses", "err", err)
	})
	return moved
}

// replacedFor is how long another address must have replaced the node's before it is accepted:
// network managers remove an address and restore it when they restart.
const replacedFor = 30 * time.Second

// replacement is another address in the place of the node's that is there, or not.
type replacement struct {
	before, now netip.Addr
	since       time.Time
}

// lasts takes a finding, and reports whether it has lasted for long.
func (r *replacement) lasts(before, now netip.Addr, found bool, at time.Time) bool {
	switch {
	case !found:
		*r = replacement{}
	case r.since.IsZero() || r.before != before || r.now != now:
		*r = replacement{before, now, at}
	}
	return found && at.Sub(r.since) >= replacedFor
}

// connectionTable watches the kernel's table of connections.
type connectionTable struct {
	network *Network
	roomy   bool // it has been made so, or that failed
	unknown bool // reported as unknown
}

// look checks how full the table is. If the kernel loads connection tracking with the first rule
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
		n.config.Logger.Warn("network: the number of tracked connections is unknown", "err", err)
	}
	if t.roomy {
		return
	}
	t.roomy = true
	if err := faults.MakeRoom(runtime.NumCPU(), n.settings.Set); err != nil {
		n.config.Logger.Warn("network: the kernel's table of connections stays as it is", "err", err)
	}
}

// Conflict reports another machine that answers for an address of this node: see faults.Watcher.
func (n *Network) Conflict(addr netip.Addr, mac net.HardwareAddr, link string) {
	n.faults.Conflict(addr, mac, link)
}

// Moved reports other addresses than the Node object's.
func (n *Network) Moved(before, now []string) { n.faults.Moved(before, now) }
