package pods_test

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/barque/barque/kubelet/admission"
	"github.com/barque/barque/kubelet/allocation"
	"github.com/barque/barque/kubelet/cri/fake"
	"github.com/barque/barque/kubelet/images"
	"github.com/barque/barque/kubelet/pods"
	"github.com/barque/barque/kubelet/pods/podlogs"
	"github.com/barque/barque/kubelet/pods/runtimeconfig"
	"github.com/barque/barque/kubelet/probes"
	"github.com/barque/barque/kubelet/starts"
	"github.com/barque/barque/kubelet/volumes"
)

// world is a node in memory: everything but the pods package is fake.
type world struct {
	t       *testing.T
	runtime *fake.Runtime
	manager *pods.Manager
	stop    func()

	mu          sync.Mutex
	statuses    map[types.UID]v1.PodStatus
	finished    map[types.UID]bool
	all         []v1.PodStatus // in the order in which they were set
	recorded    []string
	mountErr    error
	unmounts    int
	mounts      int
	grouped     atomic.Int32
	dir         string
	network     pods.Network
	devices     devices
	unmountErr  error
	allocations *allocation.Manager
	onEnd       func() // called when the end of a pod is reported

	allocatable v1.ResourceList // of the node; plenty when nil
	usage       atomic.Int64    // of each pod's memory
	turns       turns
	steps       []string // of setting limits
}

func (w *world) step(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.steps = append(w.steps, what)
}

// turns lets pods start unless it is closed.
type turns struct {
	mu      sync.Mutex
	closed  bool
	waiting []func()
}

func (p *turns) Begin(s starts.Start) (end func(), ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		p.waiting = append(p.waiting, s.Wake)
	}
	return func() {}, !p.closed
}

func (p *turns) Forget(types.UID) {}

// set closes or opens the way. Pods that wait are woken.
func (p *turns) set(closed bool) {
	p.mu.Lock()
	waiting := p.waiting
	p.closed, p.waiting = closed, nil
	p.mu.Unlock()
	for _, wake := range waiting {
		wake()
	}
}

// devices are prepared or not.
type devices struct {
	mu                       sync.Mutex
	prepareErr, unprepareErr error

	hanging []types.UID  // left over, of a driver that does not answer; set before the start
	asked   atomic.Int32 // for those
}

func (d *devices) fail(prepare, unprepare error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.prepareErr, d.unprepareErr = prepare, unprepare
}

func (d *devices) Prepare(context.Context, *v1.Pod) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.prepareErr
}

func (d *devices) Unprepare(ctx context.Context, uid types.UID) error {
	if slices.Contains(d.hanging, uid) {
		d.asked.Add(1)
		<-ctx.Done()
		return ctx.Err()
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.unprepareErr
}

func (d *devices) Pods() ([]types.UID, error) { return d.hanging, nil }

func (d *devices) Devices(_ *v1.Pod, c *v1.Container) []string {
	return []string{"example.com/gpu=of-" + c.Name}
}

// allocator is a real one, whose file is the world's.
func (w *world) allocator() *allocation.Manager {
	node := &v1.Node{Status: v1.NodeStatus{Allocatable: w.allocatable}}
	if w.allocatable == nil {
		node.Status.Allocatable = v1.ResourceList{v1.ResourceCPU: resource.MustParse("100"),
			v1.ResourceMemory:           resource.MustParse("1Ti"),
			v1.ResourceEphemeralStorage: resource.MustParse("1Ti")}
	}
	a, err := allocation.New(
		allocation.Config{File: filepath.Join(w.dir, "allocated"), Node: func() *v1.Node { return node },
			Host:    func() admission.Input { return admission.Input{} },
			Wake:    func(uid types.UID) { w.manager.Wake(uid) },
			Preempt: func(types.UID) {}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		w.t.Fatal(err)
	}
	return a
}

// unlocked is an allocator that checks its callers: none may hold the lock of the Manager. The
// allocator wakes pods under its own lock, so two of them would wait for each other for ever.
type unlocked struct {
	*allocation.Manager
	w *world
}

func (u unlocked) check() {
	u.w.t.Helper()
	free := make(chan struct{})
	go func() { // ends when the lock is free
		u.w.manager.Wake("no pod")
		close(free)
	}()
	select {
	case <-free:
	case <-time.After(time.Minute):
		u.w.t.Error("the allocator is called under the lock of the Manager")
	}
}

func (u unlocked) Known(pod *v1.Pod) {
	u.check()
	u.Manager.Known(pod)
}

func (u unlocked) Synced() {
	u.check()
	u.Manager.Synced()
}

func (u unlocked) Answer(pod *v1.Pod, runs bool) allocation.Answer {
	u.check()
	return u.Manager.Answer(pod, runs)
}

func (u unlocked) Get(pod *v1.Pod) *v1.Pod {
	u.check()
	return u.Manager.Get(pod)
}

func (u unlocked) Shrunk(uid types.UID, status v1.PodStatus) {
	u.check()
	u.Manager.Shrunk(uid, status)
}

func (u unlocked) Deleted(uid types.UID) {
	u.check()
	u.Manager.Deleted(uid)
}

func (u unlocked) Release(uid types.UID) {
	u.check()
	u.Manager.Release(uid)
}

const image = "docker.io/library/app:1"

func newWorld(t *testing.T) *world {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "resolv.conf"), []byte("nameserver 192.0.2.1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return &world{t: t, runtime: fake.New(image), statuses: map[types.UID]v1.PodStatus{},
		finished: map[types.UID]bool{}, dir: dir}
}

// start runs a manager until w.stop. As the kubelet does, it passes the known pods on before it
// calls Complete: from then on the manager ends each pod of the runtime that it does not know.
func (w *world) start(known ...*v1.Pod) {
	w.t.Helper()
	boxes, err := w.runtime.ListPodSandboxes(context.Background(), nil)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, box := range boxes {
		if !slices.ContainsFunc(known, func(pod *v1.Pod) bool { return string(pod.UID) == box.Metadata.Uid }) {
			w.t.Fatalf(
				"the runtime has a sandbox of pod %s: start the manager with that pod, or it may be ended as an orphan",
				box.Metadata.Name)
		}
	}
	w.launch()
	for _, pod := range known {
		w.manager.Update(pod)
	}
	w.complete()
}

// complete ends the first updates of the manager.
func (w *world) complete() {
	w.manager.Synced()
	w.manager.Complete()
}

// launch runs a manager until w.stop.
func (w *world) launch() {
	prober := probes.New(probes.Config{Exec: w.runtime, Logger: slog.New(slog.DiscardHandler),
		Changed:   func(uid types.UID) { w.manager.Wake(uid) },
		Unhealthy: func(*v1.Pod, *v1.Container, string) {}})
	w.allocations = w.allocator()
	logs := &podlogs.Dirs{Dir: filepath.Join(w.dir, "logs")}
	w.manager = pods.New(pods.Config{
		Starts:  &w.turns,
		Runtime: w.runtime, Images: w.runtime, Volumes: w, Cgroups: noCgroups{&w.grouped, &w.usage, w.step},
		Devices: &w.devices, Probes: prober, Status: w, Events: w, Allocator: unlocked{w.allocations, w},
		Network: w.network,
		Puller:  images.NewPuller(images.Config{Images: w.runtime, Events: w, Logger: slog.New(slog.DiscardHandler)}),
		HostIPs: []string{"192.0.2.7"}, RuntimeName: "fake", Logger: slog.New(slog.DiscardHandler),
		Logs: logs,
		Configs: &runtimeconfig.Builder{Volumes: w, Cgroups: noCgroups{&w.grouped, &w.usage, w.step},
			Devices: &w.devices, Logs: logs, ResolvConf: filepath.Join(w.dir, "resolv.conf"),
			Services:    func(string) []*v1.Service { return nil },
			Allocatable: func() v1.ResourceList { return nil }},
	})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.manager.Run(ctx) }()
	w.stop = func() {
		cancel()
		if err := <-ended; err != nil {
			w.t.Error(err)
		}
		prober.Close()
	}
}

type noCgroups struct {
	ensured *atomic.Int32
	usage   *atomic.Int64
	step    func(string)
}

func (noCgroups) Parent(*v1.Pod) string  { return "/test" }
func (g noCgroups) Ensure(*v1.Pod) error { g.ensured.Add(1); g.step("group"); return nil }
func (g noCgroups) Widen(*v1.Pod) error  { g.step("widen"); return nil }
func (g noCgroups) MemoryUsage(*v1.Pod) (int64, error) {
	if n := g.usage.Load(); n >= 0 {
		return n, nil
	}
	return 0, fs.ErrNotExist // the pod has no group
}
func (noCgroups) Remove(types.UID) error         { return nil }
func (noCgroups) Pods() ([]types.UID, error)     { return nil, nil }
func (w *world) Pods() ([]types.UID, error)      { return nil, nil }
func (w *world) PodDir(uid types.UID) string     { return filepath.Join(w.dir, "pods", string(uid)) }
func (w *world) Forget(uid types.UID)            {}
func (w *world) Relabels(types.UID, string) bool { return true }
func (w *world) SubPath(types.UID, string, string, string, int, string) (string, error) {
	return "", errors.New("no subPath here")
}

func (w *world) Mount(context.Context, *v1.Pod) (map[string]string, time.Time, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mounts++
	return map[string]string{}, time.Time{}, w.mountErr
}

func (w *world) Unmount(types.UID) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unmounts++
	return w.unmountErr
}

func (w *world) Set(pod *v1.Pod, s v1.PodStatus) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.statuses[pod.UID] = s
	w.all = append(w.all, s)
	if w.onEnd != nil && (s.Phase == v1.PodSucceeded || s.Phase == v1.PodFailed) {
		w.onEnd()
	}
}

func (w *world) Finish(pod *v1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.finished[pod.UID] = true
}

func (w *world) Event(_ *v1.Pod, _ *v1.Container, kind, reason, message string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.recorded = append(w.recorded, kind+" "+reason+" "+message)
}

func (w *world) events() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return strings.Join(w.recorded, "\n")
}

// done reports whether the pod's object was given up.
func (w *world) done(pod *v1.Pod) bool {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.finished[pod.UID]
}

func (w *world) unmounted() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.unmounts
}

func (w *world) status(pod *v1.Pod) v1.PodStatus {
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.statuses[pod.UID]
}

func appPod(policy v1.RestartPolicy) *v1.Pod {
	grace := int64(30)
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "app", Namespace: "default", UID: "u1", Generation: 1},
		Spec: v1.PodSpec{RestartPolicy: policy, TerminationGracePeriodSeconds: &grace,
			Containers: []v1.Container{{Name: "main", Image: "app:1", ImagePullPolicy: v1.PullIfNotPresent}}}}
}

func deleted(pod *v1.Pod, grace int64) *v1.Pod {
	pod = pod.DeepCopy()
	now := metav1.Now()
	pod.DeletionTimestamp, pod.DeletionGracePeriodSeconds = &now, &grace
	return pod
}

func isReady(s v1.PodStatus) bool {
	for _, c := range s.Conditions {
		if c.Type == v1.PodReady {
			return c.Status == v1.ConditionTrue
		}
	}
	return false
}

// inWorld runs a test in virtual time.
func inWorld(t *testing.T, test func(t *testing.T, w *world)) {
	dir := newWorld(t).dir // outside the bubble: t.TempDir belongs to the test
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, runtime: fake.New(image), statuses: map[types.UID]v1.PodStatus{},
			finished: map[types.UID]bool{}, dir: dir}
		w.start()
		defer func() { w.stop() }()
		test(t, w)
	})
}

func TestPodRunsRestartsAndEnds(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pod := appPod(v1.RestartPolicyAlways)
		w.manager.Update(pod)
		s := w.status(pod)
		if s.Phase != v1.PodRunning || !isReady(s) || s.PodIP != "10.0.0.1" || s.HostIP != "192.0.2.7" {
			t.Fatalf("status: %+v", s)
		}
		// It comes back at once the first time, and waits the second time.
		w.runtime.End("main", 1, "Error")
		if s = w.status(pod); s.ContainerStatuses[0].RestartCount != 1 || s.ContainerStatuses[0].State.Running == nil {
			t.Fatalf("after the first end: %+v", s.ContainerStatuses)
		}
		w.runtime.End("main", 1, "Error")
		s = w.status(pod)
		if state := s.ContainerStatuses[0].State.Waiting; state == nil || state.Reason != "CrashLoopBackOff" ||
			isReady(s) || s.Phase != v1.PodRunning {
			t.Fatalf("after the second end: %+v", s)
		}
		time.Sleep(10 * time.Second) // virtual
		if s = w.status(pod); s.ContainerStatuses[0].RestartCount != 2 || s.ContainerStatuses[0].State.Running == nil {
			t.Fatalf("after the back-off: %+v", s.ContainerStatuses)
		}
		if !strings.Contains(w.events(), "Warning BackOff Back-off restarting failed container main") {
			t.Errorf("events:\n%s", w.events())
		}
		pod = deleted(pod, 30)
		w.manager.Update(pod)
		if s = w.status(pod); s.Phase != v1.PodFailed || !w.done(pod) || w.unmounted() != 1 {
			t.Errorf("after the deletion: %+v, finished %v", s, w.done(pod))
		}
		w.manager.Remove(pod)
		synctest.Wait()
		if left := w.manager.Pods(); len(left) != 0 {
			t.Errorf("pods are left: %v", left)
		}
	})
}

func TestGraceIsGivenAndTakenBack(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.Stubborn["main"] = true
		pod := appPod(v1.RestartPolicyAlways)
		w.manager.Update(pod)
		w.status(pod)
		began := time.Now()
		w.manager.Update(deleted(pod, 30))
		time.Sleep(29 * time.Second)
		if w.done(pod) {
			t.Fatalf("it was killed after %s", time.Since(began))
		}
		time.Sleep(2 * time.Second)
		if !w.done(pod) {
			t.Error("it was not killed after its grace")
		}

		second := appPod(v1.RestartPolicyAlways)
		second.UID, second.Name = "u2", "second"
		w.manager.Update(second)
		w.status(second)
		w.manager.Update(deleted(second, 600))
		time.Sleep(time.Second)
		w.manager.Update(deleted(second, 1)) // a client deletes it again with a shorter grace period
		time.Sleep(3 * time.Second)
		if !w.done(second) {
			t.Error("a shorter grace period came too late")
		}
	})
}

// TestEndsForTheNode: the node bounds the grace period of a pod that it ends, and of one that a
// client has deleted.
func TestEndsForTheNode(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.runtime.Stubborn["main"] = true
		pod, second, third := appPod(v1.RestartPolicyAlways), appPod(v1.RestartPolicyAlways),
			appPod(v1.RestartPolicyAlways)
		second.UID, second.Name = "u2", "second"
		third.UID, third.Name = "u3", "third"
		for _, p := range []*v1.Pod{pod, second, third} {
			w.manager.Update(p)
			w.status(p)
		}
		if n := len(w.manager.Holding()); n != 3 {
			t.Errorf("it holds %d pods", n)
		}
		w.manager.Update(deleted(third, 12))
		time.Sleep(6 * time.Second)
		w.manager.Update(deleted(second, 600))
		time.Sleep(time.Second)
		for _, p := range []*v1.Pod{pod, second, third} {
			w.manager.Evict(p.UID,
				pods.Eviction{Reason: "Terminated", Message: "so it is", Grace: 10 * time.Second, Quiet: true})
			w.manager.Hasten(p.UID, 10*time.Second)
			w.manager.Hasten(p.UID, time.Minute)
		}
		time.Sleep(9 * time.Second)
		if w.manager.Gone(pod.UID) || w.done(second) {
			t.Error("they had less than their time")
		}
		if !w.done(third) {
			t.Error("one that had 5 s left got more")
		}
		if n := len(w.manager.Holding()); n != 2 {
			t.Errorf("it holds %d pods", n)
		}
		time.Sleep(4 * time.Second)
		if s := w.status(pod); s.Phase != v1.PodFailed || s.Reason != "Terminated" || s.Message != "so it is" ||
			!w.manager.Gone(pod.UID) {
			t.Errorf("%s %s: %s", s.Phase, s.Reason, s.Message)
		}
		if !w.done(second) {
			t.Error("one that is deleted had more than its time")
		}
		if n := len(w.manager.Holding()); n != 0 {
			t.Errorf("it holds %d pods", n)
		}
		if strings.Contains(w.events(), "Terminated") {
			t.Errorf("events: %s", w.events())
		}
	})
}

// TestEndIsToldWhenItsRoomIsFree: clients replace a pod as soon as they see its end. By then its
// network is gone and its resources are free, though its volumes may still be there.
func TestEndIsToldWhenItsRoomIsFree(t *testing.T) {
	dir := newWorld(t).dir // outside the bubble: t.TempDir belongs to the test
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		networkErr := errors.New("the address is not released")
		w := &world{t: t, runtime: fake.New(image), statuses: map[types.UID]v1.PodStatus{},
			finished: map[types.UID]bool{}, dir: dir,
			unmountErr: errors.New("busy"), allocatable: v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")}}
		w.runtime.Fail(func(call, _ string) error {
			mu.Lock()
			defer mu.Unlock()
			if call == "StopPodSandbox" {
				return networkErr
			}
			return nil
		})
		whole := func(uid string) *v1.Pod {
			pod := appPod(v1.RestartPolicyNever)
			pod.UID, pod.Name = types.UID(uid), uid
			pod.Spec.Containers[0].Resources.Requests = v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")}
			return pod
		}
		first, second := whole("u1"), whole("u2")
		var ends []allocation.Answer
		w.onEnd = func() { ends = append(ends, w.allocations.Answer(second, false)) }
		w.start()
		defer func() { w.stop() }()
		w.manager.Update(first)
		if s := w.status(first); s.Phase != v1.PodRunning {
			t.Fatalf("at first: %+v", s)
		}
		w.runtime.End("main", 1, "Error")
		time.Sleep(time.Minute)
		s := w.status(first)
		if s.Phase != v1.PodRunning || isReady(s) || s.ContainerStatuses[0].State.Terminated == nil {
			t.Errorf("while its network is there: %+v", s)
		}
		mu.Lock()
		networkErr = nil
		mu.Unlock()
		time.Sleep(time.Minute)
		if s := w.status(first); s.Phase != v1.PodFailed {
			t.Errorf("when its network is gone: %+v", s)
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if len(ends) != 1 || ends[0].Refused != nil {
			t.Errorf("another pod, each time that the end was told: %+v", ends)
		}
	})
}

// TestLogsGoWithTheirContainers: a pod that restarts again and again keeps the logs of its current
// container and of the one before, which clients may request.
func TestLogsGoWithTheirContainers(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pod := appPod(v1.RestartPolicyAlways)
		w.manager.Update(pod)
		dir := filepath.Join(w.dir, "logs", "default_app_u1", "main")
		logs := func() string {
			entries, err := os.ReadDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, e := range entries {
				names = append(names, e.Name())
			}
			return strings.Join(names, " ")
		}
		const last = 11
		for attempt := range last + 1 {
			if s := w.status(pod); int(s.ContainerStatuses[0].RestartCount) != attempt {
				t.Fatalf("attempt %d: %+v", attempt, s.ContainerStatuses)
			}
			for _, rotated := range []string{"", ".20260101-000000.000", ".20260101-000001.000.gz"} {
				if err := os.WriteFile(filepath.Join(dir, strconv.Itoa(attempt)+".log"+rotated), nil,
					0o600); err != nil {
					t.Fatal(err)
				}
			}
			if attempt < last {
				w.runtime.End("main", 1, "Error")
				time.Sleep(10 * time.Minute)
			}
		}
		const current = "11.log 11.log.20260101-000000.000 11.log.20260101-000001.000.gz"
		if got := logs(); got != "10.log 10.log.20260101-000000.000 10.log.20260101-000001.000.gz "+current {
			t.Errorf("after %d restarts: %s", last, got)
		}
		if err := w.manager.RemoveDead(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := logs(); got != current {
			t.Errorf("when the disk is short: %s", got)
		}
	})
}

// TestDeadStayUntilAllPodsAreKnown: of a container that ended while no kubelet ran, only its
// remains at the runtime show how it ended.
func TestDeadStayUntilAllPodsAreKnown(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pod := appPod(v1.RestartPolicyNever)
		w.manager.Update(pod)
		pod.Status = w.status(pod)
		w.stop()
		w.runtime.End("main", 0, "Completed")
		w.launch()
		if err := w.manager.RemoveDead(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.manager.Synced()
		w.manager.Update(pod)
		w.manager.Complete()
		if s := w.status(pod); s.Phase != v1.PodSucceeded {
			t.Errorf("a job that had succeeded: %+v", s)
		}
		if err := w.manager.RemoveDead(t.Context()); err != nil {
			t.Fatal(err)
		}
		if left, err := w.runtime.ListContainers(t.Context(), nil); err != nil || len(left) != 0 {
			t.Errorf("left when all pods are known: %v %v", left, err)
		}
	})
}

// gate is a network that lets pods in when the test opens it.
type gate struct {
	mu       sync.Mutex
	err      error
	attached []string // pods with their addresses
	detached []string
}

func (g *gate) Attach(_ context.Context, pod *v1.Pod, addrs []string) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err == nil {
		g.attached = append(g.attached, pod.Name+" "+strings.Join(addrs, " "))
	}
	return g.err
}

func (g *gate) Detach(pod *v1.Pod) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.detached = append(g.detached, pod.Name)
}

// TestNothingRunsBeforeTheNetworkIsThere: policies are in force before the first packet of a pod.
func TestNothingRunsBeforeTheNetworkIsThere(t *testing.T) {
	dir := newWorld(t).dir // outside the bubble: t.TempDir belongs to the test
	synctest.Test(t, func(t *testing.T) {
		network := &gate{err: errors.New("the gate is shut")}
		w := &world{t: t, runtime: fake.New(image), statuses: map[types.UID]v1.PodStatus{},
			finished: map[types.UID]bool{}, dir: dir, network: network}
		w.start()
		defer func() { w.stop() }()
		pod := appPod(v1.RestartPolicyAlways)
		w.manager.Update(pod)
		if s := w.status(pod); len(s.ContainerStatuses) != 1 || s.ContainerStatuses[0].State.Waiting == nil {
			t.Fatalf("without its network: %+v", s.ContainerStatuses)
		}
		if told := w.events(); !strings.Contains(told, "the gate is shut") ||
			strings.Contains(told, "Container created") {
			t.Errorf("events: %s", told)
		}
		network.mu.Lock()
		network.err = nil
		network.mu.Unlock()
		<-time.After(time.Minute) // virtual
		if s := w.status(pod); !isReady(s) {
			t.Fatalf("with its network: %+v", s.ContainerStatuses)
		}
		w.runtime.End("main", 1, "Error") // the sandbox stays
		w.status(pod)
		w.manager.Update(deleted(pod, 0))
		<-time.After(time.Minute) // virtual
		synctest.Wait()
		network.mu.Lock()
		defer network.mu.Unlock()
		if !slices.Equal(network.attached, []string{"app 10.0.0.1"}) ||
			!slices.Equal(network.detached, []string{"app"}) {
			t.Errorf("attached %q, detached %q", network.attached, network.detached)
		}
	})
}

func TestPodThatIsDone(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pod := appPod(v1.RestartPolicyOnFailure)
		w.manager.Update(pod)
		w.status(pod)
		w.runtime.End("main", 0, "Completed")
		s := w.status(pod)
		if s.Phase != v1.PodSucceeded || isReady(s) || w.done(pod) || w.unmounted() != 1 {
			t.Fatalf("status: %+v", s)
		}
		if list, _ := w.runtime.ListContainers(context.Background(), nil); len(list) != 1 {
			t.Errorf("its container is gone, and its log with it")
		}
	})
}

func TestSandboxThatDiesIsReplaced(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pod := appPod(v1.RestartPolicyAlways)
		w.manager.Update(pod)
		first := w.status(pod).ContainerStatuses[0].ContainerID
		w.runtime.Kill("app")
		time.Sleep(time.Second)
		s := w.status(pod)
		if c := s.ContainerStatuses[0]; c.ContainerID == first || c.State.Running == nil || c.RestartCount != 1 {
			t.Errorf("status: %+v", c)
		}
	})
}

// A pod that waits for its turn leaves its dead sandbox alone until then: each stop of a sandbox
// calls the network plugins.
func TestADeadSandboxWaitsForItsTurn(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pod := appPod(v1.RestartPolicyAlways)
		w.manager.Update(pod)
		first := w.status(pod).ContainerStatuses[0].ContainerID
		var stops atomic.Int32
		w.runtime.Fail(func(call, _ string) error {
			if call == "StopPodSandbox" {
				stops.Add(1)
			}
			return nil
		})
		w.turns.set(true)
		w.runtime.Kill("app")
		time.Sleep(time.Minute)
		if n := stops.Load(); n != 0 {
			t.Errorf("its dead sandbox was stopped %d times before its turn", n)
		}
		w.turns.set(false)
		time.Sleep(time.Second)
		if c := w.status(pod).ContainerStatuses[0]; c.ContainerID == first || c.State.Running == nil {
			t.Errorf("after its turn has come: %+v", c)
		}
	})
}

func TestRestartOfTheKubeletTouchesNothing(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pod := appPod(v1.RestartPolicyAlways)
		w.manager.Update(pod)
		before := w.status(pod)
		w.stop()
		pod = pod.DeepCopy()
		pod.Status = before
		orphan := appPod(v1.RestartPolicyAlways)
		w.grouped.Store(0)
		w.start(pod)
		if after := w.status(pod); after.ContainerStatuses[0].ContainerID != before.ContainerStatuses[0].ContainerID ||
			!isReady(after) {
			t.Errorf("before: %+v\nafter: %+v", before, after)
		}
		if n := w.grouped.Load(); n != 1 {
			t.Errorf("the pod was told %d times to count in the weight of its class, want once", n)
		}
		// Until the API server has sent the pod, it is an orphan and is ended.
		w.stop()
		w.launch()
		w.complete()
		time.Sleep(15 * time.Second)
		synctest.Wait()
		if list, _ := w.runtime.ListPodSandboxes(context.Background(), nil); len(list) != 0 {
			t.Errorf("the orphan %s is left: %v", orphan.Name, list)
		}
	})
}

func TestPullFailsAndRecovers(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		var up atomic.Bool
		synctest.Wait() // the manager looks at the runtime once when it starts
		w.runtime.Fail(func(call, name string) error {
			if call == "PullImage" && !up.Load() {
				return errors.New("registry is away")
			}
			return nil
		})
		pod := appPod(v1.RestartPolicyAlways)
		pod.Spec.Containers[0].Image = "other:2"
		w.manager.Update(pod)
		waiting := func() string {
			if s := w.status(pod).ContainerStatuses[0].State.Waiting; s != nil {
				return s.Reason
			}
			return ""
		}
		if got := waiting(); got != "ErrImagePull" {
			t.Errorf("waits for %q", got)
		}
		time.Sleep(3 * time.Second)
		if got := waiting(); got != "ImagePullBackOff" {
			t.Errorf("waits for %q", got)
		}
		for _, event := range []string{"Warning Failed Error: ErrImagePull",
			`Normal BackOff Back-off pulling image "other:2"`, "Warning Failed Error: ImagePullBackOff"} {
			if n := strings.Count(w.events(), event); n != 1 {
				t.Errorf("%q was told %d times:\n%s", event, n, w.events())
			}
		}
		up.Store(true)
		time.Sleep(10 * time.Second)
		if s := w.status(pod); s.Phase != v1.PodRunning {
			t.Errorf("status: %+v", s)
		}
	})
}

func TestPodWithoutItsVolumesWaits(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.mu.Lock()
		w.mountErr = errors.New(`secret "x" not found`)
		w.mu.Unlock()
		pod := appPod(v1.RestartPolicyAlways)
		w.manager.Update(pod)
		if s := w.status(pod); s.Phase != v1.PodPending ||
			s.ContainerStatuses[0].State.Waiting.Reason != "ContainerCreating" {
			t.Errorf("status: %+v", s)
		}
		if !strings.Contains(w.events(), "Warning FailedMount") {
			t.Errorf("events:\n%s", w.events())
		}
		w.mu.Lock()
		w.mountErr = nil
		w.mu.Unlock()
		w.manager.Retry(pod.UID)
		if s := w.status(pod); s.Phase != v1.PodRunning {
			t.Errorf("status: %+v", s)
		}
	})
}

func TestNodeWithoutRoomForAVolume(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.mountErr = &volumes.AttachLimitError{Err: errors.New("timed out")}
		pod := appPod(v1.RestartPolicyAlways)
		w.manager.Update(pod)
		s := w.status(pod)
		if want := "Pod was rejected: " + w.mountErr.Error(); s.Phase != v1.PodFailed ||
			s.Reason != "VolumeAttachmentLimitExceeded" || s.Message != want || len(s.ContainerStatuses) > 0 {
			t.Errorf("%+v", s)
		}
		if !strings.Contains(w.events(),
			"Warning VolumeAttachmentLimitExceeded Node has reached its volume attachment limit, rejecting pod.") {
			t.Errorf("events: %s", w.events())
		}
		if boxes, err := w.runtime.ListPodSandboxes(t.Context(), nil); err != nil || len(boxes) != 0 {
			t.Errorf("sandboxes were made: %v %v", boxes, err)
		}
	})
}

// TestVolumesThatCannotBeUpdatedAreTriedAgain, though nothing else happens to the pod.
func TestVolumesThatCannotBeUpdatedAreTriedAgain(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		pod := appPod(v1.RestartPolicyAlways)
		w.manager.Update(pod)
		w.status(pod)
		w.mu.Lock()
		w.mountErr = errors.New("no space left")
		w.mu.Unlock()
		w.manager.Wake(pod.UID)
		synctest.Wait()
		w.mu.Lock()
		before := w.mounts
		w.mountErr = nil
		w.mu.Unlock()
		time.Sleep(5 * time.Second)
		w.mu.Lock()
		defer w.mu.Unlock()
		if w.mounts == before {
			t.Error("it was not tried again")
		}
	})
}

// TestAStartIsNotCutShort: a pod that is deleted during a creating call waits for that call, and is
// ended then. A runtime keeps the half-made objects of a cancelled call.
func TestAStartIsNotCutShort(t *testing.T) {
	for _, slow := range []string{"RunPodSandbox app", "CreateContainer main", "StartContainer main"} {
		t.Run(slow, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				synctest.Wait() // the manager looks at the runtime once when it starts
				var once sync.Once
				w.runtime.Fail(func(call, name string) error {
					if call+" "+name == slow {
						once.Do(func() { time.Sleep(time.Minute) })
					}
					return nil
				})
				pod := appPod(v1.RestartPolicyAlways)
				w.manager.Update(pod)
				time.Sleep(10 * time.Second)
				w.manager.Update(deleted(pod, 30))

				// Another pod is not delayed meanwhile.
				second := appPod(v1.RestartPolicyAlways)
				second.UID, second.Name = "u2", "second"
				second.Spec.Containers[0].Name = "other"
				w.manager.Update(second)
				if s := w.status(second); !isReady(s) {
					t.Errorf("the other pod: %+v", s)
				}
				w.manager.Update(deleted(second, 30))
				time.Sleep(time.Second)
				if !w.done(second) {
					t.Error("the other pod was not ended")
				}

				time.Sleep(48 * time.Second)
				if w.done(pod) {
					t.Error("the pod was given up while something of it was being made")
				}
				time.Sleep(5 * time.Second)
				if !w.done(pod) {
					t.Error("the pod was not ended")
				}
				if cut := w.runtime.Cut(); len(cut) > 0 {
					t.Errorf("cut short: %v", cut)
				}
				boxes, _ := w.runtime.ListPodSandboxes(context.Background(), nil)
				containers, _ := w.runtime.ListContainers(context.Background(), nil)
				if len(boxes)+len(containers) > 0 {
					t.Errorf("left: %v %v", boxes, containers)
				}
				if started := strings.Count(w.events(), "Container started"); slow == "CreateContainer main" &&
					started > 1 {
					t.Error("a container was started of a pod that is being ended")
				}
			})
		})
	}
}

// TestTheKubeletWaitsALittleForStarts when it stops, and not longer.
func TestTheKubeletWaitsALittleForStarts(t *testing.T) {
	for takes, want := range map[time.Duration]int{5 * time.Second: 0, time.Minute: 1} {
		t.Run(takes.String(), func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				synctest.Wait()
				gave := make(chan struct{})
				w.runtime.Fail(func(call, _ string) error {
					if call == "StartContainer" {
						select {
						case <-time.After(takes):
						case <-gave:
						}
					}
					return nil
				})
				w.manager.Update(appPod(v1.RestartPolicyAlways))
				time.Sleep(time.Second)
				stopping := time.Now()
				time.AfterFunc(11*time.Second, func() { close(gave) })
				w.stop()
				if took := time.Since(stopping); took > 11*time.Second {
					t.Errorf("it took %s to stop", took)
				}
				if cut := w.runtime.Cut(); len(cut) != want {
					t.Errorf("cut short: %v, want %d", cut, want)
				}
				w.stop = func() {}
			})
		})
	}
}

// changedImage is the pod with another image.
func changedImage(pod *v1.Pod, image string) *v1.Pod {
	pod = pod.DeepCopy()
	pod.Generation++
	pod.Spec.Containers[0].Image = image
	return pod
}

// TestChangedImage: a container whose image is changed is replaced, whatever its restart policy and
// the number of its restarts. Clients see it running until the new one runs.
func TestChangedImage(t *testing.T) {
	for _, policy := range []v1.RestartPolicy{v1.RestartPolicyAlways, v1.RestartPolicyNever} {
		t.Run(string(policy), func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				synctest.Wait()
				w.runtime.Fail(func(call, name string) error {
					if call == "PullImage" {
						time.Sleep(20 * time.Second)
						if strings.HasSuffix(name, ":none") {
							return errors.New("no such image")
						}
					}
					return nil
				})
				pod := appPod(policy)
				w.manager.Update(pod)
				if policy == v1.RestartPolicyAlways {
					w.status(pod)
					w.runtime.End("main", 1, "Error") // the next end costs 10 s
				}
				before := w.status(pod)
				first := before.ContainerStatuses[0]
				if !isReady(before) {
					t.Fatalf("status: %+v", before)
				}
				w.mu.Lock()
				w.all = nil
				w.mu.Unlock()
				w.runtime.Stubborn["main"] = true
				pod = changedImage(pod, "app:2")
				w.manager.Update(pod)
				time.Sleep(30*time.Second + 20*time.Second + time.Second)
				after := w.status(pod)
				second := after.ContainerStatuses[0]
				if second.State.Running == nil || second.ContainerID == first.ContainerID ||
					second.RestartCount != first.RestartCount+1 ||
					second.LastTerminationState.Terminated == nil || after.ObservedGeneration != 2 {
					t.Errorf("it was not replaced: %+v", after)
				}
				w.mu.Lock()
				for _, s := range w.all {
					if c := s.ContainerStatuses[0]; !isReady(s) || s.Phase != v1.PodRunning || !c.Ready ||
						c.State.Running == nil {
						t.Errorf("told meanwhile: %+v", s)
					}
				}
				w.mu.Unlock()

				if policy == v1.RestartPolicyNever {
					return
				}
				// A failed replacement is reported.
				w.runtime.Stubborn["main"] = false
				w.manager.Update(changedImage(pod, "app:none"))
				time.Sleep(21 * time.Second)
				failed := w.status(pod)
				if c := failed.ContainerStatuses[0]; isReady(failed) || c.State.Waiting == nil ||
					c.State.Waiting.Reason != "ErrImagePull" ||
					c.LastTerminationState.Terminated == nil {
					t.Errorf("without its image: %+v", failed)
				}
			})
		})
	}
}

// TestImageChangedBeforeItIsThere: the old image is not started in place of the new one, and its
// failures do not hold the new one up.
func TestImageChangedBeforeItIsThere(t *testing.T) {
	for _, old := range []string{"app:2", "app:none"} {
		t.Run(old, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				synctest.Wait()
				w.runtime.Fail(func(call, name string) error {
					if call != "PullImage" {
						return nil
					}
					time.Sleep(20 * time.Second)
					if strings.HasSuffix(name, ":none") {
						return errors.New("no such image")
					}
					return nil
				})
				pod := appPod(v1.RestartPolicyAlways)
				pod.Spec.Containers[0].Image = old
				w.manager.Update(pod)
				time.Sleep(10 * time.Second)
				if old == "app:none" {
					time.Sleep(5 * time.Minute) // the next try is far away
				}
				w.manager.Update(changedImage(pod, "app:3"))
				time.Sleep(41 * time.Second)
				if s := w.status(pod); !isReady(s) || !strings.HasSuffix(s.ContainerStatuses[0].ImageID, "app:3") ||
					s.ContainerStatuses[0].RestartCount != 0 {
					t.Errorf("status: %+v", s.ContainerStatuses)
				}
			})
		})
	}
}

// TestAFirstFailureOfVolumesCostsLittle, such as one for a permission that the API server's
// authorizer does not know of yet.
func TestAFirstFailureOfVolumesCostsLittle(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.mu.Lock()
		w.mountErr = errors.New(`serviceaccounts "default" is forbidden`)
		w.mu.Unlock()
		pod := appPod(v1.RestartPolicyAlways)
		w.manager.Update(pod)
		w.status(pod)
		w.mu.Lock()
		w.mountErr = nil
		w.mu.Unlock()
		time.Sleep(time.Second)
		if s := w.status(pod); !isReady(s) {
			t.Errorf("status a second later: %+v", s)
		}
	})
}
