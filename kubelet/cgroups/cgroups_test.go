package cgroups

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/internal/needs"
)

func list(cpu, memory string) v1.ResourceList {
	l := v1.ResourceList{}
	if cpu != "" {
		l[v1.ResourceCPU] = resource.MustParse(cpu)
	}
	if memory != "" {
		l[v1.ResourceMemory] = resource.MustParse(memory)
	}
	return l
}

func pod(uid string, each ...v1.ResourceRequirements) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: uid, UID: types.UID(uid)}}
	for _, r := range each {
		p.Spec.Containers = append(p.Spec.Containers, v1.Container{Resources: r})
	}
	return p
}

func TestQoS(t *testing.T) {
	full := v1.ResourceRequirements{Requests: list("1", "1Gi"), Limits: list("1", "1Gi")}
	for _, c := range []struct {
		name string
		pod  *v1.Pod
		want v1.PodQOSClass
	}{
		{"nothing", pod("a", v1.ResourceRequirements{}), v1.PodQOSBestEffort},
		{"all limited", pod("a", full, full), v1.PodQOSGuaranteed},
		{"limits alone", pod("a", v1.ResourceRequirements{Limits: list("1", "1Gi")}), v1.PodQOSGuaranteed},
		{"one is not", pod("a", full, v1.ResourceRequirements{}), v1.PodQOSBurstable},
		{"less asked for than limited",
			pod("a", v1.ResourceRequirements{Requests: list("500m", "1Gi"), Limits: list("1", "1Gi")}),
			v1.PodQOSBurstable},
		{"only CPU", pod("a", v1.ResourceRequirements{Limits: list("1", "")}), v1.PodQOSBurstable},
	} {
		if got := QoS(c.pod); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func TestNumbers(t *testing.T) {
	for milli, want := range map[int64]int64{0: 2, 1: 2, 100: 102, 1000: 1024, 1 << 30: 262144} {
		if got := Shares(milli); got != want {
			t.Errorf("Shares(%d) = %d, want %d", milli, got, want)
		}
	}
	for milli, want := range map[int64]int64{0: 0, 1: 1000, 500: 50000, 2000: 200000} {
		if got := Quota(milli); got != want {
			t.Errorf("Quota(%d) = %d, want %d", milli, got, want)
		}
	}
	for shares, want := range map[int64]int64{2: 1, 1024: 39, 262144: 10000} {
		if got := weight(shares); got != want {
			t.Errorf("weight(%d) = %d, want %d", shares, got, want)
		}
	}
	burstable := pod("a", v1.ResourceRequirements{Requests: list("", "1Gi")})
	if got := OOMScoreAdj(burstable, &burstable.Spec.Containers[0], 4<<30); got != 750 {
		t.Errorf("OOM score of a quarter of the memory: %d, want 750", got)
	}
}

// The memory that a pod requests beyond its containers counts for each of them alike. A sidecar is
// killed no sooner than the container that requests least.
func TestOOMScoreAdj(t *testing.T) {
	of := func(name, memory string) v1.Container {
		return v1.Container{Name: name, Resources: v1.ResourceRequirements{Requests: list("", memory)}}
	}
	always := v1.ContainerRestartPolicyAlways
	sidecar, first := of("side", "100Mi"), of("first", "100Mi")
	sidecar.RestartPolicy = &always
	spec := v1.PodSpec{InitContainers: []v1.Container{sidecar, first},
		Containers: []v1.Container{of("main", "300Mi"), of("more", "200Mi")}}
	sized := *spec.DeepCopy()
	sized.Resources = &v1.ResourceRequirements{Requests: list("", "1000Mi")}
	limited := *spec.DeepCopy()
	limited.Resources = &v1.ResourceRequirements{Limits: list("1", "")}
	for _, c := range []struct {
		name string
		spec v1.PodSpec
		want [4]int64 // side, first, main, more, of a machine with 1000Mi
	}{
		{"containers", spec, [4]int64{800, 900, 700, 800}},
		{"as a whole", sized, [4]int64{700, 800, 600, 700}}, // 400Mi are left for four
		{"limits as a whole", limited, [4]int64{800, 900, 700, 800}},
	} {
		pod := &v1.Pod{Spec: c.spec}
		for i, name := range []*v1.Container{&c.spec.InitContainers[0], &c.spec.InitContainers[1],
			&c.spec.Containers[0], &c.spec.Containers[1]} {
			if got := OOMScoreAdj(pod, name, 1000<<20); got != c.want[i] {
				t.Errorf("%s: container %s has %d, want %d", c.name, name.Name, got, c.want[i])
			}
		}
	}
}

// hierarchies makes a tree that looks like the kernel's, in version 1 or 2.
func hierarchies(t *testing.T, unified bool) string {
	t.Helper()
	root := t.TempDir()
	if unified {
		for _, file := range []string{"cgroup.controllers", "cgroup.subtree_control"} {
			if err := os.WriteFile(filepath.Join(root, file), nil, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		return root
	}
	for _, controller := range []string{"cpu", "memory", "pids", "devices"} {
		if err := os.Mkdir(filepath.Join(root, controller), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, controller, "cgroup.procs"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func content(t *testing.T, parts ...string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(parts...))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func TestLimitsOnVersion1(t *testing.T) {
	root := hierarchies(t, false)
	m, err := New(Config{Root: "/barque/n1", Mountpoint: root, PodPidsLimit: 99})
	if err != nil {
		t.Fatal(err)
	}
	p := pod("u1", v1.ResourceRequirements{Requests: list("250m", "64Mi"), Limits: list("500m", "128Mi")},
		v1.ResourceRequirements{Requests: list("250m", "64Mi"), Limits: list("500m", "128Mi")})
	for range 2 {
		if err := m.Ensure(p); err != nil {
			t.Fatal(err)
		}
	}
	if got := m.Parent(p); got != "/barque/n1/kubepods/burstable/podu1" {
		t.Errorf("parent %s", got)
	}
	for file, want := range map[string]string{
		"cpu/%/cpu.shares": "512", "cpu/%/cpu.cfs_quota_us": "100000", "memory/%/memory.limit_in_bytes": "268435456",
		"pids/%/pids.max": "99",
	} {
		if got := content(t, root, strings.Replace(file, "%", m.Parent(p), 1)); got != want {
			t.Errorf("%s: %s, want %s", file, got, want)
		}
	}
	if got := content(t, root, "cpu/barque/n1/kubepods/burstable/cpu.shares"); got != "512" {
		t.Errorf("all Burstable pods together weigh %s", got)
	}
	open := pod("u2", v1.ResourceRequirements{Limits: list("1", "")}, v1.ResourceRequirements{})
	if err := m.Ensure(open); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, "cpu", m.Parent(open), "cpu.cfs_quota_us")); err == nil {
		t.Error("a pod with a container that is not limited is limited")
	}
	uids, err := m.Pods()
	slices.Sort(uids)
	if err != nil || !slices.Equal(uids, []types.UID{"u1", "u2"}) {
		t.Errorf("pods %v %v", uids, err)
	}
}

// kernelFiles makes the groups of a path of version 2, with the files that the kernel puts into a
// new group. It returns the last one.
func kernelFiles(t *testing.T, root, group string) string {
	t.Helper()
	at := root
	for part := range strings.SplitSeq(strings.Trim(group, "/"), "/") {
		at = filepath.Join(at, part)
		if err := errors.Join(os.Mkdir(at, 0o755),
			os.WriteFile(filepath.Join(at, "cgroup.controllers"), []byte("cpu memory pids rdma\n"), 0o644),
			os.WriteFile(filepath.Join(at, "cgroup.subtree_control"), []byte("cpu pids\n"), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	return at
}

func TestLimitsOnVersion2(t *testing.T) {
	root := hierarchies(t, true)
	m, err := New(Config{Root: "/barque/n1", Mountpoint: root})
	if err != nil {
		t.Fatal(err)
	}
	p := pod("u1", v1.ResourceRequirements{Limits: list("2", "1Gi"), Requests: list("2", "1Gi")})
	at := kernelFiles(t, root, m.Parent(p))
	if err := m.Ensure(p); err != nil {
		t.Fatal(err)
	}
	if got := content(t, at, "cpu.max"); got != "200000 100000" {
		t.Errorf("cpu.max %s", got)
	}
	if got := content(t, at, "cpu.weight"); got != "79" {
		t.Errorf("cpu.weight %s", got)
	}
	if got := content(t, at, "memory.max"); got != "1073741824" {
		t.Errorf("memory.max %s", got)
	}
	if got := content(t, at, "cgroup.subtree_control"); got != "+memory" {
		t.Errorf("last enabled %q", got)
	}
}

// TestOnThisMachine makes and removes a real group.
func TestOnThisMachine(t *testing.T) {
	needs.Root(t, "cgroups of this machine")
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
	for range 2 {
		if err := m.Remove("real"); err != nil {
			t.Fatal(err)
		}
	}
	if uids, err := m.Pods(); err != nil || len(uids) != 0 {
		t.Errorf("left: %v %v", uids, err)
	}
}

// TestRemoveEndsWhatTheRuntimeLost: a process that the runtime no longer knows does not delay the
// end of a pod.
func TestRemoveEndsWhatTheRuntimeLost(t *testing.T) {
	needs.Root(t, "that a lost process does not hold up its cgroup")
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
	p := pod("lost", v1.ResourceRequirements{})
	if err := m.Ensure(p); err != nil {
		t.Fatal(err)
	}
	controller := "memory"
	if m.unified {
		controller = ""
	}
	container := filepath.Join(m.dir(controller, m.Parent(p)), "container")
	if err := os.Mkdir(container, 0o755); err != nil {
		t.Fatal(err)
	}
	lost := exec.Command("sleep", "infinity")
	if err := lost.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- lost.Wait() }()
	if err := write(container, "cgroup.procs", strconv.Itoa(lost.Process.Pid)); err != nil {
		t.Fatal(err)
	}
	if err := m.Remove("lost"); err == nil {
		t.Error("a group was removed with a process in it")
	}
	t.Cleanup(func() { _ = lost.Process.Kill() })
	await.Value(t, "the end of the process", ended)
	if err := m.Remove("lost"); err != nil {
		t.Error(err)
	}
}

// TestClassesAreWeighedAgain: the requests of a pod no longer count once it is gone.
func TestClassesAreWeighedAgain(t *testing.T) {
	root := hierarchies(t, false)
	m, err := New(Config{Root: "/barque/n1", Mountpoint: root})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"a", "b"} {
		if err := m.Ensure(pod(name, v1.ResourceRequirements{Requests: list("1", "64Mi")})); err != nil {
			t.Fatal(err)
		}
	}
	shares := func() string { return content(t, m.dir("cpu", m.qosGroup(v1.PodQOSBurstable)), "cpu.shares") }
	if got := shares(); got != "2048" {
		t.Fatalf("two pods of a CPU each have %s shares", got)
	}
	_ = m.Remove("a") // this is no file system of cgroups, in which rmdir suffices
	if got := shares(); got != "1024" {
		t.Errorf("one pod of a CPU has %s shares", got)
	}
}

// All pods of a node weigh as much as its CPUs against the machine's other processes, and not as
// much as one process.
func TestPodsWeighWhatTheNodeHas(t *testing.T) {
	root := hierarchies(t, false)
	if err := os.Mkdir(filepath.Join(root, "cpu/theirs"), 0o755); err != nil {
		t.Fatal(err)
	}
	m, err := New(Config{Root: "/theirs/ours/n1", Mountpoint: root, MilliCPU: 3500})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Ensure(pod("a", v1.ResourceRequirements{})); err != nil {
		t.Fatal(err)
	}
	for _, group := range []string{"theirs/ours", "theirs/ours/n1", "theirs/ours/n1/kubepods"} {
		if got := content(t, root, "cpu", group, "cpu.shares"); got != "3584" {
			t.Errorf("%s has %s shares", group, got)
		}
	}
	if _, err := os.Stat(filepath.Join(root, "cpu/theirs/cpu.shares")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a group of others was weighed: %v", err)
	}
	if got := content(t, root, "cpu/theirs/ours/n1/kubepods/besteffort/cpu.shares"); got != "2" {
		t.Errorf("BestEffort pods have %s shares", got)
	}
}

// A group that an earlier version made, or a smaller node, gets this node's weight; that of a
// larger one keeps its own.
func TestOwnParentsAreRaised(t *testing.T) {
	for name, c := range map[string]struct {
		unified   bool
		file      string
		had, want string
	}{
		"version 1, default":    {false, "cpu.shares", "1024", "3584"},
		"version 1, larger one": {false, "cpu.shares", "8192", "8192"},
		"version 2, default":    {true, "cpu.weight", "100", strconv.FormatInt(weight(3584), 10)},
		"version 2, larger one": {true, "cpu.weight", "9000", "9000"},
	} {
		root := hierarchies(t, c.unified)
		p := pod("a", v1.ResourceRequirements{})
		m, err := New(Config{Root: "/barque/n1", Mountpoint: root, MilliCPU: 3500, Parents: []string{"/barque"}})
		if err != nil {
			t.Fatal(err)
		}
		at := m.dir("cpu", "/")
		if c.unified {
			kernelFiles(t, root, m.Parent(p))
		} else if err := os.Mkdir(filepath.Join(at, "barque"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := write(filepath.Join(at, "barque"), c.file, c.had+"\n"); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := m.Ensure(p); err != nil {
				t.Fatal(err)
			}
		}
		if got := strings.TrimSpace(content(t, at, "barque", c.file)); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
		for _, group := range []string{"barque/n1", "barque/n1/kubepods"} {
			want := "3584"
			if c.unified {
				want = strconv.FormatInt(weight(3584), 10)
			}
			if got := content(t, at, group, c.file); got != want {
				t.Errorf("%s: %s has %s, want %s", name, group, got, want)
			}
		}
	}
}

// A new group above the root weighs as much as the node's CPUs on version 2, too. The walk ends
// there: nothing of the kernel is in a plain directory.
func TestNewParentOnVersion2(t *testing.T) {
	root := hierarchies(t, true)
	kernelFiles(t, root, "/theirs")
	m, err := New(Config{Root: "/theirs/ours/n1", Mountpoint: root, MilliCPU: 3500})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Ensure(pod("a", v1.ResourceRequirements{})); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without the kernel's files: %v", err)
	}
	if got, want := content(t, root, "theirs/ours/cpu.weight"), strconv.FormatInt(weight(3584), 10); got != want {
		t.Errorf("a new group weighs %s, want %s", got, want)
	}
	if _, err := os.Stat(filepath.Join(root, "theirs/cpu.weight")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a group of others was weighed: %v", err)
	}
}

func TestBadRoot(t *testing.T) {
	for _, root := range []string{"", "/", "barque"} {
		if _, err := New(Config{Root: root}); err == nil {
			t.Errorf("%q is taken for a root", root)
		}
	}
}

// TestPodsDoNotSwap: where the kernel accounts for swap, the memory of a pod stays in memory.
func TestPodsDoNotSwap(t *testing.T) {
	root := hierarchies(t, true)
	m, err := New(Config{Root: "/barque/n1", Mountpoint: root})
	if err != nil {
		t.Fatal(err)
	}
	swaps := pod("u1", v1.ResourceRequirements{})
	group := kernelFiles(t, root, m.Parent(swaps))
	if err := m.Ensure(swaps); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(group, "memory.swap.max")); err == nil {
		t.Error("a file was made that the kernel does not have")
	}
	if err := os.WriteFile(filepath.Join(group, "memory.swap.max"), []byte("max\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := m.Ensure(swaps); err != nil || content(t, group, "memory.swap.max") != "0" {
		t.Errorf("%v, the pod may swap %s", err, content(t, group, "memory.swap.max"))
	}
}
