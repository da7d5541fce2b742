package eviction

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/barque/barque/kubelet/cgroups"
	runtimefake "github.com/barque/barque/kubelet/cri/fake"
	"github.com/barque/barque/kubelet/usage"
)

const gib = 1 << 30

func thresholds(t *testing.T, hard, soft, grace, reclaim map[string]string) []Threshold {
	t.Helper()
	list, err := Parse(hard, soft, grace, reclaim)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestJudge(t *testing.T) {
	list := thresholds(t, map[string]string{"memory.available": "1Gi", "nodefs.available": "10%"},
		map[string]string{"memory.available": "2Gi"},
		map[string]string{"memory.available": "1m"}, map[string]string{"nodefs.available": "5%"})
	var m Memory
	start := time.Now()
	for i, step := range []struct {
		after        time.Duration
		memory, disk int64 // GiB
		conditions   string
		short        Signal
		grace        time.Duration
	}{
		{0, 5, 50, "[]", "", 0},
		{0, 1, 50, "[MemoryPressure]", "", 0}, // below the soft one, within its grace
		{59 * time.Second, 1, 50, "[MemoryPressure]", "", 0},
		{time.Second, 1, 50, "[MemoryPressure]", MemoryAvailable, time.Minute},
		{time.Second, 0, 50, "[MemoryPressure]", MemoryAvailable, 0}, // the hard one first
		{time.Second, 5, 50, "[MemoryPressure]", "", 0},              // the condition stays a while
		{5*time.Minute - 2*time.Second, 5, 50, "[MemoryPressure]", "", 0},
		{2 * time.Second, 5, 50, "[]", "", 0},
		{0, 5, 9, "[DiskPressure]", NodeFsAvailable, 0},
		{time.Second, 5, 14, "[DiskPressure]", NodeFsAvailable, 0}, // 5 % more must be reclaimed
		{time.Second, 5, 15, "[DiskPressure]", "", 0},
		{time.Second, 5, 14, "[DiskPressure]", "", 0}, // enough, as long as it never falls below 10 %
		{time.Second, 0, 1, "[MemoryPressure DiskPressure]", MemoryAvailable, 0},
	} {
		start = start.Add(step.after)
		v := Judge(&m, list,
			map[Signal]Observation{MemoryAvailable: {step.memory * gib, 8 * gib},
				NodeFsAvailable: {step.disk * gib, 100 * gib}}, 5*time.Minute, start)
		var short Signal
		var grace time.Duration
		if v.Short != nil {
			short, grace = v.Short.Signal, v.Short.Grace
		}
		if fmt.Sprint(v.Conditions) != step.conditions || short != step.short || grace != step.grace {
			t.Errorf("step %d: %v, short of %q after %s", i, v.Conditions, short, grace)
		}
	}
}

// Nothing and all turn a threshold off, as upstream: "100%" would evict every pod.
func TestThresholdsThatAreOff(t *testing.T) {
	off := map[string]string{"memory.available": "0", "nodefs.available": "0%", "imagefs.available": "100%"}
	grace := map[string]string{"memory.available": "1m", "nodefs.available": "1m", "imagefs.available": "1m"}
	if list := thresholds(t, off, off, grace, nil); len(list) != 0 {
		t.Errorf("%+v", list)
	}
	if list := thresholds(t, map[string]string{"nodefs.available": "99%"}, nil, nil, nil); len(list) != 1 {
		t.Errorf("99%%: %+v", list)
	}
}

// A condition lasts as long as its cause, and transition longer.
func TestConditionsLast(t *testing.T) {
	list := thresholds(t, DefaultHard(), nil, nil, nil)
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 2))
		var m Memory
		now := time.Now()
		last := time.Time{}
		for range 100 {
			now = now.Add(time.Duration(rng.IntN(120)) * time.Second)
			free := rng.Int64N(10)
			v := Judge(&m, list, map[Signal]Observation{NodeFsAvailable: {free, 10}}, 5*time.Minute, now)
			if free < 1 {
				last = now
			}
			want := !last.IsZero() && now.Sub(last) < 5*time.Minute
			if got := slices.Contains(v.Conditions, v1.NodeDiskPressure); got != want {
				t.Fatalf("seed %d: %v %s after the last shortage", seed, got, now.Sub(last))
			}
			if (v.Short != nil) != (free < 1) {
				t.Fatalf("seed %d: short %v with %d of 10", seed, v.Short, free)
			}
		}
	}
}

func podOf(name string, priority int32, memory string) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "ns", UID: types.UID(name)},
		Spec: v1.PodSpec{Priority: &priority, Containers: []v1.Container{{Name: "c"}}}}
	if memory != "" {
		p.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceMemory: resource.MustParse(memory)}
	}
	return p
}

func using(pod *v1.Pod, memory int64) Candidate {
	return Candidate{pod, Use{Containers: []ContainerUse{{Name: "c", Memory: memory}}}}
}

func TestRank(t *testing.T) {
	static := podOf("static", 0, "")
	static.Annotations = map[string]string{"kubernetes.io/config.source": "file"}
	list := Rank(v1.ResourceMemory, []Candidate{
		using(podOf("within", 0, "4Gi"), 3*gib), using(podOf("important", 100, "1Gi"), 9*gib),
		using(podOf("little over", 0, "1Gi"), 2*gib),
		using(podOf("much over", 0, "1Gi"), 5*gib), using(podOf("critical", 2000001000, ""), 7*gib),
		using(static, 7*gib),
	})
	var names []string
	for _, c := range list {
		names = append(names, c.Pod.Name)
	}
	if got := strings.Join(names, ", "); got != "much over, little over, important, within" {
		t.Errorf("order: %s", got)
	}
}

func TestMessage(t *testing.T) {
	th := thresholds(t, map[string]string{"memory.available": "100Mi"}, nil, nil, nil)[0]
	got := Message(th, Observation{Available: 50 << 20, Capacity: gib}, using(podOf("p", 0, "1Gi"), 2*gib))
	want := "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. " +
		"Container c was using 2Gi, request is 1Gi, has larger consumption of memory. "
	if got != want {
		t.Errorf("%q", got)
	}
}

func TestOverLimit(t *testing.T) {
	pod := podOf("p", 0, "")
	size := resource.MustParse("1Gi")
	pod.Spec.Volumes = []v1.Volume{
		{Name: "v", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{SizeLimit: &size}}}}
	limited := podOf("q", 0, "")
	limited.Spec.Containers[0].Resources.Limits = v1.ResourceList{
		v1.ResourceEphemeralStorage: resource.MustParse("2Gi")}
	half := limited.DeepCopy()
	half.Spec.Containers = append(half.Spec.Containers, v1.Container{Name: "d"})
	for _, c := range []struct {
		name string
		of   Candidate
		want string
	}{
		{"a small volume", Candidate{pod, Use{Volumes: map[string]int64{"v": gib}}}, ""},
		{"a volume too large", Candidate{pod, Use{Volumes: map[string]int64{"v": gib + 1}}},
			`Usage of EmptyDir volume "v" exceeds the limit "1Gi". `},
		{"a pod without limits",
			Candidate{podOf("r", 0, ""), Use{Containers: []ContainerUse{{Name: "c", Disk: 99 * gib}}}}, ""},
		{"all of a pod",
			Candidate{limited,
				Use{Containers: []ContainerUse{{Name: "c", Disk: gib}}, Volumes: map[string]int64{"v": 2 * gib}}},
			"Pod ephemeral local storage usage exceeds the total limit of containers 2Gi. "},
		{"one container", Candidate{half, Use{Containers: []ContainerUse{{Name: "c", Disk: 3 * gib}}}},
			`Container c exceeded its local ephemeral storage limit "2Gi". `},
		{"the other one", Candidate{half, Use{Containers: []ContainerUse{{Name: "d", Disk: 3 * gib}}}}, ""},
	} {
		if got := OverLimit(c.of); got != c.want {
			t.Errorf("%s: %q", c.name, got)
		}
	}
}

// machine is a node whose memory its pods use up, and whose images take disk.
type machine struct {
	mu           sync.Mutex
	disk, images int64
	pods         []*v1.Pod
	uses         map[types.UID]Use
	dying        time.Duration // how long an evicted pod holds its resources
	slow         bool          // the disk of pods cannot be measured in time
	frees        int
	evicted      []string
	short        []Signal // for lack of which
	events       []string
}

func newMachine(memory ...int64) *machine {
	m := &machine{disk: 50 * gib, images: 45 * gib, uses: map[types.UID]Use{}}
	for i, used := range memory {
		pod := podOf(fmt.Sprint("p", i), 0, "")
		m.pods = append(m.pods, pod)
		m.uses[pod.UID] = using(pod, used*gib).Use
	}
	return m
}

func (m *machine) Node(context.Context) (map[Signal]Observation, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	free := int64(10 * gib)
	for _, u := range m.uses {
		free -= u.memory()
	}
	return map[Signal]Observation{MemoryAvailable: {free, 10 * gib}, NodeFsAvailable: {m.disk - m.images, 100 * gib}},
		nil
}

func (m *machine) Pods(ctx context.Context, pods []*v1.Pod, disk func(*v1.Pod) bool) (map[types.UID]Use, error) {
	m.mu.Lock()
	uses := maps.Clone(m.uses)
	m.mu.Unlock()
	if m.slow && slices.ContainsFunc(pods, disk) {
		<-ctx.Done()
		return uses, context.Cause(ctx)
	}
	return uses, nil
}

func (m *machine) OneDisk(context.Context) bool { return true }

func (m *machine) active() []*v1.Pod {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.pods)
}

func (m *machine) evict(uid types.UID, _ string, grace time.Duration) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.evicted = append(m.evicted, string(uid))
	m.pods = slices.DeleteFunc(m.pods, func(p *v1.Pod) bool { return p.UID == uid })
	time.AfterFunc(grace+m.dying, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.uses, uid)
	})
	return true
}

func (m *machine) gone(uid types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, there := m.uses[uid]
	return !there
}

func (m *machine) victims() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return strings.Join(m.evicted, " ")
}

// watch runs a manager over the machine until the test ends.
func (m *machine) watch(t *testing.T, list []Threshold, maxGrace time.Duration) *Manager {
	e := New(Config{
		Measure: m, Thresholds: list, MaxPodGrace: maxGrace, Pods: m.active, Evict: m.evict, Gone: m.gone,
		Changed: func() {}, Logger: slog.New(slog.DiscardHandler),
		Free: func(context.Context) error {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.frees++
			m.images = 0
			return nil
		},
		Evicted: func(s Signal) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.short = append(m.short, s)
		},
		NodeEvent: func(reason, message string) {
			m.mu.Lock()
			defer m.mu.Unlock()
			m.events = append(m.events, reason+" "+message)
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return e
}

// TestManager: images go first, then one pod at a time until there is enough.
func TestManager(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(4, 3, 1)
		e := m.watch(t,
			thresholds(t, map[string]string{"memory.available": "4Gi", "nodefs.available": "10%"}, nil, nil, nil), 0)
		time.Sleep(30 * time.Second)
		if m.victims() != "p0" || m.frees != 1 {
			t.Errorf("evicted %s, freed %d times", m.victims(), m.frees)
		}
		if got := fmt.Sprint(e.Conditions()); got != "[MemoryPressure DiskPressure]" {
			t.Errorf("conditions: %s", got)
		}
		if want := []string{"EvictionThresholdMet Attempting to reclaim memory",
			"EvictionThresholdMet Attempting to reclaim ephemeral-storage"}; !slices.Equal(m.events, want) {
			t.Errorf("events: %q", m.events)
		}
		if !slices.Equal(m.short, []Signal{MemoryAvailable}) {
			t.Errorf("evicted for lack of %v", m.short)
		}
		time.Sleep(6 * time.Minute)
		if len(e.Conditions()) != 0 {
			t.Errorf("conditions stay: %v", e.Conditions())
		}
	})
}

// TestOneAtATime: the resources of an evicted pod count until the pod is gone; no other pod is
// evicted meanwhile.
func TestOneAtATime(t *testing.T) {
	hard := map[string]string{"memory.available": "4Gi"}
	for _, c := range []struct {
		name  string
		soft  bool
		dying time.Duration // beyond its grace
		after time.Duration
		want  string
	}{
		{"it dies slowly", false, 20 * time.Second, 2 * time.Minute, "p0"},
		{"it has a grace period", true, 20 * time.Second, 5 * time.Minute, "p0"},
		{"it hangs", false, time.Hour, 25 * time.Second, "p0"},
		{"it has hung for half a minute", false, time.Hour, 35 * time.Second, "p0 p1"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := newMachine(4, 3, 1)
				m.images, m.dying = 0, c.dying
				list := thresholds(t, hard, nil, nil, nil)
				if c.soft {
					list = thresholds(t, nil, hard, map[string]string{"memory.available": "10s"}, nil)
				}
				m.watch(t, list, time.Minute)
				time.Sleep(c.after)
				if got := m.victims(); got != c.want {
					t.Errorf("evicted %s, want %s", got, c.want)
				}
			})
		})
	}
}

// TestMemoryDoesNotWaitForDisk: measuring the disk that pods use may take minutes; memory is short
// now.
func TestMemoryDoesNotWaitForDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMachine(4, 3, 1)
		m.images, m.slow = 0, true
		size := resource.MustParse("1Gi")
		m.pods[2].Spec.Volumes = []v1.Volume{
			{Name: "v", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{SizeLimit: &size}}}}
		m.uses["p2"] = Use{Memory: gib, Volumes: map[string]int64{"v": 2 * gib}}
		m.watch(t, thresholds(t, map[string]string{"memory.available": "4Gi"}, nil, nil, nil), 0)
		time.Sleep(time.Second)
		if got := m.victims(); got != "p0" {
			t.Errorf("evicted %q at once, want p0", got)
		}
		time.Sleep(10 * time.Minute)
		if got := m.victims(); got != "p0 p2" { // by the figures that could be measured
			t.Errorf("evicted %q in the end, want p0 p2", got)
		}
	})
}

// measured are pods with figures.
type measured struct {
	pods   []*usage.Pod
	err    error
	layers int // how often they were asked for
}

func (m *measured) Pods(context.Context) ([]*usage.Pod, error) { return m.pods, m.err }

func (m *measured) AddLayers(_ context.Context, pods []*usage.Pod, _ time.Duration) error {
	m.layers++
	for _, p := range pods {
		for i := range p.Containers {
			p.Containers[i].Layer = &usage.Layer{Bytes: 1 << 30, Inodes: 5}
		}
	}
	return nil
}

// TestMachineUses: the figures of a pod are those of its group; its containers have their layers,
// the ended ones too, and one directory of logs for each name.
func TestMachineUses(t *testing.T) {
	dir := t.TempDir()
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, "logs/c"), 0o700),
		os.WriteFile(filepath.Join(dir, "logs/c/0.log"), make([]byte, 1<<20), 0o600)); err != nil {
		t.Fatal(err)
	}
	tasks := uint64(7)
	figures := func(memory uint64) usage.Figures {
		return usage.Figures{At: time.Unix(1, 0),
			Stats: cgroups.Stats{Memory: &cgroups.MemoryStats{Usage: 2 * memory, WorkingSet: memory}, Tasks: &tasks}}
	}
	u := &measured{pods: []*usage.Pod{
		{UID: "p", Figures: figures(100),
			Containers: []usage.Container{{ID: "1", Name: "c"},
				{ID: "2", Name: "c", Running: true, Figures: figures(60)}}},
		{UID: "ended"},
	}}
	m := &Machine{Usage: u, RootDir: dir, PodDir: func(types.UID) string { return dir },
		LogDir: func(*v1.Pod) string { return filepath.Join(dir, "logs") }}
	pods := []*v1.Pod{podOf("p", 0, ""), podOf("ended", 0, "")}
	uses, err := m.Pods(t.Context(), pods, func(*v1.Pod) bool { return false })
	if use := uses["p"]; err != nil || use.Memory != 100 || use.Processes != 7 || len(use.Containers) != 2 ||
		use.Containers[1] != (ContainerUse{Name: "c", Memory: 60}) || u.layers != 0 {
		t.Errorf("%+v, %v, layers asked for %d times", use, err, u.layers)
	}
	uses, err = m.Pods(t.Context(), pods, func(*v1.Pod) bool { return true })
	if use := uses["p"]; err != nil || use.disk() < 2<<30+1<<20 || use.disk() > 2<<30+1<<20+1<<16 ||
		use.Containers[0].Inodes < 5 || u.layers != 1 {
		t.Errorf("%+v, %v, layers asked for %d times", use, err, u.layers)
	}
	u.err = errors.New("a damaged group")
	if uses, err := m.Pods(t.Context(), pods, func(*v1.Pod) bool { return false }); !errors.Is(err, u.err) ||
		uses["p"].Memory != 100 {
		t.Errorf("with one group that cannot be read: %v %v", uses, err)
	}
	u.pods = nil
	if uses, err := m.Pods(t.Context(), pods, func(*v1.Pod) bool { return false }); err == nil || uses != nil {
		t.Errorf("without a measurement: %v %v", uses, err)
	}
}

func TestMachine(t *testing.T) {
	dir := t.TempDir()
	m := &Machine{Runtime: runtimefake.New(), Usage: &measured{}, RootDir: dir,
		PodDir: func(uid types.UID) string { return filepath.Join(dir, string(uid)) },
		LogDir: func(pod *v1.Pod) string { return filepath.Join(dir, "logs", pod.Name) }}
	seen, err := m.Node(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []Signal{MemoryAvailable, NodeFsAvailable, ImageFsAvailable, PIDAvailable} {
		if o := seen[s]; o.Available <= 0 || o.Capacity < o.Available {
			t.Errorf("%s: %+v", s, o)
		}
	}
	pod := podOf("p", 0, "")
	pod.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}
	volume := filepath.Join(dir, "p", "volumes", "kubernetes.io~empty-dir", "v")
	if err := os.MkdirAll(volume, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(volume, "a"), make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Link(filepath.Join(volume, "a"), filepath.Join(volume, "b")); err != nil {
		t.Fatal(err)
	}
	uses, err := m.Pods(context.Background(), []*v1.Pod{pod}, func(*v1.Pod) bool { return true })
	if n := uses["p"].Volumes["v"]; err != nil || n < 1<<20 || n > 1<<20+1<<16 {
		t.Errorf("the volume has %d bytes: %v", n, err)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(errors.New("too slow"))
	if uses, err := m.Pods(ctx, []*v1.Pod{pod}, func(*v1.Pod) bool { return true }); err == nil || uses == nil {
		t.Errorf("when it takes too long: %v %v; want what is known and an error", uses, err)
	}
}
