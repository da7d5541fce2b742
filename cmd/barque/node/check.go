package node

import (
	"github.com/barque/barque/internal/check"
	"github.com/barque/barque/kubelet/containerd"
	"github.com/barque/barque/network"
)

// Check asks every room what it needs of this machine.
func Check(dataDir string) []check.Finding {
	return append(containerd.Check(dataDir), network.Check()...)
}
