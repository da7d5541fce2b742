// Package rootdir selects a kubelet's directory of pods' volumes and plugins' sockets, and ensures
// that no two kubelets use one directory: each would remove the pods of the other.
//
// A directory has the file Owner with the data directory of its node.
package rootdir

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"

	"github.com/barque/barque/internal/atomicfile"
	"github.com/barque/barque/internal/check"
	"github.com/barque/barque/internal/filelock"
)

// Default is where CSI drivers and other plugins expect a kubelet's files.
const Default = "/var/lib/kubelet"

// Owner is the file that names the owner of a directory.
const Owner = "barque-node"

// former is the directory of nodes' pods before Default.
func former(dataDir string) string { return filepath.Join(dataDir, "kubelet") }

// Choose returns the directory of a node that names none. While pods of the node have volumes in
// the former directory, it is that one.
func Choose(dataDir string) (dir string, stays bool, err error) {
	has, err := hasPods(former(dataDir))
	if has || err != nil {
		return former(dataDir), has, err
	}
	return Default, false, nil
}

// Complete returns the directory of a node, for which named may be empty. It refuses a directory
// other than the one with volumes of the node's pods. The notice, if any, is for the operator.
func Complete(dataDir, named string) (dir, notice string, err error) {
	if dataDir, err = filepath.Abs(dataDir); err != nil {
		return "", "", err
	}
	dir, stays, err := Choose(dataDir)
	if err != nil {
		return "", "", fmt.Errorf("directory of the kubelet: %w", err)
	}
	if named == "" {
		if stays {
			notice = fmt.Sprintf("pods of this node have their volumes in %s: that stays the kubelet's directory. "+
				"CSI drivers expect %s; to move there, end all pods of the node and restart it.", dir, Default)
		}
		return dir, notice, nil
	}
	if named, err = filepath.Abs(named); err != nil {
		return "", "", err
	}
	if stays && named != dir {
		return "", "",
			fmt.Errorf(
				"pods of this node have their volumes in %s: start it without --kubelet-root-dir, end all its pods, and give %s then", dir, named)
	}
	return named, "", nil
}

func hasPods(dir string) (bool, error) {
	entries, err := os.ReadDir(filepath.Join(dir, "pods"))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return len(entries) > 0, err
}

// lockWait bounds a start's wait for an earlier process, which may be about to end.
const lockWait = 5 * time.Second

// Claim makes a directory that of a node, until the file is closed or the process ends. It refuses
// one in which another kubelet runs or has left pods.
func Claim(ctx context.Context, dir, dataDir string) (*os.File, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("directory of the kubelet: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	lock, err := filelock.Acquire(ctx, filepath.Join(dir, Owner+".lock"))
	if errors.Is(err, filelock.ErrHeld) {
		return nil,
			fmt.Errorf(
				"%s is the directory of another kubelet that runs: give each node one of its own with --kubelet-root-dir", dir)
	}
	if err != nil {
		return nil, fmt.Errorf("directory of the kubelet: %w", err)
	}
	if err := own(dir, dataDir); err != nil {
		return nil, errors.Join(err, lock.Close())
	}
	return lock, nil
}

func own(dir, dataDir string) error {
	path := filepath.Join(dir, Owner)
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	owner := strings.TrimSuffix(string(text), "\n")
	if owner == dataDir {
		return nil
	}
	has, err := hasPods(dir)
	switch {
	case err != nil:
		return err
	case has && owner != "":
		return fmt.Errorf(
			"%s has pods of the node with the data directory %s: stop them and empty %s, or give this node a directory of its own with --kubelet-root-dir",
			dir, owner, filepath.Join(dir, "pods"))
	case has && dir != former(dataDir):
		return fmt.Errorf(
			"%s has pods of another kubelet: stop them and empty %s, or give this node a directory of its own with --kubelet-root-dir",
			dir, filepath.Join(dir, "pods"))
	}
	return atomicfile.Write(path, []byte(dataDir+"\n"), 0o644)
}

// Check reports whether mounts of CSI drivers below a directory, which need not exist yet, reach
// the host and other pods.
func Check(dir string) check.Finding {
	mounts, err := mountinfo.GetMounts(nil)
	if err != nil {
		return check.Failed("mount propagation", err.Error(), "mount /proc")
	}
	return propagation(mounts, dir)
}

// propagation is Check of the given mounts.
func propagation(mounts []*mountinfo.Info, dir string) check.Finding {
	const name = "mount propagation"
	at := mountOf(mounts, dir)
	if at == nil || isShared(at) {
		return check.Passed(name, "mounts below "+dir+" are shared")
	}
	return check.Doubtful(name,
		"mounts below "+dir+" are private: mounts of CSI drivers reach neither the host nor other pods",
		fmt.Sprintf("before CSI drivers are installed, and at each boot: mount --make-rshared %s", at.Mountpoint))
}

// mountOf returns the mount that a path is on: the longest one above it, and of several
// there the last.
func mountOf(mounts []*mountinfo.Info, path string) *mountinfo.Info {
	var at *mountinfo.Info
	for _, m := range mounts {
		above := m.Mountpoint == "/" || path == m.Mountpoint || strings.HasPrefix(path, m.Mountpoint+"/")
		if above && (at == nil || len(m.Mountpoint) >= len(at.Mountpoint)) {
			at = m
		}
	}
	return at
}

func isShared(m *mountinfo.Info) bool {
	return slices.ContainsFunc(strings.Fields(m.Optional),
		func(o string) bool { return strings.HasPrefix(o, "shared:") })
}
