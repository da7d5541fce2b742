package pods

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/barque/barque/kubelet/cri"
)

// The logs of pods have upstream's paths, for collectors:
//
//	LOGDIR/<namespace>_<name>_<uid>/<container>/<attempt>.log     LOGDIR is /var/log/pods
//	LINKDIR/<name>_<namespace>_<container>-<id>.log               a link to it; LINKDIR is /var/log/containers
//
// Several kubelets of one machine may share LOGDIR. Each marks the directories of its own pods, and
// cleans up no others.

// ownerFile is in a pod's directory of logs. It names the root directory of the kubelet whose pod
// it is.
const ownerFile = ".kubelet"

// makeLogDir makes the directory of a pod's logs.
func (k *Kit) makeLogDir(pod *v1.Pod) error {
	dir := k.PodLogDir(pod)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return k.own(dir)
}

func (k *Kit) own(dir string) error {
	return os.WriteFile(filepath.Join(dir, ownerFile), []byte(k.Owner), 0o644)
}

func (k *Kit) owns(dir string) bool {
	owner, err := os.ReadFile(filepath.Join(dir, ownerFile))
	return err == nil && string(owner) == k.Owner
}

// AdoptLogs links the logs of pods that an earlier version has put elsewhere. Their containers go
// on writing there.
func (k *Kit) AdoptLogs(from string) error {
	entries, err := os.ReadDir(from)
	if errors.Is(err, fs.ErrNotExist) || from == k.LogDir {
		return nil
	}
	if err == nil && len(entries) == 0 {
		return os.Remove(from)
	}
	for _, e := range entries {
		dir := filepath.Join(from, e.Name())
		err = errors.Join(err, k.own(dir))
		if linkErr := os.Symlink(dir, filepath.Join(k.LogDir, e.Name())); !errors.Is(linkErr, fs.ErrExist) {
			err = errors.Join(err, linkErr)
		}
	}
	if err != nil {
		return fmt.Errorf("adopt the logs of pods in %s: %w", from, err)
	}
	return nil
}

// removeLogDir removes a pod's directory of logs, and the one that it is a link to.
func removeLogDir(dir string) error {
	if target, err := os.Readlink(dir); err == nil {
		if err := os.RemoveAll(target); err != nil {
			return err
		}
	}
	return os.RemoveAll(dir)
}

// loggedPods lists the pods of this kubelet that have a directory of logs.
func (m *Manager) loggedPods() ([]types.UID, error) {
	entries, err := os.ReadDir(m.Kit.LogDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var uids []types.UID
	for _, e := range entries {
		if at := strings.LastIndexByte(e.Name(), '_'); at >= 0 && m.Kit.owns(filepath.Join(m.Kit.LogDir, e.Name())) {
			uids = append(uids, types.UID(e.Name()[at+1:]))
		}
	}
	return uids, err
}

func (m *Manager) removeLogs(uid types.UID) error {
	dirs, err := filepath.Glob(filepath.Join(m.Kit.LogDir, "*_"+string(uid)))
	for _, dir := range dirs {
		if m.Kit.owns(dir) {
			err = errors.Join(err, removeLogDir(dir))
		}
	}
	return err
}

// nameMax is the longest name of a file in ext4.
const nameMax = 255

// linkLog makes the link to a container's log.
func (k *Kit) linkLog(pod *v1.Pod, container, id string, attempt uint32) error {
	if k.LogLinkDir == "" {
		return nil
	}
	if err := os.MkdirAll(k.LogLinkDir, 0o755); err != nil {
		return err
	}
	err := os.Symlink(k.LogPath(pod, container, attempt), filepath.Join(k.LogLinkDir, linkName(pod, container, id)))
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

func linkName(pod *v1.Pod, container, id string) string {
	const suffix = ".log"
	name := fmt.Sprintf("%s_%s_%s-%s", pod.Name, pod.Namespace, container, id)
	return name[:min(len(name), nameMax-len(suffix))] + suffix
}

// removeLinks removes the links that lead to no log below the directories of logs any more. Others
// make links there, too: those of other kubelets lead elsewhere, or to logs that are there.
func (m *Manager) removeLinks() error {
	if m.Kit.LogLinkDir == "" {
		return nil
	}
	entries, err := os.ReadDir(m.Kit.LogLinkDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		link := filepath.Join(m.Kit.LogLinkDir, e.Name())
		target, linkErr := os.Readlink(link)
		if linkErr != nil || !strings.HasPrefix(target, m.Kit.LogDir+"/") {
			continue
		}
		if _, missing := os.Stat(target); errors.Is(missing, fs.ErrNotExist) {
			if gone := os.Remove(link); !errors.Is(gone, fs.ErrNotExist) {
				err = errors.Join(err, gone)
			}
		}
	}
	return err
}

// removeContainer removes a container that has ended, and its logs.
func (m *Manager) removeContainer(ctx context.Context, id string) error {
	path := ""
	if status, err := m.Runtime.ContainerStatus(ctx, id); err == nil {
		path = status.LogPath
	}
	if err := m.Runtime.RemoveContainer(ctx, id); err != nil {
		return fmt.Errorf("remove container %s: %s", id, cri.Message(err))
	}
	if !strings.HasPrefix(path, m.Kit.LogDir+"/") {
		return nil
	}
	files, err := filepath.Glob(path + "*") // those that were rotated are beside it
	for _, file := range files {
		if gone := os.Remove(file); !errors.Is(gone, fs.ErrNotExist) {
			err = errors.Join(err, gone)
		}
	}
	return err
}
