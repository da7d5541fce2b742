// Package volumes provides the files that pods mount: emptyDir, configMap, secret, downwardAPI,
// projected (with service-account tokens, trust bundles and certificates of the pod) and hostPath.
//
// It owns <root>/pods/<uid>/volumes and volume-subpaths, and all mounts below. Invariants: what comes
// from a Secret, is a token or a key is on a tmpfs and never on a disk; a volume made of API data changes
// all its files at once (see replace); nothing of a pod is left after Unmount, which may be called
// any number of times, also for a pod that this process has never seen.
//
// It does not decide when pods start or end, and it attaches no network storage.
package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Config is what a Manager needs.
type Config struct {
	// RootDir is the kubelet's directory; pods' files are below RootDir/pods.
	RootDir string
	Objects Objects
	Tokens  Tokens
	// Bundles and Certificates are for projected volumes with such sources.
	Bundles      TrustBundles
	Certificates Certificates
	Mounts       Mounts // HostMounts unless given
	// Allocatable is what the node can give, for limits that are not set.
	Allocatable func() v1.ResourceList
}

// Manager provides the volumes of a node's pods. Calls for different pods may run at the same time;
// calls for one pod must not.
type Manager struct {
	root         string
	objects      Objects
	tokens       Tokens
	bundles      TrustBundles
	certificates Certificates
	mounts       Mounts
	allocatable  func() v1.ResourceList
}

// New returns a manager. It touches nothing.
func New(config Config) *Manager {
	if config.Mounts == nil {
		config.Mounts = HostMounts{}
	}
	return &Manager{
		root: filepath.Join(config.RootDir, "pods"), objects: config.Objects, tokens: config.Tokens,
		bundles: config.Bundles, certificates: config.Certificates,
		mounts: config.Mounts, allocatable: config.Allocatable,
	}
}

// PodDir is the directory of a pod.
func (m *Manager) PodDir(uid types.UID) string { return filepath.Join(m.root, string(uid)) }

// Mount makes all volumes of a pod ready and up to date. It returns the directory (or file) on the
// host of each, and when to call again though nothing has changed: zero for never.
func (m *Manager) Mount(ctx context.Context, pod *v1.Pod) (paths map[string]string, next time.Time, err error) {
	paths = make(map[string]string, len(pod.Spec.Volumes))
	for i := range pod.Spec.Volumes {
		volume := &pod.Spec.Volumes[i]
		path, again, err := m.mount(ctx, pod, volume)
		if err != nil {
			return nil, time.Time{}, fmt.Errorf("MountVolume.SetUp failed for volume %q: %w", volume.Name, err)
		}
		if !again.IsZero() && (next.IsZero() || again.Before(next)) {
			next = again
		}
		paths[volume.Name] = path
	}
	return paths, next, nil
}

func (m *Manager) mount(ctx context.Context, pod *v1.Pod, volume *v1.Volume) (string, time.Time, error) {
	switch {
	case volume.HostPath != nil:
		return volume.HostPath.Path, time.Time{}, ensureHostPath(volume.HostPath)
	case volume.EmptyDir != nil:
		dir := m.dir(pod, "kubernetes.io~empty-dir", volume.Name)
		return dir, time.Time{}, m.emptyDir(pod, volume.EmptyDir, dir)
	case volume.ConfigMap != nil:
		return m.apiVolume(ctx, pod, volume, "kubernetes.io~configmap", false)
	case volume.Secret != nil:
		return m.apiVolume(ctx, pod, volume, "kubernetes.io~secret", true)
	case volume.DownwardAPI != nil:
		return m.apiVolume(ctx, pod, volume, "kubernetes.io~downward-api", false)
	case volume.Projected != nil:
		return m.apiVolume(ctx, pod, volume, "kubernetes.io~projected", true)
	}
	return "", time.Time{}, errors.New("this node does not provide volumes of that kind")
}

func (m *Manager) dir(pod *v1.Pod, plugin, name string) string {
	return filepath.Join(m.PodDir(pod.UID), "volumes", plugin, name)
}

func (m *Manager) apiVolume(ctx context.Context, pod *v1.Pod, volume *v1.Volume, plugin string, secret bool) (string, time.Time, error) {
	payload, next, err := m.payload(ctx, pod, volume)
	if err != nil {
		return "", time.Time{}, err
	}
	dir := m.dir(pod, plugin, volume.Name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", time.Time{}, err
	}
	if secret {
		if err := m.mounts.Tmpfs(dir, 0); err != nil {
			return "", time.Time{}, err
		}
		if err := os.Chmod(dir, 0o755); err != nil {
			return "", time.Time{}, err
		}
	}
	return dir, next, replace(dir, payload, fsGroup(pod))
}

func (m *Manager) emptyDir(pod *v1.Pod, source *v1.EmptyDirVolumeSource, dir string) error {
	if source.Medium == v1.StorageMediumMemory {
		if err := os.MkdirAll(dir, 0o750); err != nil {
			return err
		}
		var size int64
		if source.SizeLimit != nil {
			size = source.SizeLimit.Value()
		}
		if err := m.mounts.Tmpfs(dir, size); err != nil {
			return err
		}
		return openToPod(pod, dir)
	}
	if _, err := os.Stat(dir); err == nil {
		return nil // its mode is the pod's own by now
	}
	// It gets its name when it is complete: a crash leaves no directory that the pod cannot use.
	fresh := dir + ".new"
	if err := os.MkdirAll(fresh, 0o750); err != nil {
		return err
	}
	if err := openToPod(pod, fresh); err != nil {
		return err
	}
	return os.Rename(fresh, dir)
}

// openToPod lets everyone in the pod write to dir.
func openToPod(pod *v1.Pod, dir string) error {
	mode := fs.FileMode(0o777)
	if gid := fsGroup(pod); gid != nil {
		if err := os.Chown(dir, -1, int(*gid)); err != nil {
			return err
		}
		mode |= fs.ModeSetgid
	}
	return os.Chmod(dir, mode)
}

func fsGroup(pod *v1.Pod) *int64 {
	if sc := pod.Spec.SecurityContext; sc != nil {
		return sc.FSGroup
	}
	return nil
}

// SubPath provides one path inside a volume for the index-th mount of a container. The path that is
// returned stays what it is until the container ends, whatever is done to the volume.
func (m *Manager) SubPath(uid types.UID, volume, root, container string, index int, path string) (string, error) {
	if !filepath.IsLocal(path) {
		return "", fmt.Errorf("subPath %q leaves the volume %q", path, volume)
	}
	target := filepath.Join(m.PodDir(uid), "volume-subpaths", volume, container, strconv.Itoa(index))
	if err := m.mounts.BindBelow(root, path, target); err != nil {
		return "", fmt.Errorf("subPath of volume %q: %w", volume, err)
	}
	return target, nil
}

// Unmount takes a pod's volumes away and everything else in the pod's directory. hostPath volumes
// are the host's and stay.
func (m *Manager) Unmount(uid types.UID) error {
	dir := m.PodDir(uid)
	if err := m.mounts.Unmount(dir); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove the directory of pod %s: %w", uid, err)
	}
	m.objects.Forget(uid)
	m.tokens.Forget(uid)
	m.bundles.Forget(uid)
	m.certificates.Forget(uid)
	return nil
}

// Pods lists the pods that have a directory.
func (m *Manager) Pods() ([]types.UID, error) {
	entries, err := os.ReadDir(m.root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	uids := make([]types.UID, 0, len(entries))
	for _, e := range entries {
		uids = append(uids, types.UID(e.Name()))
	}
	return uids, nil
}
