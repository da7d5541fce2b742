package containerd

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path/filepath"

	"github.com/barque/barque/kubelet/exits"
)

// layout names every file of a supervised containerd. All of them follow from the node's data
// directory, so that Purge finds the files of a Supervisor of an earlier process.
type layout struct {
	dataDir string // absolute
	dir     string // dataDir/containerd
}

// maxSocketPath is the longest path that fits into sockaddr_un with its final NUL.
const maxSocketPath = 107

func newLayout(dataDir string) (layout, error) {
	absolute, err := filepath.Abs(dataDir)
	if err != nil {
		return layout{}, fmt.Errorf("data directory %q: %w", dataDir, err)
	}
	if absolute == "/" {
		return layout{}, fmt.Errorf("data directory %q: the root directory cannot be one", dataDir)
	}
	return layout{dataDir: absolute, dir: filepath.Join(absolute, "containerd")}, nil
}

// check reports whether a containerd can run there. Without that, there may still be
// something to purge.
func (l layout) check() error {
	if n := len(l.ttrpcSocket()); n > maxSocketPath {
		return fmt.Errorf(
			"data directory %s: its path is %d characters too long for containerd's socket; use a shorter one",
			l.dataDir, n-maxSocketPath)
	}
	return nil
}

// CheckDataDir returns why a node with the data directory could not run a containerd of its own:
// because its path is too long, or is the root. It touches nothing.
func CheckDataDir(dataDir string) error {
	l, err := newLayout(dataDir)
	if err != nil {
		return err
	}
	return l.check()
}

func (l layout) socket() string      { return filepath.Join(l.dir, "containerd.sock") }
func (l layout) ttrpcSocket() string { return l.socket() + ".ttrpc" }
func (l layout) config() string      { return filepath.Join(l.dir, "config.toml") }
func (l layout) log() string         { return filepath.Join(l.dir, "containerd.log") }
func (l layout) bin() string         { return filepath.Join(l.dir, "bin") }

// images has tars of images to import at each start. Users put them there.
func (l layout) images() string { return filepath.Join(l.dataDir, "images") }

// root has the files that survive a reboot: images, snapshots, metadata.
func (l layout) root() string { return filepath.Join(l.dir, "root") }

// state has the files that do not: running tasks, their mounts, pipes and pids.
func (l layout) state() string { return filepath.Join(l.dir, "state") }

// exits has the records of how containers ended.
func (l layout) exits() exits.Dir { return exits.Dir(filepath.Join(l.dir, "exits")) }

// cniBins are where CNI plugins are: ours, and those that another network brings along.
func (l layout) cniBins() []string { return []string{l.bin(), "/opt/cni/bin"} }

func (l layout) cniConf() string    { return filepath.Join(l.dir, "cni") }
func (l layout) registries() string { return filepath.Join(l.dataDir, "registries") }

// CNIConfDir is the default directory of the CNI configuration of a node with that data directory.
func CNIConfDir(dataDir string) string {
	return layout{dir: filepath.Join(dataDir, "containerd")}.cniConf()
}

// shimSockets is the one directory outside the data directory: containerd wants
// a short path (42 characters) for it. The name is made from the data
// directory, so that several nodes on one machine do not meet.
func (l layout) shimSockets() string {
	sum := sha256.Sum256([]byte(l.dataDir))
	return filepath.Join("/run/barque", hex.EncodeToString(sum[:6]))
}
