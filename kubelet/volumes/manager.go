// Package volumes provides the files and devices that pods mount, by one Plugin for each kind:
// emptyDir, configMap, secret, downwardAPI, projected (with service-account tokens, trust bundles
// and certificates of the pod), hostPath, image, local and NFS. A claim, of the pod or made for it,
// is provided by the plugin of the volume that it is bound to.
//
// It owns <root>/pods/<uid>/volumes, volumeDevices, volume-subpaths and claims, <root>/plugins, and
// all mounts below. Invariants: Secrets, tokens and keys are on a tmpfs and never on a disk; a
// volume made of API data changes all its files at once (see package atomicdir); nothing of a pod
// is left after Unmount, which may be called any number of times, also for a pod that this process
// has never seen; the data of a persistent volume is never removed here (see package localdirs for
// the exception, which the cluster must ask for).
//
// It does not decide when pods start or end.
package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/moby/sys/mountinfo"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	storagehelpers "k8s.io/component-helpers/storage/volume"

	"github.com/barque/barque/kubelet/volumes/hostmount"
	"github.com/barque/barque/kubelet/volumes/localdirs"
	"github.com/barque/barque/kubelet/volumes/selinux"
)

// Config configures a Manager.
type Config struct {
	// RootDir is the kubelet's directory; pods' files are below RootDir/pods.
	RootDir string
	Objects Objects
	Tokens  Tokens
	Claims  Claims
	// Node returns the API server's Node object of this node, or nil while that is not known:
	// volumes may be on other nodes.
	Node   func() *v1.Node
	Images Images
	// Bundles and Certificates are for projected volumes with such sources.
	Bundles      TrustBundles
	Certificates Certificates
	// Local has the directories of the volumes that this node makes itself. It may be nil.
	Local *localdirs.Dirs
	// Drivers provides the volumes of CSI drivers. It may be nil.
	Drivers Plugin
	// Changed is called when the record of a volume is written or removed. It may be nil.
	Changed func(*Volume)
	Mounts  Mounts // hostmount.Mounter unless given
	// FileLabel is nil where SELinux is off.
	FileLabel selinux.FileLabel
	// Allocatable returns the node's allocatable resources, for limits that are not set.
	Allocatable func() v1.ResourceList
}

// Manager provides the volumes of a node's pods. Calls for different pods may run at the same time;
// calls for one pod must not.
type Manager struct {
	root, plugins string
	claims        Claims
	node          func() *v1.Node
	mounts        Mounts
	kinds         []Plugin
	forget        []func(types.UID)
	changed       func(*Volume)
	options       func(path string) (string, error) // see mountOptions
	fileLabel     selinux.FileLabel

	mu       sync.Mutex
	resolved map[types.UID]map[string]*resolved
	usage    map[types.UID]*measured
	shared   map[string]*sync.Mutex // of volumes by PV: they are staged and unstaged one at a time
	records  []*Volume              // as the disk has them, unless written is ahead of read
	written  int                    // how often the records were changed
	read     int                    // the count at which they were read; 0 for never
}

// resolved is a volume of a pod whose plugin is known.
type resolved struct {
	*Volume
	plugin Plugin
	path   string // once it is set up; guarded by the manager's lock
}

// New returns a manager. It touches nothing.
func New(config Config) *Manager {
	if config.Mounts == nil {
		config.Mounts = hostmount.Mounter{}
	}
	m := &Manager{
		root: filepath.Join(config.RootDir, "pods"), plugins: filepath.Join(config.RootDir, "plugins"),
		claims: config.Claims, node: config.Node, mounts: config.Mounts, changed: config.Changed, options: mountOptions,
		fileLabel: config.FileLabel,
		resolved:  map[types.UID]map[string]*resolved{}, usage: map[types.UID]*measured{},
		shared: map[string]*sync.Mutex{},
		forget: []func(types.UID){config.Objects.Forget, config.Tokens.Forget, config.Bundles.Forget,
			config.Certificates.Forget},
	}
	data := apiData{
		objects: config.Objects, tokens: config.Tokens, bundles: config.Bundles, certificates: config.Certificates,
		mounts: config.Mounts, allocatable: config.Allocatable,
	}
	m.kinds = []Plugin{
		emptyDirs{config.Mounts, config.Allocatable},
		configMaps{data}, secrets{data}, downwardAPIs{data}, projections{data},
		hostPaths{}, locals{config.Mounts, config.Local}, nfs{config.Mounts}, imageVolumes{config.Images},
	}
	if config.Drivers != nil {
		m.kinds = append(m.kinds, config.Drivers)
	}
	return m
}

// PodDir is the directory of a pod.
func (m *Manager) PodDir(uid types.UID) string { return filepath.Join(m.root, string(uid)) }

// Mount makes all volumes of a pod ready and up to date. It returns the directory, file or device
// on the host of each, and when to call again though nothing has changed: zero for never.
func (m *Manager) Mount(ctx context.Context, pod *v1.Pod) (paths map[string]string, next time.Time, err error) {
	paths = make(map[string]string, len(pod.Spec.Volumes))
	list := make([]*resolved, 0, len(pod.Spec.Volumes))
	for i := range pod.Spec.Volumes {
		r, err := m.resolve(ctx, pod, &pod.Spec.Volumes[i])
		if err != nil {
			return nil, time.Time{}, err
		}
		list = append(list, r)
	}
	for i, r := range list {
		path, again, err := m.setUp(ctx, pod, r)
		if full := (*AttachLimitError)(nil); errors.As(err, &full) {
			return nil, time.Time{}, &AttachLimitError{Err: full.Err, volume: r.Name, unmounted: namesOf(list[i:])}
		}
		if err != nil {
			return nil, time.Time{}, describe(r.Volume, err)
		}
		next = sooner(next, again)
		paths[r.Name] = path
		m.mu.Lock()
		r.path = path
		m.mu.Unlock()
	}
	return paths, next, nil
}

func namesOf(list []*resolved) (names []string) {
	for _, r := range list {
		names = append(names, r.Name)
	}
	return names
}

// stageError is a failure to make a volume ready for the whole node.
type stageError struct{ error }

func (e stageError) Unwrap() error { return e.error }

// Count is the number of volumes of a kind that pods of the node want, and of those that
// are set up.
type Count struct {
	Plugin        string
	Wanted, SetUp int
}

// Counts returns the numbers of volumes, by their kinds.
func (m *Manager) Counts() []Count {
	m.mu.Lock()
	defer m.mu.Unlock()
	byPlugin := map[string]Count{}
	for _, volumes := range m.resolved {
		for _, r := range volumes {
			name := r.plugin.Name()
			c := byPlugin[name]
			c.Plugin = name
			c.Wanted++
			if r.path != "" {
				c.SetUp++
			}
			byPlugin[name] = c
		}
	}
	return slices.Collect(maps.Values(byPlugin))
}

// describe words a failure as upstream's kubelet does.
func describe(v *Volume, err error) error {
	name := v.Name
	if v.PV != nil {
		name = v.PV.Name
	}
	what := "MountVolume.SetUp failed"
	var missing *missingPath
	var staging stageError
	switch {
	case errors.As(err, &missing):
		what = "MountVolume.NewMounter initialization failed"
	case errors.As(err, &staging) && !v.Block():
		what = "MountVolume.MountDevice failed"
	case v.Block():
		what = "MapVolume.SetUpDevice failed"
	}
	return fmt.Errorf("%s for volume %q : %w", what, name, err)
}

// resolve finds the plugin of a volume. An earlier result stays: a pod's volume does not become
// another one.
func (m *Manager) resolve(ctx context.Context, pod *v1.Pod, volume *v1.Volume) (*resolved, error) {
	m.mu.Lock()
	known := m.resolved[pod.UID][volume.Name]
	m.mu.Unlock()
	if known != nil {
		return known, nil
	}
	r, err := m.look(ctx, pod, volume)
	if err != nil {
		return nil, err
	}
	label, labelErr := selinux.MountLabel(m.fileLabel, pod, volume.Name)
	r.Label = func() (string, error) { return label, labelErr }
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.resolved[pod.UID] == nil {
		m.resolved[pod.UID] = map[string]*resolved{}
	}
	m.resolved[pod.UID][volume.Name] = r
	return r, nil
}

func (m *Manager) look(ctx context.Context, pod *v1.Pod, volume *v1.Volume) (*resolved, error) {
	v := &Volume{Name: volume.Name, Source: &volume.VolumeSource}
	claim := claimName(pod, volume)
	if claim == "" {
		plugin := m.pluginFor(v)
		if plugin == nil {
			return nil, unprocessed(volume.Name, errors.New("no volume plugin of this node matches it"))
		}
		m.locate(pod.UID, plugin, v, false)
		if _, ok := plugin.(Stager); ok {
			if err := m.remember(pod.UID, plugin.Name(), v); err != nil {
				return nil, describe(v, err)
			}
		}
		return &resolved{Volume: v, plugin: plugin}, nil
	}
	had, plugin, err := m.reconstruct(pod.UID, volume.Name)
	if err != nil {
		return nil, unprocessed(volume.Name, err)
	}
	if had != nil {
		had.Source = &volume.VolumeSource
		return &resolved{Volume: had, plugin: plugin}, nil
	}
	if v.PV, err = bound(ctx, m.claims, pod, volume); err != nil {
		return nil, unprocessed(volume.Name, err)
	}
	if err := m.checkNode(v.PV); err != nil {
		return nil, fmt.Errorf("MountVolume.NodeAffinity check failed for volume %q : %w", v.PV.Name, err)
	}
	v.Claim = claim
	v.ReadOnly = volume.PersistentVolumeClaim != nil && volume.PersistentVolumeClaim.ReadOnly
	if plugin = m.pluginFor(v); plugin == nil {
		return nil, unprocessed(volume.Name, fmt.Errorf("no volume plugin of this node matches PV %s", v.PV.Name))
	}
	staged := false
	if stager, ok := plugin.(Stager); ok {
		if staged, err = stager.NeedsStaging(v); err != nil {
			return nil, describe(v, err)
		}
	}
	m.locate(pod.UID, plugin, v, staged)
	if err := m.remember(pod.UID, plugin.Name(), v); err != nil {
		return nil, describe(v, err)
	}
	return &resolved{Volume: v, plugin: plugin}, nil
}

// checkNode refuses a volume of other nodes: a directory of the same path would hold other data.
func (m *Manager) checkNode(pv *v1.PersistentVolume) error {
	node := m.node()
	if node == nil {
		return errors.New("the labels of this node are not known yet")
	}
	return storagehelpers.CheckNodeAffinity(pv, node.Labels)
}

// unprocessed is the error of a volume for which nothing could be begun.
func unprocessed(volume string, err error) error {
	//lint:ignore ST1005 upstream's event
	return fmt.Errorf(
		"Unable to attach or mount volumes: unmounted volumes=[%[1]s], unattached volumes=[], failed to process volumes=[%[1]s]: %[2]w", volume, err)
}

func (m *Manager) locate(uid types.UID, plugin Plugin, v *Volume, staged bool) {
	v.Pod = uid
	v.Dir = m.place(uid, plugin.Name(), v)
	v.Lock = func() func() {
		lock := m.lockOf(v.PV.Name)
		lock.Lock()
		return lock.Unlock
	}
	v.Shared = func() (bool, error) { return m.elsewhere(plugin, v) }
	if staged {
		v.Staged = filepath.Join(m.plugins, plugin.(Stager).StagingPlace(v))
	}
}

// elsewhere reports whether the PV of a volume is mounted for another pod. A record proves no
// mount: it is written before the mount.
func (m *Manager) elsewhere(plugin Plugin, v *Volume) (bool, error) {
	uids, err := m.Pods()
	if err != nil {
		return false, err
	}
	for _, uid := range uids {
		place := m.place(uid, plugin.Name(), v)
		if place == v.Dir {
			continue
		}
		if mounted, err := m.mounts.Mounted(place); err != nil || mounted {
			return mounted, err
		}
	}
	return false, nil
}

func (m *Manager) pluginFor(v *Volume) Plugin {
	for _, p := range m.kinds {
		if p.Provides(v) {
			return p
		}
	}
	return nil
}

func (m *Manager) named(name string) Plugin {
	for _, p := range m.kinds {
		if p.Name() == name {
			return p
		}
	}
	return nil
}

func (m *Manager) setUp(ctx context.Context, pod *v1.Pod, r *resolved) (string, time.Time, error) {
	if r.Staged != "" {
		lock := m.lockOf(r.PV.Name)
		lock.Lock()
		err := r.plugin.(Stager).Stage(ctx, r.Volume)
		lock.Unlock()
		if err != nil {
			return "", time.Time{}, stageError{err}
		}
	}
	return r.plugin.SetUp(ctx, pod, r.Volume)
}

// lockOf returns the lock of the pods that share a PV. There are few PVs in the life of a process:
// locks stay.
func (m *Manager) lockOf(pv string) *sync.Mutex {
	m.mu.Lock()
	defer m.mu.Unlock()
	lock := m.shared[pv]
	if lock == nil {
		lock = &sync.Mutex{}
		m.shared[pv] = lock
	}
	return lock
}

// SubPath provides one path inside a volume for the index-th mount of a container. The returned
// path keeps its content until the container ends, whatever is done to the volume.
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

// Relabels reports whether the runtime may give a pod's volume the label by which SELinux lets its
// containers use it. It may where the files are the pod's own: not those of the host, of an image
// or of NFS, nor those that are read-only in a claim. A driver's file system must support labels.
func (m *Manager) Relabels(uid types.UID, volume string) bool {
	m.mu.Lock()
	r := m.resolved[uid][volume]
	path := ""
	if r != nil {
		path = r.path
	}
	m.mu.Unlock()
	if r == nil || r.ReadOnly || r.Block() {
		return false
	}
	switch r.plugin.(type) {
	case hostPaths, nfs, imageVolumes:
		return false
	case emptyDirs, configMaps, secrets, downwardAPIs, projections, locals:
		return true
	}
	options, err := m.options(path)
	return err == nil && slices.Contains(strings.Split(options, ","), "seclabel")
}

// mountOptions returns those of the file system that is mounted at a path; none without a mount.
func mountOptions(path string) (string, error) {
	mounts, err := mountinfo.GetMounts(mountinfo.SingleEntryFilter(path))
	if err != nil || len(mounts) == 0 {
		return "", err
	}
	return mounts[len(mounts)-1].VFSOptions, nil
}

// Unmount removes a pod's volumes and everything else in the pod's directory. The data of
// persistent volumes and of hostPath volumes stays.
func (m *Manager) Unmount(uid types.UID) error {
	dir := m.PodDir(uid)
	// The mounts on the volumes go before them.
	if err := m.mounts.Unmount(filepath.Join(dir, "volume-subpaths")); err != nil {
		return err
	}
	volumes, err := m.remembered(uid)
	if err != nil {
		return err
	}
	for _, volume := range volumes {
		if err := m.tearDown(uid, volume); err != nil {
			return fmt.Errorf("UnmountVolume.TearDown failed for volume %q : %w", volume, err)
		}
	}
	// The other volumes have nothing but mounts and files.
	if err := m.mounts.Unmount(dir); err != nil {
		return err
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove the directory of pod %s: %w", uid, err)
	}
	for _, forget := range m.forget {
		forget(uid)
	}
	m.mu.Lock()
	delete(m.resolved, uid)
	if known := m.usage[uid]; known != nil {
		known.stop()
		delete(m.usage, uid)
	}
	m.mu.Unlock()
	return nil
}

// tearDown removes one recorded volume, and unstages it when no pod has it any more.
func (m *Manager) tearDown(uid types.UID, volume string) error {
	v, plugin, err := m.reconstruct(uid, volume)
	if err != nil || v == nil {
		return err
	}
	if err := plugin.TearDown(v); err != nil {
		return err
	}
	// The place must be empty: files in it would be the volume's own, still mounted.
	if err := os.Remove(v.Dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if v.Staged == "" {
		return m.forgetRecord(v)
	}
	lock := m.lockOf(v.PV.Name)
	lock.Lock()
	defer lock.Unlock()
	others, err := m.users(v.PV.Name, uid, volume)
	if err != nil {
		return err
	}
	if others == 0 {
		if err := plugin.(Stager).Unstage(v); err != nil {
			return err
		}
	}
	return m.forgetRecord(v)
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

// sooner is the earlier of two times, of which zero is never.
func sooner(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
