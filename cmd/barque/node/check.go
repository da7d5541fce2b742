package node

import (
	"slices"

	"github.com/barque/barque/internal/check"
	"github.com/barque/barque/kubelet/containerd"
	"github.com/barque/barque/kubelet/rootdir"
	"github.com/barque/barque/network"
)

// Check asks every room what it needs of this machine.
func Check(dataDir, kubeletRootDir string) []check.Finding {
	return slices.Concat(containerd.Check(dataDir), []check.Finding{rootdir.Check(kubeletRootDir)}, network.Check())
}
