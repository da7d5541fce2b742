package node

import (
	"context"
	"errors"
	"os"
	"slices"
	"time"

	"github.com/barque/barque/internal/check"
	"github.com/barque/barque/kubelet/containerd"
	"github.com/barque/barque/kubelet/rootdir"
	"github.com/barque/barque/membership/enroll"
	"github.com/barque/barque/network"
)

// Check asks every room what it needs of this machine.
func Check(dataDir, kubeletRootDir string) []check.Finding {
	return slices.Concat(containerd.Check(dataDir), []check.Finding{rootdir.Check(kubeletRootDir)}, network.Check())
}

// Preflight tells whether this machine could join the cluster now, as a server or an agent. It
// changes nothing, there or here, and does not use the token up: whether the token is still good is
// known when it is used. o is completed by it.
func Preflight(ctx context.Context, o *Options, role string, now func() time.Time) ([]check.Finding, error) {
	_, statErr := os.Stat(o.DataDir)
	if err := o.complete(); err != nil {
		return nil, err
	}
	if errors.Is(statErr, os.ErrNotExist) {
		defer os.Remove(o.DataDir) // which was made to be looked at
	}
	return append(Check(o.DataDir, o.KubeletRootDir), enroll.Preflight(ctx, o.enrolling(), role, now)...), nil
}
