package node

import (
	"bufio"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// Machine is what does not change while the kubelet runs.
type Machine struct {
	CPUs        int
	MemoryBytes int64
	Info        v1.NodeSystemInfo // without the runtime's and the kubelet's versions
}

// Inspect reads what machine this is.
func Inspect() (Machine, error) {
	memory, err := meminfo("MemTotal")
	if err != nil {
		return Machine{}, err
	}
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return Machine{}, fmt.Errorf("uname: %w", err)
	}
	return Machine{
		CPUs:        runtime.NumCPU(),
		MemoryBytes: memory,
		Info: v1.NodeSystemInfo{
			MachineID:       firstLine("/etc/machine-id"),
			SystemUUID:      firstLine("/sys/class/dmi/id/product_uuid", "/etc/machine-id"),
			BootID:          firstLine("/proc/sys/kernel/random/boot_id"),
			KernelVersion:   unix.ByteSliceToString(uts.Release[:]),
			OSImage:         osName(),
			OperatingSystem: runtime.GOOS,
			Architecture:    runtime.GOARCH,
		},
	}, nil
}

// firstLine returns the first line of the first file that has one.
func firstLine(paths ...string) string {
	for _, path := range paths {
		if raw, err := os.ReadFile(path); err == nil {
			if line, _, _ := strings.Cut(string(raw), "\n"); strings.TrimSpace(line) != "" {
				return strings.TrimSpace(line)
			}
		}
	}
	return ""
}

func osName() string {
	raw, err := os.ReadFile("/etc/os-release")
	if err != nil {
		return runtime.GOOS
	}
	for line := range strings.Lines(string(raw)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "PRETTY_NAME="); ok {
			return strings.Trim(name, `"`)
		}
	}
	return runtime.GOOS
}

// meminfo reads one line of /proc/meminfo, in bytes.
func meminfo(name string) (int64, error) {
	f, err := os.Open("/proc/meminfo")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) >= 2 && fields[0] == name+":" {
			kib, err := strconv.ParseInt(fields[1], 10, 64)
			if err != nil {
				return 0, fmt.Errorf("/proc/meminfo: %s: %w", name, err)
			}
			return kib << 10, nil
		}
	}
	return 0, fmt.Errorf("/proc/meminfo has no line %s", name)
}

// disk is the state of a file system.
type disk struct {
	total, free             int64 // bytes
	totalInodes, freeInodes int64
}

func diskOf(path string) (disk, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		return disk{}, &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	return disk{
		total: int64(s.Blocks) * s.Bsize, free: int64(s.Bavail) * s.Bsize,
		totalInodes: int64(s.Files), freeInodes: int64(s.Ffree),
	}, nil
}

// tasks returns how many tasks run on the machine and how many may.
func tasks() (running, most int64, err error) {
	// 0.20 0.18 0.12 1/80 11206
	fields := strings.Fields(firstLine("/proc/loadavg"))
	if len(fields) < 4 {
		return 0, 0, fmt.Errorf("/proc/loadavg: %d fields", len(fields))
	}
	_, total, _ := strings.Cut(fields[3], "/")
	if running, err = strconv.ParseInt(total, 10, 64); err != nil {
		return 0, 0, fmt.Errorf("/proc/loadavg: %w", err)
	}
	if most, err = strconv.ParseInt(firstLine("/proc/sys/kernel/pid_max"), 10, 64); err != nil {
		return 0, 0, fmt.Errorf("pid_max: %w", err)
	}
	threads, err := strconv.ParseInt(firstLine("/proc/sys/kernel/threads-max"), 10, 64)
	if err != nil {
		return 0, 0, fmt.Errorf("threads-max: %w", err)
	}
	return running, min(most, threads), nil
}

// resources returns what the machine has and what of it is for pods.
func resources(m Machine, d disk, maxPods int64, reserved v1.ResourceList) (capacity, allocatable v1.ResourceList) {
	capacity = v1.ResourceList{
		v1.ResourceCPU:              *resource.NewQuantity(int64(m.CPUs), resource.DecimalSI),
		v1.ResourceMemory:           *resource.NewQuantity(m.MemoryBytes, resource.BinarySI),
		v1.ResourceEphemeralStorage: *resource.NewQuantity(d.total, resource.BinarySI),
		v1.ResourcePods:             *resource.NewQuantity(maxPods, resource.DecimalSI),
	}
	allocatable = capacity.DeepCopy()
	for name, q := range reserved {
		have, ok := allocatable[name]
		if !ok {
			continue
		}
		have.Sub(q)
		if have.Sign() < 0 {
			have.Set(0)
		}
		allocatable[name] = have
	}
	return capacity, allocatable
}
