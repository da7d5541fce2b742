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

// Machine has the properties that do not change while the kubelet runs.
type Machine struct {
	CPUs        int
	MemoryBytes int64
	Info        v1.NodeSystemInfo // without the runtime's and the kubelet's versions
}

// Inspect reads the properties of this machine.
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

// AppArmor reports whether the kernel confines processes with AppArmor.
func AppArmor() bool { return firstLine("/sys/module/apparmor/parameters/enabled") == "Y" }

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

// diskSize is the size in bytes of the file system that path is on.
func diskSize(path string) (int64, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		return 0, &os.PathError{Op: "statfs", Path: path, Err: err}
	}
	return int64(s.Blocks) * s.Bsize, nil
}

// Capacity returns the machine's resources, with the disk of dir. Unreadable ones are left out.
func Capacity(m Machine, dir string) v1.ResourceList {
	disk, err := diskSize(dir)
	capacity, _ := resources(m, disk, 0, nil)
	if err != nil {
		delete(capacity, v1.ResourceEphemeralStorage)
	}
	return capacity
}

// resources returns the machine's capacity and its allocatable part.
func resources(m Machine, disk, maxPods int64, reserved v1.ResourceList) (capacity, allocatable v1.ResourceList) {
	capacity = v1.ResourceList{
		v1.ResourceCPU:              *resource.NewQuantity(int64(m.CPUs), resource.DecimalSI),
		v1.ResourceMemory:           *resource.NewQuantity(m.MemoryBytes, resource.BinarySI),
		v1.ResourceEphemeralStorage: *resource.NewQuantity(disk, resource.BinarySI),
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
