package podlogs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/barque/barque/internal/remains"
)

// Dirs are the directories of a node with the logs of its pods.
type Dirs struct {
	Dir     string // an absolute path
	LinkDir string // of links to the logs of containers; none when empty
	// Owner is the root directory of the kubelet. It marks the directories of this kubelet's pods.
	Owner string
}

// PodDir is the directory of the logs of a pod's containers.
func (d *Dirs) PodDir(pod *v1.Pod) string {
	return filepath.Join(d.Dir, pod.Namespace+"_"+pod.Name+"_"+string(pod.UID))
}

// Path is the log file of one container.
func (d *Dirs) Path(pod *v1.Pod, container string, attempt uint32) string {
	return filepath.Join(d.PodDir(pod), PathInPod(container, attempt))
}

// PathInPod is the log file of one container, below the directory of its pod.
func PathInPod(container string, attempt uint32) string {
	return filepath.Join(container, strconv.Itoa(int(attempt))+".log")
}

// ownerFile is in a pod's directory of logs. It names the root directory of the kubelet whose pod
// it is.
const ownerFile = ".kubelet"

// Make makes the directory of a pod's logs.
func (d *Dirs) Make(pod *v1.Pod) error {
	dir := d.PodDir(pod)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return d.own(dir)
}

func (d *Dirs) own(dir string) error {
	return os.WriteFile(filepath.Join(dir, ownerFile), []byte(d.Owner), 0o644)
}

func (d *Dirs) owns(dir string) bool {
	owner, err := os.ReadFile(filepath.Join(dir, ownerFile))
	return err == nil && string(owner) == d.Owner
}

// Adopt links the logs of pods that an earlier version has put elsewhere. Their containers go
// on writing there.
func (d *Dirs) Adopt(from string) error {
	entries, err := os.ReadDir(from)
	if errors.Is(err, fs.ErrNotExist) || from == d.Dir {
		return nil
	}
	if err == nil && len(entries) == 0 {
		return os.Remove(from)
	}
	for _, e := range entries {
		dir := filepath.Join(from, e.Name())
		err = errors.Join(err, d.own(dir))
		if linkErr := os.Symlink(dir, filepath.Join(d.Dir, e.Name())); !errors.Is(linkErr, fs.ErrExist) {
			err = errors.Join(err, linkErr)
		}
	}
	if err != nil {
		return fmt.Errorf("adopt the logs of pods in %s: %w", from, err)
	}
	return nil
}

// Remove removes the logs of a pod.
func (d *Dirs) Remove(pod *v1.Pod) error { return remove(d.PodDir(pod)) }

// remove removes a pod's directory of logs, and the one that it is a link to.
func remove(dir string) error {
	if target, err := os.Readlink(dir); err == nil {
		if err := os.RemoveAll(target); err != nil {
			return err
		}
	}
	return os.RemoveAll(dir)
}

// Pods lists the pods of this kubelet that have a directory of logs.
func (d *Dirs) Pods() ([]types.UID, error) {
	entries, err := os.ReadDir(d.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var uids []types.UID
	for _, e := range entries {
		if at := strings.LastIndexByte(e.Name(), '_'); at >= 0 && d.owns(filepath.Join(d.Dir, e.Name())) {
			uids = append(uids, types.UID(e.Name()[at+1:]))
		}
	}
	return uids, err
}

// RemoveOwn removes the logs of a pod of this kubelet that is known by its UID only.
func (d *Dirs) RemoveOwn(uid types.UID) error {
	dirs, err := filepath.Glob(filepath.Join(d.Dir, "*_"+string(uid)))
	for _, dir := range dirs {
		if d.owns(dir) {
			err = errors.Join(err, remove(dir))
		}
	}
	return err
}

// Remains are the directories of this kubelet's pods. They stay when the kubelet ends.
func (d *Dirs) Remains() []remains.Kind {
	return []remains.Kind{{Name: "logs of pods", Find: func(context.Context) ([]string, error) {
		pods, err := d.Pods()
		var found []string
		for _, uid := range pods {
			dirs, globErr := filepath.Glob(filepath.Join(d.Dir, "*_"+string(uid)))
			found, err = append(found, dirs...), errors.Join(err, globErr)
		}
		return found, err
	}, Remove: func(context.Context) error {
		pods, err := d.Pods()
		for _, uid := range pods {
			err = errors.Join(err, d.RemoveOwn(uid))
		}
		err = errors.Join(err, d.RemoveDeadLinks())
		// They stay while others have logs there.
		_ = os.Remove(d.LinkDir)
		_ = os.Remove(d.Dir)
		return err
	}}}
}

// nameMax is the longest name of a file in ext4.
const nameMax = 255

// Link makes the link to a container's log.
func (d *Dirs) Link(pod *v1.Pod, container, id string, attempt uint32) error {
	if d.LinkDir == "" {
		return nil
	}
	if err := os.MkdirAll(d.LinkDir, 0o755); err != nil {
		return err
	}
	err := os.Symlink(d.Path(pod, container, attempt), filepath.Join(d.LinkDir, linkName(pod, container, id)))
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

// RemoveDeadLinks removes the links that lead to no log below the directories of logs any more.
// Others make links there, too: those of other kubelets lead elsewhere, or to logs that are there.
func (d *Dirs) RemoveDeadLinks() error {
	if d.LinkDir == "" {
		return nil
	}
	entries, err := os.ReadDir(d.LinkDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		link := filepath.Join(d.LinkDir, e.Name())
		target, linkErr := os.Readlink(link)
		if linkErr != nil || !strings.HasPrefix(target, d.Dir+"/") {
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

// RemoveLog removes a container's log, with its rotated files. A file outside of the directories of
// logs stays.
func (d *Dirs) RemoveLog(path string) error {
	if !strings.HasPrefix(path, d.Dir+"/") {
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
