package options

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/barque/barque/apiserver"
)

// Checks of the options before a start. Without them the error would only show after a cluster was
// created or joined.

// shortestSchedule keeps a server from making backups all the time.
const shortestSchedule = time.Minute

// Check validates the options of any node.
func (o *Options) Check() error {
	if o.CloudProvider != "" && o.CloudProvider != ExternalCloud {
		return fmt.Errorf(
			"--cloud-provider %q: want %s, or nothing; the controllers of a cloud come from its cloud-controller-manager", o.CloudProvider, ExternalCloud)
	}
	if err := checkTaints(o.Taints); err != nil {
		return fmt.Errorf("--node-taint: %w", err)
	}
	for key, value := range o.Labels {
		if bad := append(validation.IsQualifiedName(key), validation.IsValidLabelValue(value)...); len(bad) > 0 {
			return fmt.Errorf("--node-label %q: %s", key+"="+value, strings.Join(bad, "; "))
		}
	}
	if err := o.Serving.check(); err != nil {
		return err
	}
	if err := o.KubeletTLS().Check(); err != nil {
		return fmt.Errorf("the node's own server: %w", err)
	}
	switch {
	case o.Backups.Every > 0 && o.Backups.Every < shortestSchedule:
		return fmt.Errorf("--snapshot-schedule %s: want %s at least, or 0 for never", o.Backups.Every, shortestSchedule)
	case o.WireGuardPort == 0:
		return errors.New("--wireguard-port 0: want a port from 1 to 65535")
	case o.DeadServerCleanup < 0:
		return fmt.Errorf("--dead-server-cleanup-after %s is negative", o.DeadServerCleanup)
	}
	return o.checkPorts()
}

// checkPorts refuses two listeners at one port.
func (o *Options) checkPorts() error {
	taken := map[uint16]string{}
	for _, p := range []struct {
		flag string
		port uint16
		used bool
	}{{"api-port", o.APIPort, true}, {"peer-port", o.PeerPort, o.PeerPort != 0},
		{"gossip-port", o.GossipPort, o.GossipPort != 0}, {"kubelet-port", o.KubeletPort, !o.NoNode}} {
		switch {
		case !p.used:
			continue
		case p.port == 0:
			return fmt.Errorf("--%s 0: want a port from 1 to 65535", p.flag)
		case taken[p.port] != "":
			return fmt.Errorf("--%s and --%s are both %d: give each its own port", taken[p.port], p.flag, p.port)
		}
		taken[p.port] = p.flag
	}
	return nil
}

// CheckServer validates the options of a server.
func (o *Options) CheckServer() error {
	switch {
	case o.PeerPort == 0:
		return errors.New("--peer-port 0: want a port from 1 to 65535")
	case o.MinVoters < 1:
		return fmt.Errorf("--min-voters %d: want 1 at least", o.MinVoters)
	}
	if err := o.Switches.Check(apiserver.Versions()); err != nil {
		return err
	}
	if o.Audit != nil {
		if err := o.Audit.Check(); err != nil {
			return err
		}
	}
	if o.Logins != nil {
		if err := o.Logins.Check(); err != nil {
			return err
		}
	}
	if o.Authorization != nil {
		if err := o.Authorization.Check(); err != nil {
			return err
		}
	}
	if o.Providers != nil {
		return o.Providers.Check()
	}
	return nil
}
