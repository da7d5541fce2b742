package volumes

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/barque/barque/kubelet/volumes/diskusage"
	"github.com/barque/barque/kubelet/volumes/fsgroup"
	"github.com/barque/barque/kubelet/volumes/hostmount"
)

// emptyDirs are directories of the pod's own: on the node's disk, in memory, or of huge pages.
type emptyDirs struct {
	mounts      Mounts
	allocatable func() v1.ResourceList
}

func (emptyDirs) Name() string            { return "kubernetes.io/empty-dir" }
func (emptyDirs) Provides(v *Volume) bool { return v.Source != nil && v.Source.EmptyDir != nil }

// SetUp implements Plugin.
func (p emptyDirs) SetUp(_ context.Context, pod *v1.Pod, v *Volume) (string, time.Time, error) {
	source := v.Source.EmptyDir
	switch {
	case source.Medium == v1.StorageMediumMemory:
		node := p.allocatable()
		if err := os.MkdirAll(v.Dir, 0o750); err != nil {
			return "", time.Time{}, err
		}
		return v.Dir, time.Time{},
			p.mounts.Tmpfs(v.Dir, memoryLimit(pod, source.SizeLimit, node.Memory().Value()), rootFor(pod))
	case source.Medium == v1.StorageMediumHugePages ||
		strings.HasPrefix(string(source.Medium), v1.ResourceHugePagesPrefix):
		size, err := pageSize(pod, source.Medium)
		if err != nil {
			return "", time.Time{}, err
		}
		if err := os.MkdirAll(v.Dir, 0o750); err != nil {
			return "", time.Time{}, err
		}
		return v.Dir, time.Time{}, p.mounts.HugePages(v.Dir, size.Value(), rootFor(pod))
	case source.Medium != v1.StorageMediumDefault:
		return "", time.Time{}, fmt.Errorf("unknown storage medium %q", source.Medium)
	}
	return v.Dir, time.Time{}, onDisk(pod, v.Dir)
}

func onDisk(pod *v1.Pod, dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil // the pod may have changed its mode
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

// memoryLimit is the limit of a pod's tmpfs: the least of its own limit, the pod's limit of memory,
// and the memory for all pods of the node. 0 leaves the kernel's own: half of the machine's memory.
func memoryLimit(pod *v1.Pod, said *resource.Quantity, node int64) int64 {
	limits := []int64{podMemory(pod), node}
	if said != nil {
		limits = append(limits, said.Value())
	}
	var least int64
	for _, l := range limits {
		if l > 0 && (least == 0 || l < least) {
			least = l
		}
	}
	return least
}

// podMemory is a pod's limit of memory; 0 when some container of it has no limit.
func podMemory(pod *v1.Pod) int64 {
	if r := pod.Spec.Resources; r != nil {
		if q, ok := r.Limits[v1.ResourceMemory]; ok {
			return q.Value()
		}
	}
	var sum, largest, sidecars int64
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		q := c.Resources.Limits.Memory().Value()
		if q == 0 {
			return 0
		}
		if c.RestartPolicy != nil && *c.RestartPolicy == v1.ContainerRestartPolicyAlways {
			sidecars += q
			q = 0
		}
		largest = max(largest, sidecars+q)
	}
	for i := range pod.Spec.Containers {
		q := pod.Spec.Containers[i].Resources.Limits.Memory().Value()
		if q == 0 {
			return 0
		}
		sum += q
	}
	return max(largest, sum+sidecars)
}

// pageSize returns the size of the medium's huge pages, or the only one that the pod requests.
func pageSize(pod *v1.Pod, medium v1.StorageMedium) (resource.Quantity, error) {
	asked := map[string]resource.Quantity{}
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			for name := range list[i].Resources.Requests {
				if text, ok := strings.CutPrefix(string(name), v1.ResourceHugePagesPrefix); ok {
					size, err := resource.ParseQuantity(text)
					if err != nil {
						return resource.Quantity{}, fmt.Errorf("size of huge pages %q: %w", name, err)
					}
					asked[size.String()] = size
				}
			}
		}
	}
	if text, ok := strings.CutPrefix(string(medium), v1.ResourceHugePagesPrefix); ok {
		size, err := resource.ParseQuantity(text)
		if err != nil {
			return resource.Quantity{}, fmt.Errorf("storage medium %q: %w", medium, err)
		}
		if _, ok := asked[size.String()]; !ok {
			return resource.Quantity{},
				fmt.Errorf("medium %q: no container of the pod asks for such huge pages", medium)
		}
		return size, nil
	}
	if len(asked) != 1 {
		return resource.Quantity{},
			fmt.Errorf("medium %q: containers of the pod ask for %d sizes of huge pages; name the size in the medium",
				medium, len(asked))
	}
	for _, size := range asked {
		return size, nil
	}
	panic("unreachable")
}

// TearDown implements Plugin.
func (p emptyDirs) TearDown(v *Volume) error { return p.mounts.Unmount(v.Dir) }

// Usage implements Plugin.
func (emptyDirs) Usage(ctx context.Context, v *Volume, path string) (*diskusage.Usage, error) {
	if v.Source.EmptyDir.Medium != v1.StorageMediumDefault {
		return diskusage.FileSystem(path)
	}
	return diskusage.Walk(ctx, path)
}

// rootFor returns a root directory that all processes of the pod may write to.
func rootFor(pod *v1.Pod) hostmount.Root {
	root := hostmount.Root{Mode: 0o777, Group: fsgroup.Of(pod)}
	if root.Group != nil {
		root.Mode |= fs.ModeSetgid
	}
	return root
}

// openToPod lets all processes of the pod write to dir.
func openToPod(pod *v1.Pod, dir string) error {
	root := rootFor(pod)
	if root.Group != nil {
		if err := os.Chown(dir, -1, int(*root.Group)); err != nil {
			return err
		}
	}
	return os.Chmod(dir, root.Mode)
}
