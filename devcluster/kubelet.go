package devcluster

import (
	"path/filepath"

	"github.com/barque/barque/internal/atomicfile"
)

// kubeletConfig is what the nodes of a dev cluster do differently. They share a disk that is mostly
// somebody else's: its owner's other files must neither evict pods nor cost images. The thresholds
// of disks and inodes are off by not being named, that of images at 100 %. kind does the same.
const kubeletConfig = `# The disk is shared with everything else on this machine: how full it is evicts no pods here.
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
evictionHard:
  memory.available: 100Mi
imageGCHighThresholdPercent: 100
`

func (p *Plan) kubeletFile() string { return filepath.Join(p.Dir, "kubelet.yaml") }

func (p *Plan) writeKubeletConfig() error {
	return atomicfile.Write(p.kubeletFile(), []byte(kubeletConfig), 0o600)
}
