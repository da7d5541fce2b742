// Package preflight checks whether a machine can be a node, and could join a cluster.
package preflight

import (
	"context"
	"errors"
	"os"
	"slices"
	"time"

	"github.com/barque/barque/cmd/barque/node/options"
	"github.com/barque/barque/internal/check"
	"github.com/barque/barque/kubelet/containerd"
	"github.com/barque/barque/kubelet/rootdir"
	"github.com/barque/barque/membership/enroll"
	"github.com/barque/barque/network"
)

// Check collects every package's requirements of this machine.
func Check(dataDir, kubeletRootDir string) []check.Finding {
	return slices.Concat(containerd.Check(dataDir), []check.Finding{rootdir.Check(kubeletRootDir)}, network.Check())
}

// Join checks whether this machine could join the cluster now, as a server or an agent. It
// changes nothing on either side, and does not use the token up. The token's remaining uses are
// only checked at the join itself. Join completes o.
func Join(ctx context.Context, o *options.Options, role string, now func() time.Time) ([]check.Finding, error) {
	_, statErr := os.Stat(o.DataDir)
	if err := o.Complete(); err != nil {
		return nil, err
	}
	if errors.Is(statErr, os.ErrNotExist) {
		defer os.Remove(o.DataDir) // created for the check only
	}
	return append(Check(o.DataDir, o.KubeletRootDir), enroll.Preflight(ctx, o.Enrolling(), role, now)...), nil
}
