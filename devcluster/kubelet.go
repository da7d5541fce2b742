package devcluster

import (
	"path/filepath"

	"github.com/barque/barque/internal/atomicfile"
)

// kubeletConfig has the settings of dev nodes. Their disk is shared with the rest of the machine,
// so its use must neither evict pods nor remove images. Eviction has no thresholds for disks and
// inodes, and the threshold for images is 100 %. kind does the same.
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
