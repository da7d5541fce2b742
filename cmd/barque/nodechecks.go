package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/barque/barque/cmd/barque/node"
)

// What a node is not started with: it would find out by itself, but only after a cluster was begun,
// or joined.

// shortestSchedule keeps a server from doing little else than backups.
const shortestSchedule = time.Minute

// checkNode refuses what no node can be, and what cannot be meant.
func checkNode(o *node.Options) error {
	if err := node.CheckTaints(o.Taints); err != nil {
		return fmt.Errorf("--node-taint: %w", err)
	}
	for key, value := range o.Labels {
		if bad := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...); len(bad) > 0 {
			return fmt.Errorf("--node-label %q: %s", key+"="+value, strings.Join(bad, "; "))
		}
	}
	switch {
	case o.Backups.Every > 0 && o.Backups.Every < shortestSchedule:
		return fmt.Errorf("--snapshot-schedule %s: want %s at least, or 0 for never", o.Backups.Every, shortestSchedule)
	case o.WireGuardPort == 0:
		return errors.New("--wireguard-port 0: want a port from 1 to 65535")
	case o.DeadServerCleanup < 0:
		return fmt.Errorf("--dead-server-cleanup-after %s is negative", o.DeadServerCleanup)
	}
	return checkPorts(o)
}

// checkPorts refuses two listeners at one port.
func checkPorts(o *node.Options) error {
	taken := map[uint16]string{}
	for _, p := range []struct {
		flag string
		port uint16
		used bool
	}{{"api-port", o.APIPort, true}, {"peer-port", o.PeerPort, o.PeerPort != 0}, {"gossip-port", o.GossipPort, true}, {"kubelet-port", o.KubeletPort, !o.NoNode}} {
		switch {
		case !p.used:
			continue
		case p.port == 0:
			return fmt.Errorf("--%s 0: want a port from 1 to 65535", p.flag)
		case taken[p.port] != "":
			return fmt.Errorf("--%s and --%s are both %d: give each a port of its own", taken[p.port], p.flag, p.port)
		}
		taken[p.port] = p.flag
	}
	return nil
}

// checkServer refuses what no server can be.
func checkServer(o *node.Options) error {
	switch {
	case o.PeerPort == 0:
		return errors.New("--peer-port 0: want a port from 1 to 65535")
	case o.MinVoters < 1:
		return fmt.Errorf("--min-voters %d: want 1 at least", o.MinVoters)
	}
	return nil
}
