package devcluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/barque/barque/internal/netdump"
	"github.com/barque/barque/network/nodeaddr"
)

// The dev clusters of one machine share its address ranges and its forwarding switches. One lock
// guards both, so that clusters can be made and removed at the same time.

const (
	// hostLock is an abstract socket. Like the resources it guards there is one in each network
	// namespace. It ends with the process and leaves no file.
	hostLock = "@barque-dev"
	// hostPatience bounds the wait for commands that hold the lock while they make or remove a
	// bridge.
	hostPatience = 30 * time.Second

	// forwardingAlias begins the alias of a cluster's bridge. The original values of the cluster's
	// switches follow, from before the first of the existing clusters that need them.
	forwardingAlias = "barque dev"
)

// forwardSwitch is a sysctl that enables forwarding for a family.
type forwardSwitch struct{ name, file string }

var (
	forward4 = forwardSwitch{"net.ipv4.ip_forward", "/proc/sys/net/ipv4/ip_forward"}
	forward6 = forwardSwitch{"net.ipv6.conf.all.forwarding", "/proc/sys/net/ipv6/conf/all/forwarding"}
)

// note is the part of an alias with the switch's original value.
func (s forwardSwitch) note(before string) string { return ", " + s.name + " was " + before }

// noteIn returns the switch's original value from an alias.
func (s forwardSwitch) noteIn(alias string) (before string, ok bool) {
	for part := range strings.SplitSeq(alias, ",") {
		if before, ok := strings.CutPrefix(strings.TrimSpace(part), s.name+" was "); ok {
			return before, true
		}
	}
	return "", false
}

// lockHost waits until no other command changes the shared resources.
func lockHost(ctx context.Context) (unlock func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, hostPatience)
	defer cancel()
	for {
		l, err := net.Listen("unix", hostLock)
		if err == nil {
			return func() { l.Close() }, nil // an abstract socket has no file to remove
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			return nil, fmt.Errorf("lock the machine's network for a dev cluster: %w", err)
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return nil,
				fmt.Errorf("another barque dev command has been changing the machine's network all the time: %w",
					context.Cause(ctx))
		}
	}
}

// noted returns the switch's original value from any cluster's bridge; empty when no cluster needs
// the switch. The caller has the host's lock.
func (s forwardSwitch) noted() (string, error) {
	bridges, err := devBridges()
	if err != nil {
		return "", err
	}
	for _, b := range bridges {
		if before, ok := s.noteIn(b.Attrs().Alias); ok {
			return before, nil
		}
	}
	return "", nil
}

// before returns the value to restore after the last cluster that needs the switch. The caller has
// the host's lock.
func (s forwardSwitch) before() (string, error) {
	before, err := s.noted()
	if err != nil || before != "" {
		return before, err
	}
	data, err := os.ReadFile(s.file)
	return strings.TrimSpace(string(data)), err
}

// restore restores the switch after the cluster's bridge is gone, unless another cluster needs it.
// The caller has the host's lock.
func (s forwardSwitch) restore(before string) error {
	needed, err := s.noted()
	if err != nil || needed != "" || before == "" {
		return err
	}
	return os.WriteFile(s.file, []byte(before), 0o644)
}

// forward enables forwarding after it has recorded the original values in the bridge's alias. The
// caller has the host's lock.
func (p *Plan) forward(bridge netlink.Link) error {
	alias, switches := forwardingAlias+forward4.note(p.Forwarding), []forwardSwitch{forward4}
	if p.hasIPv6() {
		alias, switches = alias+forward6.note(p.Forwarding6), append(switches, forward6)
	}
	if err := netlink.LinkSetAlias(bridge, alias); err != nil {
		return fmt.Errorf("note on bridge %s what %s was: %w", p.bridge(), forward4.name, err)
	}
	if p.hasIPv6() {
		// Without it this machine would lose its routes from router advertisements.
		set := func(path, value string) error { return os.WriteFile(path, []byte(value), 0o644) }
		if err := nodeaddr.KeepAdvertisements(set); err != nil {
			return err
		}
	}
	for _, s := range switches {
		if err := os.WriteFile(s.file, []byte("1"), 0o644); err != nil {
			return fmt.Errorf("let this machine forward packets (%s): %w", s.name, err)
		}
	}
	return nil
}

// restoreForwarding undoes forward, unless other clusters need it. The caller has the host's lock.
func (p *Plan) restoreForwarding() error {
	return errors.Join(forward4.restore(p.Forwarding), forward6.restore(p.Forwarding6))
}

// devBridges returns the bridges of all dev clusters.
func devBridges() ([]netlink.Link, error) {
	all, err := netdump.Whole(netlink.LinkList) // other programs may make containers meanwhile
	if err != nil {
		return nil, fmt.Errorf("list this machine's interfaces: %w", err)
	}
	var bridges []netlink.Link
	for _, l := range all {
		if l.Type() == "bridge" && strings.HasPrefix(l.Attrs().Name, bridgePrefix+"-") {
			bridges = append(bridges, l)
		}
	}
	return bridges, nil
}
