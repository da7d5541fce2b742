package cgroups

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/internal/needs"
)

// files writes files by their paths below root, with the directories that they are in.
func files(t *testing.T, root string, of map[string]string) {
	t.Helper()
	for path, text := range of {
		path = filepath.Join(root, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755),
			os.WriteFile(path, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
}

const tasks = uint64(3)

func expectStats(t *testing.T, m *Manager, group string, want Stats) {
	t.Helper()
	got, err := m.Stats(group)
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%s: %+v %+v %+v %v\nwant %+v %+v %+v %v", group, got.CPU, got.Throttled, got.Memory, got.IO["8:0"],
			want.CPU, want.Throttled, want.Memory, want.IO["8:0"])
	}
}

func TestStatsOnVersion1(t *testing.T) {
	root := hierarchies(t, false)
	files(t, root, map[string]string{"cpuacct/cgroup.procs": "", "blkio/cgroup.procs": ""})
	m, err := New(Config{Root: "/n1", Mountpoint: root})
	if err != nil {
		t.Fatal(err)
	}
	const group = "/n1/kubepods/burstable/podu1"
	files(t, root, map[string]string{
		"memory" + group +
			"/memory.stat": "cache 1\nrss 2\ntotal_cache 4096\ntotal_rss 8192\ntotal_mapped_file 1024\ntotal_swap 512\n" +
			"total_pgfault 20\ntotal_pgmajfault 2\ntotal_inactive_file 1000\n",
		"memory" + group + "/memory.usage_in_bytes": "12288\n", "memory" + group + "/memory.failcnt": "4\n",
		"memory" + group + "/memory.limit_in_bytes": "9223372036854771712\n",
		"memory" + group + "/memory.oom_control":    "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n",
		"memory" + group + "/cgroup.procs":          "0\n17\n",
	})
	memory := &MemoryStats{Usage: 12288, WorkingSet: 11288, RSS: 8192, Cache: 4096, Mapped: 1024, Swap: 512, Faults: 20,
		Major: 2, Refused: 4, Killed: 5}
	// The runtime has not made the others yet.
	expectStats(t, m, group, Stats{Memory: memory})
	files(t, root, map[string]string{
		"cpuacct" + group + "/cpuacct.usage": "2000\n", "cpuacct" + group + "/cpuacct.usage_user": "1500\n",
		"cpuacct" + group + "/cpuacct.usage_sys": "500\n",
		"cpu" + group +
			"/cpu.stat": "nr_periods 7\nnr_throttled 2\nthrottled_time 9000\n",
		"pids" + group + "/pids.current":            "3\n",
		"memory" + group + "/memory.limit_in_bytes": "65536\n",
		"blkio" + group +
			"/blkio.throttle.io_service_bytes_recursive": "8:0 Read 10\n8:0 Write 20\n8:0 Sync 30\n8:0 Total 30\n253:1 Read 1\nTotal 31\n",
		"blkio" + group + "/blkio.throttle.io_serviced_recursive": "8:0 Read 1\n8:0 Write 2\nTotal 3\n",
	})
	memory.Limit = 65536
	n := tasks
	expectStats(t, m, group, Stats{
		CPU: &CPUStats{2000, 1500, 500}, Throttled: &Throttling{7, 2, 9000}, Memory: memory, Tasks: &n,
		IO: map[string]*IOStats{"8:0": {10, 20, 1, 2}, "253:1": {ReadBytes: 1}},
	})
	if _, err := m.Stats("/n1/kubepods/podgone"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a group that is gone: %v", err)
	}
	groups, err := m.Groups()
	if err != nil || len(groups) != 1 || groups["u1"] != group {
		t.Errorf("groups %v %v", groups, err)
	}
	if pids, err := m.Processes(group); err != nil || len(pids) != 1 || pids[0] != 17 {
		t.Errorf("processes %v %v", pids, err)
	}
	files(t, root, map[string]string{"cpuacct" + group + "/cpuacct.usage": "much\n"})
	if _, err := m.Stats(group); err == nil || !strings.Contains(err.Error(), "cpuacct.usage") {
		t.Errorf("a file without a number: %v", err)
	}
}

func TestStatsOnVersion2(t *testing.T) {
	root := hierarchies(t, true)
	m, err := New(Config{Root: "/n1", Mountpoint: root})
	if err != nil {
		t.Fatal(err)
	}
	const group = "/n1/kubepods/podu1"
	files(t, root, map[string]string{group + "/cpu.stat": "usage_usec 2\nuser_usec 1\nsystem_usec 1\n"})
	// without controllers
	expectStats(t, m, group, Stats{CPU: &CPUStats{2 * time.Microsecond, time.Microsecond, time.Microsecond}})
	files(t, root, map[string]string{
		group +
			"/cpu.stat": "usage_usec 2\nuser_usec 1\nsystem_usec 1\nnr_periods 7\nnr_throttled 2\nthrottled_usec 9\n",
		group + "/memory.current": "12288\n",
		group +
			"/memory.stat": "anon 8192\nfile 4096\nfile_mapped 1024\ninactive_file 20000\npgfault 20\npgmajfault 2\n",
		group + "/memory.swap.current": "512\n", group + "/memory.max": "max\n",
		group + "/memory.events": "low 0\nhigh 0\nmax 4\noom 1\noom_kill 5\n",
		group + "/pids.current":  "3\n",
		group + "/io.stat":       "8:0 rbytes=10 wbytes=20 rios=1 wios=2 dbytes=0 dios=0\n253:1\n",
	})
	n := tasks
	expectStats(t, m, group, Stats{
		CPU:       &CPUStats{2 * time.Microsecond, time.Microsecond, time.Microsecond},
		Throttled: &Throttling{7, 2, 9 * time.Microsecond},
		Memory: &MemoryStats{Usage: 12288, RSS: 8192, Cache: 4096, Mapped: 1024, Swap: 512, Faults: 20, Major: 2,
			Refused: 4, Killed: 5},
		Tasks: &n, IO: map[string]*IOStats{"8:0": {10, 20, 1, 2}},
	})
	files(t, root, map[string]string{group + "/memory.max": "65536\n"})
	if got, err := m.Stats(group); err != nil || got.Memory.Limit != 65536 {
		t.Errorf("limit: %+v %v", got.Memory, err)
	}
}

// TestStatsOfThisMachine: the kernel's files are as expected, for a group in which a process works.
func TestStatsOfThisMachine(t *testing.T) {
	needs.Root(t, "the statistics of this machine's cgroups")
	root := "/barque/test-" + filepath.Base(t.TempDir())
	m, err := New(Config{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, mount := range m.mounts() {
			if err := removeTree(filepath.Join(mount, root)); err != nil {
				t.Error(err)
			}
		}
	})
	p := pod("real", v1.ResourceRequirements{Limits: list("100m", "64Mi"), Requests: list("100m", "64Mi")})
	if err := m.Ensure(p); err != nil {
		t.Fatal(err)
	}
	group := m.Parent(p)
	worker := exec.Command("sh", "-c", "read line; held=$(head -c 1000000 /dev/zero | tr '\\0' x); while :; do :; done")
	input, err := worker.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := worker.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = worker.Process.Kill(), worker.Wait() }()
	for _, mount := range m.mounts() {
		dir := filepath.Join(mount, group)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := write(dir, "cgroup.procs", strconv.Itoa(worker.Process.Pid)); err != nil &&
			!errors.Is(err, unix.ENOSPC) { // a set of CPUs that is empty
			t.Fatal(err)
		}
	}
	if _, err := input.Write([]byte("\n")); err != nil {
		t.Fatal(err)
	}
	await.NoError(t, "the group is measured", func(context.Context) error {
		s, err := m.Stats(group)
		if err != nil {
			return err
		}
		if s.CPU != nil && s.CPU.Total > 0 && s.CPU.User > 0 && s.Throttled.Throttled > 0 && s.Memory.RSS > 0 &&
			s.Memory.Limit == 64<<20 && s.Memory.WorkingSet > 0 && *s.Tasks == 1 {
			return nil
		}
		return fmt.Errorf("%+v %+v %+v", s.CPU, s.Throttled, s.Memory)
	})
	if pids, err := m.Processes(group); err != nil || len(pids) != 1 || pids[0] != worker.Process.Pid {
		t.Errorf("processes %v %v", pids, err)
	}
	if groups, err := m.Groups(); err != nil || groups["real"] != group {
		t.Errorf("groups %v %v", groups, err)
	}
}
