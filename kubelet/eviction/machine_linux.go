package eviction

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/barque/barque/kubelet/cri"
	"github.com/barque/barque/kubelet/usage"
	"github.com/barque/barque/kubelet/volumes/diskusage"
)

// Runtime returns the runtime's image file systems.
type Runtime interface {
	ImageFsInfo(ctx context.Context) (*runtimeapi.ImageFsInfoResponse, error)
}

// Usage measures pods; see package usage.
type Usage interface {
	Pods(ctx context.Context) ([]*usage.Pod, error)
	AddLayers(ctx context.Context, pods []*usage.Pod, allowed time.Duration) error
}

// layersAge is how old the size of a writable layer may be: the runtime measures layers as often.
const layersAge = 10 * time.Second

// Machine measures this machine.
type Machine struct {
	Runtime Runtime
	Usage   Usage
	RootDir string // of the kubelet: nodefs
	// PodDir has the volumes of a pod, LogDir its logs.
	PodDir func(uid types.UID) string
	LogDir func(pod *v1.Pod) string
}

var _ Measure = (*Machine)(nil)

// Node implements Measure. Available memory is the kernel's estimate of memory without swapping.
func (m *Machine) Node(ctx context.Context) (map[Signal]Observation, error) {
	seen := map[Signal]Observation{}
	var errs []error
	if all, free, err := memory(); err != nil {
		errs = append(errs, err)
	} else {
		seen[MemoryAvailable] = Observation{Available: free, Capacity: all}
	}
	if space, inodes, err := fileSystem(m.RootDir); err != nil {
		errs = append(errs, err)
	} else {
		seen[NodeFsAvailable], seen[NodeFsInodesFree] = space, inodes
	}
	if dir, err := m.imageDir(ctx); err != nil {
		errs = append(errs, err)
	} else if space, inodes, err := fileSystem(dir); err != nil {
		errs = append(errs, err)
	} else {
		seen[ImageFsAvailable], seen[ImageFsInodesFree] = space, inodes
	}
	if running, most, err := tasks(); err != nil {
		errs = append(errs, err)
	} else {
		seen[PIDAvailable] = Observation{Available: most - running, Capacity: most}
	}
	// A file system without a fixed number of inodes reports none.
	for _, s := range []Signal{NodeFsInodesFree, ImageFsInodesFree} {
		if seen[s].Capacity == 0 {
			delete(seen, s)
		}
	}
	if len(seen) == 0 {
		return nil, errors.Join(errs...)
	}
	return seen, nil // known signals count; a runtime that is away makes the node not ready anyway
}

// imageDir is where the runtime keeps its images.
func (m *Machine) imageDir(ctx context.Context) (string, error) {
	info, err := m.Runtime.ImageFsInfo(ctx)
	if err != nil {
		return "", fmt.Errorf("ask the runtime where images are: %s", cri.Message(err))
	}
	for _, f := range info.ImageFilesystems {
		if dir := f.GetFsId().GetMountpoint(); dir != "" {
			return dir, nil
		}
	}
	return "", errors.New("the runtime does not tell where images are")
}

// OneDisk implements Measure.
func (m *Machine) OneDisk(ctx context.Context) bool {
	dir, err := m.imageDir(ctx)
	if err != nil {
		return false
	}
	var a, b unix.Stat_t
	return unix.Stat(dir, &a) == nil && unix.Stat(m.RootDir, &b) == nil && a.Dev == b.Dev
}

// Pods implements Measure.
func (m *Machine) Pods(ctx context.Context, pods []*v1.Pod, disk func(*v1.Pod) bool) (map[types.UID]Use, error) {
	measured, err := m.Usage.Pods(ctx)
	if measured == nil && err != nil {
		return nil, fmt.Errorf("measure pods: %s", cri.Message(err))
	}
	errs := []error{err}
	if slices.ContainsFunc(pods, disk) {
		errs = append(errs, m.Usage.AddLayers(ctx, measured, layersAge))
	}
	uses := map[types.UID]Use{}
	for _, pod := range measured {
		uses[pod.UID] = useOf(pod)
	}
	for _, pod := range pods {
		if !disk(pod) {
			continue
		}
		use := uses[pod.UID]
		if err := m.addDisk(ctx, pod, &use); err != nil {
			errs = append(errs, err)
		}
		uses[pod.UID] = use
		if ctx.Err() != nil {
			break
		}
	}
	return uses, errors.Join(errs...)
}

// useOf returns a pod's use by its control groups and layers. Ended containers keep their layers.
func useOf(pod *usage.Pod) Use {
	use := Use{Memory: workingSet(pod.Figures)}
	if pod.Tasks != nil {
		use.Processes = int64(*pod.Tasks)
	}
	for _, c := range pod.Containers {
		of := ContainerUse{Name: c.Name, Memory: workingSet(c.Figures)}
		if c.Layer != nil {
			of.Disk, of.Inodes = int64(c.Layer.Bytes), int64(c.Layer.Inodes)
		}
		use.Containers = append(use.Containers, of)
	}
	return use
}

func workingSet(f usage.Figures) int64 {
	if f.Memory == nil {
		return 0
	}
	return int64(f.Memory.WorkingSet)
}

// addDisk adds logs and volumes to a pod's use, also when it cannot measure all of them.
func (m *Machine) addDisk(ctx context.Context, pod *v1.Pod, use *Use) error {
	var errs []error
	logged := map[string]bool{}
	for i := range use.Containers {
		c := &use.Containers[i]
		if logged[c.Name] {
			continue // all containers of a name, from restart to restart, share a directory
		}
		logged[c.Name] = true
		bytes, inodes, err := diskusage.Sum(ctx, filepath.Join(m.LogDir(pod), c.Name))
		errs = append(errs, err)
		c.Disk, c.Inodes = c.Disk+int64(bytes), c.Inodes+int64(inodes)
	}
	use.Volumes = map[string]int64{}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.EmptyDir == nil || v.EmptyDir.Medium == v1.StorageMediumMemory {
			continue // others are small, or not of this disk
		}
		bytes, inodes, err := diskusage.Sum(ctx,
			filepath.Join(m.PodDir(pod.UID), "volumes", "kubernetes.io~empty-dir", v.Name))
		errs = append(errs, err)
		use.Volumes[v.Name] = int64(bytes)
		use.VolumeInodes += int64(inodes)
	}
	return errors.Join(errs...)
}

func fileSystem(dir string) (space, inodes Observation, err error) {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return space, inodes, &os.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return Observation{int64(s.Bavail) * s.Bsize, int64(s.Blocks) * s.Bsize},
		Observation{int64(s.Ffree), int64(s.Files)}, nil
}

// memory returns the machine's memory and its available part, in bytes.
func memory() (all, available int64, err error) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	amounts := map[string]int64{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if fields := strings.Fields(lines.Text()); len(fields) >= 2 {
			if kib, err := strconv.ParseInt(fields[1], 10, 64); err == nil {
				amounts[strings.TrimSuffix(fields[0], ":")] = kib << 10
			}
		}
	}
	if amounts["MemTotal"] == 0 {
		return 0, 0, errors.New("/proc/meminfo has no line MemTotal")
	}
	return amounts["MemTotal"], amounts["MemAvailable"], nil
}

// tasks returns the machine's number of tasks and its maximum.
func tasks() (running, most int64, err error) {
	number := func(path string) (int64, error) {
		raw, err := os.ReadFile(path)
		if err != nil {
			return 0, err
		}
		return strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
	}
	raw, err := os.ReadFile("/proc/loadavg") // 0.20 0.18 0.12 1/80 11206
	if err != nil {
		return 0, 0, err
	}
	fields := strings.Fields(string(raw))
	if len(fields) < 4 {
		return 0, 0, fmt.Errorf("/proc/loadavg has %d fields", len(fields))
	}
	_, total, _ := strings.Cut(fields[3], "/")
	if running, err = strconv.ParseInt(total, 10, 64); err != nil {
		return 0, 0, fmt.Errorf("/proc/loadavg: %w", err)
	}
	pids, err := number("/proc/sys/kernel/pid_max")
	if err != nil {
		return 0, 0, err
	}
	threads, err := number("/proc/sys/kernel/threads-max")
	return running, min(pids, threads), err
}
