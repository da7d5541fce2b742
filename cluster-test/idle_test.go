package clustertest

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/barque/barque/internal/procstat"
)

// A healthy idle cluster writes nothing for a minute, which is longer than the period of any work
// but the hourly one, and its servers hold the same state. Pods run meanwhile, the leases of nodes
// are read and watched, and a backup has been made. The test does not run beside clusters of other
// tests: on a busy machine a node would be late at times, which is written.
func TestIdleClusterWritesNothing(t *testing.T) {
	c := sharedCluster(t)
	s := NewSpace(t, c)
	s.Apply(hello("idle", 3, "none"))
	s.K("rollout", "status", "deployment/idle", "--timeout=60s")
	watcher, err := c.Watcher()
	if err != nil {
		t.Fatal(err)
	}
	renewals, err := watcher.CoordinationV1().Leases(corev1.NamespaceNodeLease).Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer renewals.Stop()
	told := 0
	meanwhile := func(ctx context.Context) error {
		for more := true; more; {
			select {
			case e, open := <-renewals.ResultChan():
				if !open || e.Type == watch.Error {
					t.Fatalf("the watch of leases has ended after %d renewals: %+v", told, e.Object)
				}
				told++
			default:
				more = false
			}
		}
		list, err := c.Client.CoordinationV1().Leases(corev1.NamespaceNodeLease).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		if len(list.Items) != 3 {
			return fmt.Errorf("%d leases of nodes", len(list.Items))
		}
		return nil
	}
	c.Barque(t, "snapshot", "save", "--unsealed", filepath.Join(t.TempDir(), "idle.backup"))
	// The cleanup after earlier tests may take a while, and a busy machine may write that a node
	// was late.
	if err := c.idles(t.Context(), 4*time.Minute, time.Minute, meanwhile); err != nil {
		t.Fatal(err)
	}
	if told < 3*5 {
		t.Errorf("a watch was told of %d renewals in a minute of three nodes", told)
	}
}

// idles waits until nothing was written for some time, and calls meanwhile, if not nil, at
// each look.
func (c *Cluster) idles(
	ctx context.Context, patience, idle time.Duration, meanwhile func(context.Context) error,
) error {
	var since time.Time
	var revision uint64
	return Poll(ctx, patience, func(ctx context.Context) error {
		if meanwhile != nil {
			if err := meanwhile(ctx); err != nil {
				return err
			}
		}
		s, err := c.Status(ctx)
		if err != nil {
			return err
		}
		hash := ""
		for _, m := range s.Members {
			if m.Role != "server" {
				continue
			}
			if m.Store != nil && hash == "" {
				hash = m.Store.Hash
			}
			if m.Store == nil || m.Store.Revision != s.Revision || m.Store.Hash != hash {
				since = time.Time{}
				return fmt.Errorf("the servers differ: %+v", s.Members)
			}
		}
		if s.Revision != revision || since.IsZero() {
			revision, since = s.Revision, time.Now()
		}
		if quiet := time.Since(since); quiet < idle {
			return fmt.Errorf("nothing was written for %s only, at revision %d", quiet, revision)
		}
		return nil
	})
}

// idleCPU bounds the CPU time of an idle server, in parts of one core. On two cores with a load of
// 12 from other processes the leader took 0.034, and each of the others 0.020.
const idleCPU = 0.08

// A cluster of three pods that gets no requests costs next to nothing: in a whole minute none
// of its processes writes a byte to a disk, no file changes, and each server takes next to no
// CPU time.
func TestIdleServersCostNothing(t *testing.T) {
	c := sharedCluster(t)
	s := NewSpace(t, c)
	s.Apply(hello("costs", 3, "none"))
	s.K("rollout", "status", "deployment/costs", "--timeout=60s")
	if err := c.idles(t.Context(), 4*time.Minute, 15*time.Second, nil); err != nil {
		t.Fatal(err)
	}
	// Work that is done once, such as the first backup of a server that an earlier test has
	// restarted, may fall into a minute.
	var costs []cost
	var changed []string
	for range 5 {
		costs, changed = c.minute(t)
		if len(changed) == 0 && !slices.ContainsFunc(costs, func(p cost) bool { return p.written > 0 }) {
			break
		}
	}
	if len(changed) > 0 {
		t.Errorf("in five minutes there was none without a write; in the last one these files changed: %q", changed)
	}
	servers := 0
	for _, p := range costs {
		t.Logf("%d bytes written, %.3f of a core: %s", p.written, p.cores, p.command)
		if p.written > 0 {
			t.Errorf("an idle cluster writes %d bytes in a minute: %s", p.written, p.command)
		}
		if p.server {
			servers++
		}
		if p.server && p.cores > idleCPU {
			t.Errorf("an idle server takes %.3f of a core, the bound is %.2f: %s", p.cores, idleCPU, p.command)
		}
	}
	if servers != 3 || len(costs) < 9 { // with three containerds and three shims
		t.Errorf("%d processes were looked at, of which %d are servers", len(costs), servers)
	}
}

// cost is the use of a process in some time.
type cost struct {
	command string
	server  bool
	written uint64 // bytes to block devices
	cores   float64
}

// minute returns the use of the cluster's processes in a minute, and the files of the cluster that
// change meanwhile.
func (c *Cluster) minute(t *testing.T) ([]cost, []string) {
	t.Helper()
	began, before := time.Now(), c.taken(t)
	select {
	case <-time.After(time.Minute): // the minute is the measurement
	case <-t.Context().Done():
		t.Fatal(context.Cause(t.Context()))
	}
	after, lasted := c.taken(t), time.Since(began)
	var costs []cost
	for pid, now := range after {
		if was, ok := before[pid]; ok {
			costs = append(costs,
				cost{now.command, now.server, now.written - was.written,
					(now.cpu - was.cpu).Seconds() / lasted.Seconds()})
		}
	}
	return costs, c.changedSince(t, began)
}

// taken is the use of a process since it started.
type taken struct {
	command string
	server  bool
	written uint64
	cpu     time.Duration
}

// taken returns it for all processes of the cluster: servers, containerds, shims and the proxy.
func (c *Cluster) taken(t *testing.T) map[int]taken {
	t.Helper()
	pids, err := procstat.All()
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[int]taken)
	for _, pid := range pids {
		args, err := procstat.Args(pid)
		if err != nil || pid == os.Getpid() ||
			!slices.ContainsFunc(args, func(arg string) bool { return strings.Contains(arg, c.Dir+"/") }) {
			continue
		}
		p := taken{command: strings.Join(args, " "), server: len(args) > 1 && args[1] == "server"}
		io, ioErr := os.ReadFile(fmt.Sprintf("/proc/%d/io", pid))
		stat, statErr := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if ioErr != nil || statErr != nil {
			continue // it has ended
		}
		if p.written, err = numberAfter(string(io), "\nwrite_bytes: "); err != nil {
			t.Fatal(err)
		}
		// proc_pid_stat(5): the fields after the name, which ends with the last parenthesis; 14 and
		// 15 are ticks of 10 ms.
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		for _, field := range fields[11:13] {
			ticks, err := strconv.ParseInt(field, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			p.cpu += time.Duration(ticks) * 10 * time.Millisecond
		}
		all[pid] = p
	}
	return all
}

func numberAfter(text, name string) (uint64, error) {
	_, rest, _ := strings.Cut(text, name)
	number, _, _ := strings.Cut(rest, "\n")
	return strconv.ParseUint(number, 10, 64)
}

// changedSince returns the files of the cluster that were written, made or renamed since then, but
// for those in mounts below it.
func (c *Cluster) changedSince(t *testing.T, then time.Time) (changed []string) {
	t.Helper()
	own, err := os.Stat(c.Dir)
	if err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(c.Dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil {
			return nil // it has gone meanwhile
		}
		info, err := e.Info()
		if err != nil {
			return nil
		}
		stat := info.Sys().(*syscall.Stat_t)
		if e.IsDir() && stat.Dev != own.Sys().(*syscall.Stat_t).Dev {
			return fs.SkipDir
		}
		if time.Unix(stat.Ctim.Unix()).After(then) {
			changed = append(changed, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return changed
}
