package main

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// describe prints the machine of the measurement, and whether anything else runs.
func (b *bench) describe() {
	var name unix.Utsname
	kernel := "an unknown kernel"
	if unix.Uname(&name) == nil {
		kernel = "Linux " + unix.ByteSliceToString(name.Release[:])
	}
	average, _ := os.ReadFile("/proc/loadavg")
	fmt.Printf(
		"%d cores of %s, memory %s, %s, %s, %s/%s, %s; load average before the run %s; each load %v, %d times; ratios are of medians.\n",
		runtime.NumCPU(), field("/proc/cpuinfo", "model name"), field("/proc/meminfo", "MemTotal"), kernel,
		runtime.Version(),
		runtime.GOOS, runtime.GOARCH, time.Now().UTC().Format("2006-01-02 15:04 UTC"),
		strings.TrimSpace(string(average)), b.length, b.repeats)
	if b.silent != 0 {
		fmt.Printf("Timeouts.Silence of the members is %v; negative: a leader's silence is left to Raft.\n", b.silent)
	}
	if err := b.probeDisk(); err != nil {
		fmt.Printf("The disk was not probed: %v\n", err)
	}
}

func field(file, name string) string {
	data, err := os.ReadFile(file)
	if err != nil {
		return "unknown"
	}
	for line := range strings.Lines(string(data)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}

// probes is how many appends the disk is probed with.
const probes = 500

// probeDisk says how long an append with a sync takes where the members' directories are.
func (b *bench) probeDisk() error {
	f, err := os.CreateTemp(b.dir, "storebench-probe-")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	took, block := make([]time.Duration, probes), make([]byte, 4096)
	for i := range took {
		began := time.Now()
		if _, err := f.Write(block); err != nil {
			return err
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			return err
		}
		took[i] = time.Since(began)
	}
	slices.Sort(took)
	fmt.Printf("Disk: %s; an append of 4 KiB with fdatasync takes %s (p50), %s (p99).\n", fileSystem(b.dir),
		short(took[probes/2]), short(took[probes*99/100]))
	return nil
}

func fileSystem(dir string) string {
	var s unix.Statfs_t
	if err := unix.Statfs(dir, &s); err != nil {
		return err.Error()
	}
	switch s.Type {
	case unix.EXT4_SUPER_MAGIC:
		return "ext4"
	case unix.XFS_SUPER_MAGIC:
		return "xfs"
	case unix.BTRFS_SUPER_MAGIC:
		return "btrfs"
	case unix.OVERLAYFS_SUPER_MAGIC:
		return "overlayfs"
	case unix.TMPFS_MAGIC:
		return "tmpfs, which is no disk"
	}
	return fmt.Sprintf("file system of type %#x", s.Type)
}
