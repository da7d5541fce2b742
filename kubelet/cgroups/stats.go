package cgroups

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Stats are the figures of a group and of all groups below it. A figure that the kernel does not
// count is nil.
type Stats struct {
	CPU       *CPUStats
	Throttled *Throttling
	Memory    *MemoryStats
	Tasks     *uint64
	IO        map[string]*IOStats // by the device's numbers, such as 8:0
}

// CPUStats is CPU time, as a sum over all CPUs.
type CPUStats struct {
	Total, User, System time.Duration
}

// Throttling counts the periods of the CPU limit.
type Throttling struct {
	Periods, Throttled uint64
	Time               time.Duration
}

// MemoryStats are amounts in bytes, and counts of faults and refusals.
type MemoryStats struct {
	Usage      uint64 // page cache included
	WorkingSet uint64 // Usage without the inactive pages of files
	Limit      uint64 // 0 without one
	RSS        uint64 // anonymous pages
	Cache      uint64 // pages of files
	Mapped     uint64 // of these, the mapped ones
	Swap       uint64
	Faults     uint64
	Major      uint64 // faults that read from the disk
	Refused    uint64 // how often the limit was hit
	Killed     uint64 // processes that the kernel killed for want of memory
}

// IOStats counts reads and writes of block devices.
type IOStats struct {
	ReadBytes, WrittenBytes uint64
	Reads, Writes           uint64
}

// Groups returns the group of each pod that has one.
func (m *Manager) Groups() (map[types.UID]string, error) {
	of := map[types.UID]string{}
	for _, class := range []v1.PodQOSClass{v1.PodQOSGuaranteed, v1.PodQOSBurstable, v1.PodQOSBestEffort} {
		entries, err := os.ReadDir(m.dir(m.counting(), m.qosGroup(class)))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, e := range entries {
			if uid, ok := strings.CutPrefix(e.Name(), "pod"); ok && e.IsDir() {
				of[types.UID(uid)] = filepath.Join(m.qosGroup(class), e.Name())
			}
		}
	}
	return of, nil
}

// counting returns a controller whose hierarchy has all measured groups.
func (m *Manager) counting() string {
	for _, controller := range []string{"memory", "cpu", "cpuacct", "pids"} {
		if m.hierarchies[controller] != "" {
			return controller
		}
	}
	return ""
}

// Stats measures a group: some ten small files. The error is fs.ErrNotExist when the group is gone.
func (m *Manager) Stats(group string) (Stats, error) {
	if _, err := os.Stat(m.dir(m.counting(), group)); err != nil {
		return Stats{}, err
	}
	var s Stats
	var err error
	if m.unified {
		s, err = m.statsUnified(m.dir("", group))
	} else {
		s, err = m.statsV1(group)
	}
	if errors.Is(err, unix.ENODEV) { // removed while its file was open
		err = fs.ErrNotExist
	}
	return s, err
}

func (m *Manager) statsV1(group string) (s Stats, err error) {
	for controller, measure := range map[string]func(dir string) error{
		"cpuacct": func(dir string) (err error) { s.CPU, err = cpuV1(dir); return err },
		"cpu":     func(dir string) (err error) { s.Throttled, err = throttlingV1(dir); return err },
		"memory":  func(dir string) (err error) { s.Memory, err = memoryV1(dir); return err },
		"pids":    func(dir string) (err error) { s.Tasks, err = optional(dir, "pids.current"); return err },
		"blkio":   func(dir string) (err error) { s.IO, err = ioV1(dir); return err },
	} {
		if m.hierarchies[controller] == "" {
			continue
		}
		// The runtime makes the group in hierarchies that limit nothing, later than in others.
		if err := measure(m.dir(controller, group)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return s, err
		}
	}
	return s, nil
}

func throttlingV1(dir string) (*Throttling, error) {
	stat, err := keyed(dir, "cpu.stat")
	if err != nil {
		return nil, err
	}
	return &Throttling{stat["nr_periods"], stat["nr_throttled"], time.Duration(stat["throttled_time"])}, nil
}

func cpuV1(dir string) (*CPUStats, error) {
	var of [3]uint64
	for i, file := range []string{"cpuacct.usage", "cpuacct.usage_user", "cpuacct.usage_sys"} {
		n, err := count(dir, file)
		if err != nil {
			return nil, err
		}
		of[i] = n
	}
	return &CPUStats{Total: time.Duration(of[0]), User: time.Duration(of[1]), System: time.Duration(of[2])}, nil
}

func memoryV1(dir string) (*MemoryStats, error) {
	stat, err := keyed(dir, "memory.stat")
	if err != nil {
		return nil, err
	}
	usage, err := count(dir, "memory.usage_in_bytes")
	if err != nil {
		return nil, err
	}
	refused, err := count(dir, "memory.failcnt")
	if err != nil {
		return nil, err
	}
	oom, err := keyed(dir, "memory.oom_control")
	if err != nil {
		return nil, err
	}
	limit, err := count(dir, "memory.limit_in_bytes")
	if limit >= unlimited {
		limit = 0
	}
	return &MemoryStats{
		Usage: usage, WorkingSet: usage - min(usage, stat["total_inactive_file"]), Limit: limit, RSS: stat["total_rss"],
		Cache:  stat["total_cache"],
		Mapped: stat["total_mapped_file"], Swap: stat["total_swap"], Faults: stat["total_pgfault"],
		Major: stat["total_pgmajfault"], Refused: refused, Killed: oom["oom_kill"],
	}, err
}

// deviceIO returns the counts of a device, making them when they are new.
func deviceIO(of map[string]*IOStats, device string) *IOStats {
	if of[device] == nil {
		of[device] = &IOStats{}
	}
	return of[device]
}

func ioV1(dir string) (map[string]*IOStats, error) {
	of := map[string]*IOStats{}
	for file, counts := range map[string]map[string]func(*IOStats) *uint64{
		"blkio.throttle.io_service_bytes_recursive": {
			"Read":  func(io *IOStats) *uint64 { return &io.ReadBytes },
			"Write": func(io *IOStats) *uint64 { return &io.WrittenBytes }},
		"blkio.throttle.io_serviced_recursive": {
			"Read":  func(io *IOStats) *uint64 { return &io.Reads },
			"Write": func(io *IOStats) *uint64 { return &io.Writes }},
	} {
		text, err := read(dir, file)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(text) { // 8:0 Read 4096
			fields := strings.Fields(line)
			if len(fields) != 3 || counts[fields[1]] == nil {
				continue
			}
			n, err := strconv.ParseUint(fields[2], 10, 64)
			if err != nil {
				return nil, &fs.PathError{Op: "parse", Path: filepath.Join(dir, file), Err: err}
			}
			*counts[fields[1]](deviceIO(of, fields[0])) = n
		}
	}
	return of, nil
}

func (m *Manager) statsUnified(dir string) (s Stats, err error) {
	cpu, err := keyed(dir, "cpu.stat")
	if err != nil {
		return s, err
	}
	micros := func(key string) time.Duration { return time.Duration(cpu[key]) * time.Microsecond }
	s.CPU = &CPUStats{Total: micros("usage_usec"), User: micros("user_usec"), System: micros("system_usec")}
	if _, ok := cpu["nr_periods"]; ok { // without the controller there is none
		s.Throttled = &Throttling{cpu["nr_periods"], cpu["nr_throttled"], micros("throttled_usec")}
	}
	if s.Memory, err = memoryUnified(dir); err != nil {
		return s, err
	}
	if s.Tasks, err = optional(dir, "pids.current"); err != nil {
		return s, err
	}
	s.IO, err = ioUnified(dir)
	return s, err
}

func memoryUnified(dir string) (*MemoryStats, error) {
	usage, err := optional(dir, "memory.current")
	if usage == nil {
		return nil, err // without the controller there is none
	}
	stat, err := keyed(dir, "memory.stat")
	if err != nil {
		return nil, err
	}
	m := &MemoryStats{
		Usage: *usage, WorkingSet: *usage - min(*usage, stat["inactive_file"]), RSS: stat["anon"], Cache: stat["file"],
		Mapped: stat["file_mapped"], Faults: stat["pgfault"], Major: stat["pgmajfault"],
	}
	swap, err := optional(dir, "memory.swap.current")
	if err != nil {
		return nil, err
	}
	if swap != nil {
		m.Swap = *swap
	}
	limit, err := read(dir, "memory.max")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	m.Limit = uint64(number(limit)) // "max" is none
	events, err := keyed(dir, "memory.events")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	m.Refused, m.Killed = events["max"], events["oom_kill"]
	return m, nil
}

func ioUnified(dir string) (map[string]*IOStats, error) {
	text, err := read(dir, "io.stat")
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil // without the controller there is none
	}
	if err != nil {
		return nil, err
	}
	of := map[string]*IOStats{}
	for line := range strings.Lines(text) { // 8:0 rbytes=4096 wbytes=0 rios=1 wios=0 dbytes=0 dios=0
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		io := deviceIO(of, fields[0])
		for _, field := range fields[1:] {
			key, value, _ := strings.Cut(field, "=")
			to := map[string]*uint64{"rbytes": &io.ReadBytes, "wbytes": &io.WrittenBytes, "rios": &io.Reads,
				"wios": &io.Writes}[key]
			if to == nil {
				continue
			}
			if *to, err = strconv.ParseUint(value, 10, 64); err != nil {
				return nil, &fs.PathError{Op: "parse", Path: filepath.Join(dir, "io.stat"), Err: err}
			}
		}
	}
	return of, nil
}

// count reads a file with one number.
func count(dir, file string) (uint64, error) {
	text, err := read(dir, file)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, &fs.PathError{Op: "parse", Path: filepath.Join(dir, file), Err: err}
	}
	return n, nil
}

// optional reads a file with one number; nil when there is no such file.
func optional(dir, file string) (*uint64, error) {
	n, err := count(dir, file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &n, nil
}

// keyed reads a file with a name and a number in each line. Lines of another form are left out.
func keyed(dir, file string) (map[string]uint64, error) {
	text, err := read(dir, file)
	if err != nil {
		return nil, err
	}
	of := map[string]uint64{}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if n, err := strconv.ParseUint(value, 10, 64); err == nil {
			of[key] = n
		}
	}
	return of, nil
}

// Processes returns the numbers of the processes in a group itself.
func (m *Manager) Processes(group string) ([]int, error) {
	text, err := read(m.dir(m.counting(), group), "cgroup.procs")
	if err != nil {
		return nil, err
	}
	var pids []int
	for field := range strings.FieldsSeq(text) {
		if pid, err := strconv.Atoi(field); err == nil && pid > 0 { // 0 is of another PID namespace
			pids = append(pids, pid)
		}
	}
	return pids, nil
}
