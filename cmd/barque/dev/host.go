package dev

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
)

// What the dev clusters of one machine share: its address ranges, and whether it forwards packets. Each is
// looked at and taken under one lock, so that clusters may be made and removed at the same time.

const (
	// hostLock is an abstract socket: it is one for each network, as all of what it guards, ends with the process, and
	// leaves no file.
	hostLock = "@barque-dev"
	// hostPatience is for others, who hold the lock while they make or remove a bridge.
	hostPatience = 30 * time.Second

	forwardingFile = "/proc/sys/net/ipv4/ip_forward"
	// forwardingAlias is in the alias of a cluster's bridge, followed by what net.ipv4.ip_forward was before the first of
	// the clusters that live now.
	forwardingAlias = "barque dev, net.ipv4.ip_forward was "
)

// lockHost waits until no other command takes or gives up what clusters share.
func lockHost(ctx context.Context) (unlock func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, hostPatience)
	defer cancel()
	for {
		l, err := net.Listen("unix", hostLock)
		if err == nil {
			return func() { l.Close() }, nil // it has no file that could not be removed
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			return nil, fmt.Errorf("lock the machine's network for a dev cluster: %w", err)
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return nil, fmt.Errorf("another barque dev command has been changing the machine's network all the time: %w", context.Cause(ctx))
		}
	}
}

// forwarding returns what is to be restored when the last cluster is gone. The caller has the host's lock.
func forwarding() (string, error) {
	bridges, err := devBridges()
	if err != nil {
		return "", err
	}
	for _, b := range bridges {
		if before, ok := strings.CutPrefix(b.Attrs().Alias, forwardingAlias); ok {
			return before, nil
		}
	}
	data, err := os.ReadFile(forwardingFile)
	return strings.TrimSpace(string(data)), err
}

// forward lets the machine forward packets, when it is noted what it did before. The caller has the host's lock.
func (p *Plan) forward(bridge netlink.Link) error {
	if err := netlink.LinkSetAlias(bridge, forwardingAlias+p.Forwarding); err != nil {
		return fmt.Errorf("note on bridge %s what net.ipv4.ip_forward was: %w", p.bridge(), err)
	}
	if err := os.WriteFile(forwardingFile, []byte("1"), 0o644); err != nil {
		return fmt.Errorf("let this machine forward packets: %w", err)
	}
	return nil
}

// restoreForwarding is for when the cluster's bridge is gone: other clusters need what it has set. The caller has the
// host's lock.
func (p *Plan) restoreForwarding() error {
	others, err := devBridges()
	if err != nil || len(others) > 0 || p.Forwarding == "" {
		return err
	}
	return os.WriteFile(forwardingFile, []byte(p.Forwarding), 0o644)
}

// devBridges returns the bridges of all dev clusters.
func devBridges() ([]netlink.Link, error) {
	all, err := netdump.Whole(netlink.LinkList) // others may make containers meanwhile
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
