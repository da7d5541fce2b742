// Package cgroups makes and removes the control groups of pods, on cgroup v1 and v2.
//
// It owns everything below its root (for example /barque/<node>), in every mounted hierarchy:
//
//	<root>/kubepods/pod<uid>             Guaranteed
//	<root>/kubepods/burstable/pod<uid>
//	<root>/kubepods/besteffort/pod<uid>
//
// The runtime puts containers below a pod's group and sets their own limits. The limits of a whole
// pod are set here. A pod's group is made before its sandbox and removed when nothing of it runs.
package cgroups

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	resourcehelper "k8s.io/component-helpers/resource"
)

// Config has the places of the groups.
type Config struct {
	// Root is the group under which all pods of this node live, as a path inside each hierarchy.
	Root string
	// Mountpoint is where the hierarchies are mounted: /sys/fs/cgroup unless given.
	Mountpoint string
	// PodPidsLimit bounds the processes of one pod; 0 sets no bound.
	PodPidsLimit int64
	// MilliCPU is the share of the machine's CPUs that all pods together have, in thousandths of
	// one. It is their weight against the machine's other processes. 0 leaves the kernel's default,
	// which is the weight of one process.
	MilliCPU int64
	// Parents are the groups above Root that are Barque's own. Other nodes may share them: each has
	// at least the weight of this one, and keeps a higher one.
	Parents []string
}

// Manager keeps the groups of a node's pods. It is safe for concurrent use.
type Manager struct {
	root    string
	pids    int64
	cpu     int64 // Config.MilliCPU
	parents []string
	unified bool
	// hierarchies maps each controller to its mount; under v2 there is one, under "".
	hierarchies map[string]string

	mu       sync.Mutex
	requests map[types.UID]int64 // CPU shares of each Burstable pod, for the group that holds them
}

// New reads the mounted hierarchies. It changes nothing.
func New(config Config) (*Manager, error) {
	if !strings.HasPrefix(config.Root, "/") || config.Root == "/" {
		return nil, fmt.Errorf("cgroup root %q: want an absolute path below /", config.Root)
	}
	if config.Mountpoint == "" {
		config.Mountpoint = "/sys/fs/cgroup"
	}
	hierarchies, unified, err := hierarchiesAt(config.Mountpoint)
	if err != nil {
		return nil, err
	}
	return &Manager{
		root: filepath.Clean(config.Root), pids: config.PodPidsLimit, cpu: config.MilliCPU, parents: config.Parents,
		unified: unified, hierarchies: hierarchies,
		requests: map[types.UID]int64{},
	}, nil
}

func hierarchiesAt(mountpoint string) (map[string]string, bool, error) {
	if _, err := os.Stat(filepath.Join(mountpoint, "cgroup.controllers")); err == nil {
		return map[string]string{"": mountpoint}, true, nil
	}
	entries, err := os.ReadDir(mountpoint)
	if err != nil {
		return nil, false, fmt.Errorf("look for cgroup hierarchies: %w", err)
	}
	found := map[string]string{}
	for _, e := range entries {
		dir := filepath.Join(mountpoint, e.Name())
		if _, err := os.Stat(filepath.Join(dir, "cgroup.procs")); err == nil {
			found[e.Name()] = dir
		}
	}
	// A hierarchy may carry several controllers under one name, such as "cpu,cpuacct".
	for name, dir := range found {
		for controller := range strings.SplitSeq(name, ",") {
			if _, ok := found[controller]; !ok {
				found[controller] = dir
			}
		}
	}
	if len(found) == 0 {
		return nil, false, fmt.Errorf("no cgroup hierarchy is mounted below %s: mount cgroup2 there", mountpoint)
	}
	return found, false, nil
}

// Parent returns the group of a pod, which the runtime gets as the parent of its containers.
func (m *Manager) Parent(pod *v1.Pod) string {
	return filepath.Join(m.qosGroup(QoS(pod)), "pod"+string(pod.UID))
}

func (m *Manager) qosGroup(class v1.PodQOSClass) string {
	base := filepath.Join(m.root, "kubepods")
	switch class {
	case v1.PodQOSBurstable:
		return filepath.Join(base, "burstable")
	case v1.PodQOSBestEffort:
		return filepath.Join(base, "besteffort")
	default:
		return base
	}
}

// Ensure makes the pod's group and sets its limits. It may be called again at any time.
func (m *Manager) Ensure(pod *v1.Pod) error {
	group := m.Parent(pod)
	if err := m.create(group); err != nil {
		return fmt.Errorf("make the cgroup of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	if err := errors.Join(m.limit(group, podLimits(pod, m.pids)), m.keepFromSwap(group)); err != nil {
		return fmt.Errorf("limit the cgroup of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if QoS(pod) == v1.PodQOSBurstable {
		requests := resourcehelper.PodRequests(pod, resourcehelper.PodResourcesOptions{})
		m.requests[pod.UID] = requests.Cpu().MilliValue()
	}
	return m.weighClassesLocked()
}

// Widen raises those limits of a pod's group that must rise, and lowers none: in a resize,
// containers grow after it and shrink before Ensure. The weight may fall at once:
// it bounds nothing.
func (m *Manager) Widen(pod *v1.Pod) error {
	group, wanted := m.Parent(pod), podLimits(pod, m.pids)
	has, err := m.limits(group)
	if err != nil {
		return fmt.Errorf("read the limits of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	if err := m.limit(group, widest(has, wanted)); err != nil {
		return fmt.Errorf("widen the cgroup of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// widest returns the higher of each limit; no limit is the highest.
func widest(a, b Limits) Limits {
	higher := func(x, y int64) int64 {
		if x == 0 || y == 0 {
			return 0
		}
		return max(x, y)
	}
	return Limits{Shares: max(a.Shares, b.Shares), Quota: higher(a.Quota, b.Quota), Memory: higher(a.Memory, b.Memory),
		PidsMax: b.PidsMax}
}

// limits reads the limits of CPU time and memory of a group.
func (m *Manager) limits(group string) (Limits, error) {
	var l Limits
	if m.unified {
		dir := m.dir("", group)
		cpu, err := read(dir, "cpu.max") // "max 100000" or "50000 100000"
		if err != nil {
			return l, err
		}
		quota, _, _ := strings.Cut(cpu, " ")
		memory, err := read(dir, "memory.max")
		l.Quota, l.Memory = number(quota), number(memory)
		return l, err
	}
	if m.hierarchies["cpu"] != "" {
		quota, err := read(m.dir("cpu", group), "cpu.cfs_quota_us")
		if err != nil {
			return l, err
		}
		l.Quota = number(quota)
	}
	if m.hierarchies["memory"] != "" {
		memory, err := read(m.dir("memory", group), "memory.limit_in_bytes")
		if err != nil {
			return l, err
		}
		if l.Memory = number(memory); l.Memory >= unlimited {
			l.Memory = 0
		}
	}
	return l, nil
}

// unlimited is the least value by which cgroup v1 reports memory without a limit.
const unlimited = 1 << 62

// number parses a limit of the kernel: "max" and -1 mean none.
func number(text string) int64 {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0
	}
	return max(n, 0)
}

func read(dir, file string) (string, error) {
	raw, err := os.ReadFile(filepath.Join(dir, file))
	return strings.TrimSpace(string(raw)), err
}

// MemoryUsage returns the memory of all processes of a pod, page cache included, in bytes.
func (m *Manager) MemoryUsage(pod *v1.Pod) (int64, error) {
	file := "memory.usage_in_bytes"
	if m.unified {
		file = "memory.current"
	}
	text, err := read(m.dir("memory", m.Parent(pod)), file)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(text, 10, 64)
}

// weighClassesLocked gives Burstable pods together the sum of their requests, and BestEffort pods
// the unused rest. All pods together get their part of the machine.
func (m *Manager) weighClassesLocked() error {
	if m.cpu > 0 {
		for _, group := range m.parents {
			if err := m.raise(group); err != nil {
				return fmt.Errorf("weigh the group %s: %w", group, err)
			}
		}
		for _, group := range []string{m.root, m.qosGroup(v1.PodQOSGuaranteed)} {
			if err := m.limit(group, Limits{Shares: Shares(m.cpu)}); err != nil {
				return fmt.Errorf("weigh the pods of this node: %w", err)
			}
		}
	}
	var sum int64
	for _, milli := range m.requests {
		sum += milli
	}
	for class, milli := range map[v1.PodQOSClass]int64{v1.PodQOSBurstable: sum, v1.PodQOSBestEffort: 0} {
		group := m.qosGroup(class)
		if _, err := os.Stat(m.dir("cpu", group)); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := m.limit(group, Limits{Shares: Shares(milli)}); err != nil {
			return fmt.Errorf("weigh %s pods: %w", class, err)
		}
	}
	return nil
}

// raise gives a group at least the weight of this node.
func (m *Manager) raise(group string) error {
	file, want := "cpu.shares", Shares(m.cpu)
	if m.unified {
		file, want = "cpu.weight", weight(want)
	} else if m.hierarchies["cpu"] == "" {
		return nil
	}
	has, err := read(m.dir("cpu", group), file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) || number(has) >= want {
		return err
	}
	return write(m.dir("cpu", group), file, strconv.FormatInt(want, 10))
}

// Remove removes the pod's group, in whichever class it is. It is called once nothing of the pod
// runs that the runtime knows. A process that is left in the group is one that the runtime has
// lost, and is killed. Until it is gone Remove fails; call again.
func (m *Manager) Remove(uid types.UID) error {
	if err := m.release(uid); err != nil {
		return err
	}
	var errs []error
	for _, mount := range m.mounts() {
		for _, class := range []v1.PodQOSClass{v1.PodQOSGuaranteed, v1.PodQOSBurstable, v1.PodQOSBestEffort} {
			group := filepath.Join(mount, m.qosGroup(class), "pod"+string(uid))
			err := removeTree(group)
			if errors.Is(err, unix.EBUSY) {
				err = errors.Join(err, killTree(group))
			}
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove the cgroups of pod %s: %w", uid, err)
	}
	return nil
}

// release takes a pod's share back from the group of its class.
func (m *Manager) release(uid types.UID) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.requests[uid]; !ok {
		return nil
	}
	delete(m.requests, uid)
	return m.weighClassesLocked()
}

// Pods lists the UIDs of all pods that have a group.
func (m *Manager) Pods() ([]types.UID, error) {
	seen := map[types.UID]bool{}
	for _, mount := range m.mounts() {
		for _, class := range []v1.PodQOSClass{v1.PodQOSGuaranteed, v1.PodQOSBurstable, v1.PodQOSBestEffort} {
			entries, err := os.ReadDir(filepath.Join(mount, m.qosGroup(class)))
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			}
			for _, e := range entries {
				if uid, ok := strings.CutPrefix(e.Name(), "pod"); ok && e.IsDir() {
					seen[types.UID(uid)] = true
				}
			}
		}
	}
	uids := make([]types.UID, 0, len(seen))
	for uid := range seen {
		uids = append(uids, uid)
	}
	return uids, nil
}

// mounts lists each hierarchy once.
func (m *Manager) mounts() []string {
	seen := map[string]bool{}
	var dirs []string
	for _, dir := range m.hierarchies {
		real, err := filepath.EvalSymlinks(dir)
		if err != nil {
			real = dir
		}
		if !seen[real] {
			seen[real] = true
			dirs = append(dirs, real)
		}
	}
	return dirs
}

func (m *Manager) dir(controller, group string) string {
	if m.unified {
		controller = ""
	}
	return filepath.Join(m.hierarchies[controller], group)
}

// create makes the group in every hierarchy with limits of the pod. The runtime makes it
// in the others.
func (m *Manager) create(group string) error {
	if !m.unified {
		for _, controller := range []string{"cpu", "memory", "pids"} {
			if m.hierarchies[controller] == "" {
				continue
			}
			at := "/"
			for part := range strings.SplitSeq(strings.Trim(group, "/"), "/") {
				at = filepath.Join(at, part)
				if err := m.mkdir(controller, at); err != nil {
					return err
				}
			}
		}
		return nil
	}
	// Under v2 a group offers to its children the controllers of its subtree_control, from
	// the top down.
	at := "/"
	for part := range strings.SplitSeq(strings.Trim(group, "/"), "/") {
		if err := enableControllers(m.dir("", at)); err != nil {
			return err
		}
		at = filepath.Join(at, part)
		if err := m.mkdir("cpu", at); err != nil {
			return err
		}
	}
	return enableControllers(m.dir("", at))
}

// mkdir makes one group of a hierarchy. A new one above the root gets the weight of this node: with
// the kernel's default it would throttle all below it. An existing one keeps the weight
// of its owner.
func (m *Manager) mkdir(controller, group string) error {
	err := os.Mkdir(m.dir(controller, group), 0o755)
	switch {
	case errors.Is(err, fs.ErrExist):
		return nil
	case err != nil:
		return err
	case controller == "cpu" && m.cpu > 0 && strings.HasPrefix(m.root, group+"/"):
		return m.limit(group, Limits{Shares: Shares(m.cpu)})
	}
	return nil
}

func enableControllers(dir string) error {
	has, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	enabled, err := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control"))
	if err != nil {
		return err
	}
	for controller := range strings.FieldsSeq(string(has)) {
		if strings.Contains(" "+strings.TrimSpace(string(enabled))+" ", " "+controller+" ") {
			continue
		}
		switch controller {
		case "cpu", "cpuset", "memory", "pids", "io", "hugetlb":
			if err := write(dir, "cgroup.subtree_control", "+"+controller); err != nil {
				return err
			}
		}
	}
	return nil
}

func (m *Manager) limit(group string, l Limits) error {
	if m.unified {
		return m.limitUnified(group, l)
	}
	var errs []error
	if cpu := m.hierarchies["cpu"]; cpu != "" {
		dir := m.dir("cpu", group)
		errs = append(errs, write(dir, "cpu.shares", strconv.FormatInt(l.Shares, 10)))
		if l.Quota > 0 {
			errs = append(errs,
				write(dir, "cpu.cfs_period_us", strconv.Itoa(cfsPeriod)),
				write(dir, "cpu.cfs_quota_us", strconv.FormatInt(l.Quota, 10)))
		}
	}
	if m.hierarchies["memory"] != "" && l.Memory > 0 {
		errs = append(errs, write(m.dir("memory", group), "memory.limit_in_bytes", strconv.FormatInt(l.Memory, 10)))
	}
	if m.hierarchies["pids"] != "" && l.PidsMax > 0 {
		errs = append(errs, write(m.dir("pids", group), "pids.max", strconv.FormatInt(l.PidsMax, 10)))
	}
	return errors.Join(errs...)
}

func (m *Manager) limitUnified(group string, l Limits) error {
	dir := m.dir("", group)
	errs := []error{write(dir, "cpu.weight", strconv.FormatInt(weight(l.Shares), 10))}
	if l.Quota > 0 {
		errs = append(errs, write(dir, "cpu.max", fmt.Sprintf("%d %d", l.Quota, cfsPeriod)))
	}
	if l.Memory > 0 {
		errs = append(errs, write(dir, "memory.max", strconv.FormatInt(l.Memory, 10)))
	}
	if l.PidsMax > 0 {
		errs = append(errs, write(dir, "pids.max", strconv.FormatInt(l.PidsMax, 10)))
	}
	return errors.Join(errs...)
}

// keepFromSwap keeps the memory of a pod off the machine's swap, because Secrets would reach a disk
// there. A kernel that does not account for swap has no such file. cgroup v1 counts memory and swap
// together, so that a pod without a limit stays unprotected.
func (m *Manager) keepFromSwap(group string) error {
	if !m.unified {
		return nil
	}
	file, err := os.OpenFile(filepath.Join(m.dir("", group), "memory.swap.max"), os.O_WRONLY|os.O_TRUNC, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = file.WriteString("0")
	return errors.Join(err, file.Close())
}

func write(dir, file, value string) error {
	return os.WriteFile(filepath.Join(dir, file), []byte(value), 0o644)
}

// removeTree removes a group with the groups below it. The files in a group are the kernel's.
func removeTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeTree(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	if err := unix.Rmdir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return &fs.PathError{Op: "rmdir", Path: dir, Err: err}
	}
	return nil
}

// killTree kills all processes in a group and in the groups below it.
func killTree(dir string) error {
	var errs []error
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.Name() != "cgroup.procs" {
			return err
		}
		raw, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for text := range strings.FieldsSeq(string(raw)) {
			pid, err := strconv.Atoi(text)
			if err != nil || pid <= 1 {
				continue // 0: a process that is not in this PID namespace
			}
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				errs = append(errs, fmt.Errorf("kill process %d: %w", pid, err))
			}
		}
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		err = nil // the groups go with their processes
	}
	return errors.Join(append(errs, err)...)
}

// LowestOOMScoreAdj is the lowest oom_score_adj that this process may give to another one: without
// CAP_SYS_RESOURCE the kernel refuses to go below one's own.
func LowestOOMScoreAdj() int64 {
	const lowest = -1000
	if hasCapability(24) { // CAP_SYS_RESOURCE
		return lowest
	}
	raw, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		return 0
	}
	own, err := strconv.ParseInt(strings.TrimSpace(string(raw)), 10, 64)
	if err != nil {
		return 0
	}
	return own
}

func hasCapability(bit uint) bool {
	f, err := os.Open("/proc/self/status")
	if err != nil {
		return false
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if hex, ok := strings.CutPrefix(lines.Text(), "CapEff:"); ok {
			set, err := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
			return err == nil && set&(1<<bit) != 0
		}
	}
	return false
}
