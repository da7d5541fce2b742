package options

import (
	"path/filepath"

	"github.com/barque/barque/adminapi/hardening"
	"github.com/barque/barque/kubelet/containerd"
)

// Place is where the files of this node are that hardening is about.
func (o *Options) Place() hardening.Place {
	p := hardening.Place{DataDir: o.DataDir, IPAMDir: filepath.Join(o.DataDir, "ipam"), Kubelet: o.KubeletFiles,
		UnitDirs: hardening.UnitDirs, EnvDir: hardening.EnvDir}
	if !o.OtherNetwork() {
		p.CNIDir = containerd.CNIConfDir(o.DataDir)
	}
	return p
}
