package worker

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/barque/barque/edge/redirect"
	"github.com/barque/barque/internal/atomicfile"
	"github.com/barque/barque/internal/remains"
	kubeletconfig "github.com/barque/barque/kubelet/config"
	"github.com/barque/barque/kubelet/containerd"
	"github.com/barque/barque/kubelet/cri"
	"github.com/barque/barque/kubelet/pods/podlogs"
	"github.com/barque/barque/kubelet/rootdir"
	"github.com/barque/barque/kubelet/shutdown"
	"github.com/barque/barque/kubelet/volumes/hostmount"
	"github.com/barque/barque/network"
)

// places are where a node has things outside of its data directory. The node writes them down
// before it makes anything there, so that they are found when its settings have changed or are
// lost.
type places struct {
	CgroupRoot     string `json:"cgroupRoot"`
	KubeletRootDir string `json:"kubeletRootDir"`
	PodLogsDir     string `json:"podLogsDir"`
	CNIConfDir     string `json:"cniConfDir"`
	VolumesDir     string `json:"volumesDir"`
	Runtime        string `json:"runtime,omitempty"` // the socket of one that is not Barque's
}

// PlacesFile is the file in the data directory with the places where the node has things.
const PlacesFile = "places.json"

func placesFile(dataDir string) string { return filepath.Join(dataDir, PlacesFile) }

// notePlaces writes the places down, if they are news.
func notePlaces(dataDir string, p places) error {
	data, err := json.MarshalIndent(p, "", "  ")
	if err != nil {
		return err
	}
	data = append(data, '\n')
	path := placesFile(dataDir)
	if is, err := os.ReadFile(path); err == nil && string(is) == string(data) {
		return nil
	}
	if err := atomicfile.Write(path, data, 0o600); err != nil {
		return fmt.Errorf("write down what is to be removed with this node: %w", err)
	}
	return nil
}

// placesOf reads them. A node of a version that wrote none had its defaults.
func placesOf(dataDir, name string) (places, error) {
	kubeletDir, _, err := rootdir.Choose(dataDir)
	if err != nil {
		return places{}, err
	}
	p := places{KubeletRootDir: kubeletDir, PodLogsDir: kubeletconfig.Default().PodLogsDir,
		CNIConfDir: containerd.CNIConfDir(dataDir)}
	if name != "" {
		p.CgroupRoot = "/barque/" + name
	}
	data, err := os.ReadFile(placesFile(dataDir))
	if errors.Is(err, fs.ErrNotExist) {
		return p, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &p)
	}
	if err != nil {
		return p, fmt.Errorf("%s: %w", placesFile(dataDir), err)
	}
	return p, nil
}

// Left has the things that a node leaves on its machine when its process has ended.
type Left struct {
	// Kinds are in the order of their removal. Logs, which are data, come last.
	Kinds, Logs []remains.Kind
	// Data are the directories with the node's data, beside its data directory. Others are the
	// user's own, of which the node has only a part.
	Data, Others []string
}

// Remains collects from all rooms the things that a node has left on this machine.
func Remains(dataDir, name string) (Left, error) {
	var left Left
	p, err := placesOf(dataDir, name)
	if err != nil {
		return left, err
	}
	cgroup := p.CgroupRoot
	if cgroup != "" && len(ownParents(cgroup)) == 0 { // the user's, in which others may be
		cgroup = filepath.Join(cgroup, "kubepods")
	}
	pods, err := containerd.Remains(dataDir, cgroup)
	if err != nil {
		return left, err
	}
	own, err := rootdir.IsOf(p.KubeletRootDir, dataDir)
	if err != nil {
		return left, err
	}
	if p.Runtime != "" && own {
		left.Kinds = append(left.Kinds, cri.Remains(p.Runtime))
	}
	left.Kinds = append(left.Kinds, pods...)
	if own {
		left.Kinds = append(left.Kinds, rootdir.Remains(p.KubeletRootDir, hostmount.Mounter{}.Release)...)
		left.Data = append(left.Data, p.KubeletRootDir)
	}
	ownCNI := strings.HasPrefix(p.CNIConfDir, dataDir+"/")
	left.Kinds = slices.Concat(left.Kinds, network.Remains(p.CNIConfDir, ownCNI, network.SettingsFile(dataDir)),
		redirect.Remains(), shutdown.Remains())
	logs := podlogs.Dirs{Dir: p.PodLogsDir, LinkDir: linksBeside(p.PodLogsDir), Owner: p.KubeletRootDir}
	left.Logs = logs.Remains()
	if p.VolumesDir != "" && !strings.HasPrefix(p.VolumesDir, dataDir+"/") {
		left.Others = append(left.Others, p.VolumesDir)
	}
	return left, nil
}

// linksBeside is the directory of links to the logs of containers.
func linksBeside(podLogs string) string { return filepath.Join(filepath.Dir(podLogs), "containers") }

// places are those of this node.
func (w *Worker) places(cniDir string) places {
	o := w.Options
	return places{CgroupRoot: o.CgroupRoot, KubeletRootDir: o.KubeletRootDir,
		PodLogsDir: w.kubeletSettings().PodLogsDir, CNIConfDir: cniDir,
		VolumesDir: o.VolumesDir, Runtime: o.ContainerRuntimeEndpoint}
}
