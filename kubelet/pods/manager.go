package pods

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/barque/barque/kubelet/allocation"
	"github.com/barque/barque/kubelet/cri"
	"github.com/barque/barque/kubelet/podinfo"
	"github.com/barque/barque/kubelet/pods/podlogs"
	"github.com/barque/barque/kubelet/pods/runtimeconfig"
	"github.com/barque/barque/kubelet/probes"
	"github.com/barque/barque/kubelet/starts"
)

// Causes with which contexts of this package end.
var (
	errStopping = errors.New("the kubelet is stopping")
	errEnding   = errors.New("the pod is being ended")
)

// Puller gets the image of a container. Errors that are *images.Error carry the reason to show.
type Puller interface {
	Ensure(
		ctx context.Context, pod *v1.Pod, container *v1.Container, sandbox *runtimeapi.PodSandboxConfig,
	) (ref string, err error)
}

// ImageStatus looks an image up.
type ImageStatus interface {
	ImageStatus(ctx context.Context, image string) (*runtimeapi.Image, error)
}

// VolumeManager provides and takes away the volumes of pods.
type VolumeManager interface {
	runtimeconfig.Volumes
	Mount(ctx context.Context, pod *v1.Pod) (paths map[string]string, next time.Time, err error)
	Unmount(uid types.UID) error
	Pods() ([]types.UID, error)
}

// CgroupManager makes and removes the groups of pods.
type CgroupManager interface {
	runtimeconfig.Cgroups
	Ensure(pod *v1.Pod) error
	// Widen raises those limits of a pod's group that must rise, and lowers none.
	Widen(pod *v1.Pod) error
	// MemoryUsage returns the memory of the whole pod, in bytes.
	MemoryUsage(pod *v1.Pod) (int64, error)
	Remove(uid types.UID) error
	Pods() ([]types.UID, error)
}

// Allocator admits pods and allocates their resources; see package allocation. It calls Wake and
// Evict under its own lock. So no caller of it holds the lock of a Manager.
type Allocator interface {
	Known(pod *v1.Pod)
	Synced()
	Answer(pod *v1.Pod, runs bool) allocation.Answer
	Get(pod *v1.Pod) *v1.Pod
	Shrunk(uid types.UID, status v1.PodStatus)
	Deleted(uid types.UID)
	Release(uid types.UID)
}

// Prober keeps probing the running containers of pods.
type Prober interface {
	Sync(pod *v1.Pod, targets []probes.Target)
	Health(containerID string) (probes.Health, bool)
	Forget(uid types.UID)
}

// StatusWriter writes statuses to the API server. It must not block.
type StatusWriter interface {
	Set(pod *v1.Pod, status v1.PodStatus)
	// Finish is called once nothing of a deleted pod is left, and may be called again.
	Finish(pod *v1.Pod)
	Forget(uid types.UID)
}

// DeviceManager prepares devices of pods and takes them back.
type DeviceManager interface {
	runtimeconfig.Devices
	// Prepare is called before each step of a pod.
	Prepare(ctx context.Context, pod *v1.Pod) error
	// Unprepare is called when the pod's containers have ended, until it succeeds.
	Unprepare(ctx context.Context, pod types.UID) error
	// Pods lists the pods that have devices.
	Pods() ([]types.UID, error)
}

// Pacer lets the starts of pods begin in turn; see package starts.
type Pacer interface {
	Begin(s starts.Start) (end func(), ok bool)
	Forget(pod types.UID)
}

// EventRecorder records events of pods. An empty container means the whole pod.
type EventRecorder interface {
	Event(pod *v1.Pod, container *v1.Container, kind, reason, message string)
}

// Config configures a Manager.
type Config struct {
	Runtime cri.Runtime
	Images  ImageStatus
	Puller  Puller
	Volumes VolumeManager
	Cgroups CgroupManager
	Devices DeviceManager // nil when there are none
	Probes  Prober
	Status  StatusWriter
	Events  EventRecorder
	// Allocator decides about the resources of pods.
	Allocator Allocator
	Starts    Pacer // nil: all at once
	Configs   *runtimeconfig.Builder
	Logs      *podlogs.Dirs
	Network   Network // may be nil

	HostIPs     []string
	RuntimeName string // the name before :// in container IDs
	// Relist is the interval of looks at all pods without an event; 10 s when 0. Without the
	// runtime's event stream it is a second.
	Relist time.Duration
	Now    func() time.Time // time.Now when nil
	Meter  Meter            // may be nil
	Logger *slog.Logger
}

// Meter records the duration of work.
type Meter interface {
	Relisted(began, ended time.Time)
	Stepped(ending bool, took time.Duration)
}

// Network guards the traffic of pods with addresses of their own.
type Network interface {
	// Attach returns when the cluster's rules for the pod at these addresses are in force. No
	// container of the pod runs before.
	Attach(ctx context.Context, pod *v1.Pod, addrs []string) error
	// Detach is called for a pod in which nothing runs any more.
	Detach(pod *v1.Pod)
}

// Manager owns the workers of all pods.
type Manager struct {
	Config
	workers sync.WaitGroup // workers and their background steps; they end with Run's context

	// making is the context of creating calls to the runtime. It outlives pods: a runtime keeps the
	// half-made objects of a cancelled call. Each call has a deadline of its own.
	making context.Context

	mu       sync.Mutex
	ctx      context.Context // set while Run runs
	pods     map[types.UID]*worker
	complete bool // all pods of this node are known: others are orphans
	seen     map[types.UID]uint64

	looks looks

	known    chan struct{}                          // closed when complete is set
	sweeping struct{ devices, volumes atomic.Bool } // those of unknown pods are being removed
}

// New returns a manager. Nothing happens before Run.
func New(config Config) *Manager {
	if config.Relist == 0 {
		config.Relist = 10 * time.Second
	}
	if config.Now == nil {
		config.Now = time.Now
	}
	return &Manager{Config: config, pods: map[types.UID]*worker{}, seen: map[types.UID]uint64{},
		known: make(chan struct{})}
}

// makingPatience bounds Run's wait at its end for creating calls.
const makingPatience = 10 * time.Second

// Run owns the pods until ctx ends. Pods stay as they are then.
func (m *Manager) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(errStopping)
	making, abandon := context.WithCancelCause(context.WithoutCancel(ctx))
	defer abandon(errStopping)
	context.AfterFunc(ctx, func() { time.AfterFunc(makingPatience, func() { abandon(errStopping) }) })
	m.mu.Lock()
	m.making = making
	m.ctx = ctx
	for _, w := range m.pods {
		m.launchLocked(w)
	}
	m.mu.Unlock()

	m.looks.begin(m.Now())
	events := make(chan bool, 1)
	m.workers.Go(func() { m.follow(ctx, events) }) // ends with ctx
	m.relistLoop(ctx, events)
	m.workers.Wait()
	return nil
}

// Update takes a pod that the API server has bound to this node, or its change.
func (m *Manager) Update(pod *v1.Pod) {
	if !m.Has(pod.UID) {
		m.Allocator.Known(pod) // before another pod asks for the resources of this one
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.updateLocked(pod, false)
}

// Remove marks a pod that the API server no longer has.
func (m *Manager) Remove(pod *v1.Pod) {
	if !m.Has(pod.UID) {
		return
	}
	m.Allocator.Deleted(pod.UID)
	m.mu.Lock()
	defer m.mu.Unlock()
	if w := m.pods[pod.UID]; w != nil {
		w.update(pod, true)
	}
}

// Has reports whether anything of a pod is left.
func (m *Manager) Has(uid types.UID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pods[uid] != nil
}

// Synced ends the first calls of Update: they had every pod that the API server has bound to this
// node. From now on new pods are decided about.
func (m *Manager) Synced() {
	m.Allocator.Synced()
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, w := range m.pods {
		w.poke() // those that are new have waited for this
	}
}

// Complete ends the first calls of Update for all pods of this node, those of manifests among them.
// From now on, other containers of the runtime are ended and removed.
func (m *Manager) Complete() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.complete {
		m.complete = true
		close(m.known)
	}
}

// Known is closed by Complete, when every pod of this node is known.
func (m *Manager) Known() <-chan struct{} { return m.known }

func (m *Manager) worker(uid types.UID) *worker {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.pods[uid]
}

// Wake makes a pod be looked at, after a change of something that it depends on.
func (m *Manager) Wake(uid types.UID) {
	w := m.worker(uid)
	if w != nil {
		w.poke()
	}
}

// Retry is Wake for a pod that refers to a changed object: a container that lacked the object is
// tried again at once.
func (m *Manager) Retry(uid types.UID) {
	w := m.worker(uid)
	if w != nil {
		w.mu.Lock()
		w.retry = true
		w.mu.Unlock()
		w.poke()
	}
}

// Eviction is the reason why the node ends a pod for its own sake.
type Eviction struct {
	Reason, Message string
	Grace           time.Duration // at most, to end
	Quiet           bool          // no event is recorded
}

// Evict ends a pod. Its status has the reason, also for the pod's controller. It is false when the
// pod is being ended already.
func (m *Manager) Evict(uid types.UID, why Eviction) bool {
	w := m.worker(uid)
	return w != nil && w.evict(why)
}

// Hasten bounds the time that a pod which is being ended has left. It never extends that time.
func (m *Manager) Hasten(uid types.UID, grace time.Duration) {
	w := m.worker(uid)
	if w != nil {
		w.hasten(grace)
	}
}

// Holding lists the pods of which something is left on the node, those that are being ended among
// them.
func (m *Manager) Holding() []*v1.Pod {
	m.mu.Lock()
	workers := slices.Collect(maps.Values(m.pods))
	m.mu.Unlock()
	var list []*v1.Pod
	for _, w := range workers {
		if w.cleaned.Load() {
			continue
		}
		if pod, _ := w.desired(); pod != nil {
			list = append(list, pod)
		}
	}
	return list
}

// Gone reports whether a pod has ended and its containers, volumes and groups are removed from the
// node. Its object may still be there.
func (m *Manager) Gone(uid types.UID) bool {
	w := m.worker(uid)
	return w == nil || w.cleaned.Load()
}

// Active lists the pods that run or will run, with their allocated resources.
func (m *Manager) Active() []*v1.Pod {
	m.mu.Lock()
	workers := slices.Collect(maps.Values(m.pods))
	m.mu.Unlock()
	var list []*v1.Pod
	for _, w := range workers {
		if pod := w.active(); pod != nil {
			list = append(list, m.Allocator.Get(pod))
		}
	}
	return list
}

// RemoveDead removes ended containers that no restart needs: those of pods that are over, and
// earlier ones. Their logs go with them. Before all pods are known it removes nothing, because the
// end of a pod while no kubelet ran is read from its containers.
func (m *Manager) RemoveDead(ctx context.Context) error {
	m.mu.Lock()
	complete := m.complete
	m.mu.Unlock()
	if !complete {
		return nil
	}
	containers, err := m.Runtime.ListContainers(ctx, nil)
	if err != nil {
		return fmt.Errorf("list containers: %s", cri.Message(err))
	}
	type key struct{ uid, name string }
	of := func(c *runtimeapi.Container) key {
		return key{c.Labels[cri.LabelPodUID], c.Labels[cri.LabelContainerName]}
	}
	newest := map[key]uint32{}
	for _, c := range containers {
		newest[of(c)] = max(newest[of(c)], c.GetMetadata().GetAttempt())
	}
	alive := map[string]bool{}
	for _, pod := range m.Pods() {
		alive[string(pod.UID)] = !podinfo.Finished(pod.Status.Phase)
	}
	var errs []error
	for _, c := range containers {
		if c.State != runtimeapi.ContainerState_CONTAINER_EXITED ||
			alive[c.Labels[cri.LabelPodUID]] && newest[of(c)] == c.GetMetadata().GetAttempt() {
			continue
		}
		if err := m.removeContainer(ctx, c.Id); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// removeContainer removes a container that has ended, and its logs.
func (m *Manager) removeContainer(ctx context.Context, id string) error {
	path := ""
	if status, err := m.Runtime.ContainerStatus(ctx, id); err == nil {
		path = status.LogPath
	}
	if err := m.Runtime.RemoveContainer(ctx, id); err != nil {
		return fmt.Errorf("remove container %s: %s", id, cri.Message(err))
	}
	return m.Logs.RemoveLog(path)
}

// Pods lists the pods of this node, with their last statuses.
func (m *Manager) Pods() []*v1.Pod {
	m.mu.Lock()
	defer m.mu.Unlock()
	list := make([]*v1.Pod, 0, len(m.pods))
	for _, w := range m.pods {
		if pod := w.latest(); pod != nil {
			list = append(list, pod)
		}
	}
	return list
}

// updateLocked hands a pod to the worker that owns it, making one for a pod that is new.
func (m *Manager) updateLocked(pod *v1.Pod, gone bool) *worker {
	w := m.pods[pod.UID]
	if w == nil {
		w = newWorker(m, pod.UID)
		m.pods[pod.UID] = w
	}
	w.update(pod, gone)
	m.launchLocked(w) // not before it knows its pod
	return w
}

// launchLocked starts the goroutine that owns a pod. It ends with Run's context, or when the pod is
// terminated and the API server has forgotten it.
func (m *Manager) launchLocked(w *worker) {
	if m.ctx == nil || m.ctx.Err() != nil || w.launched {
		return
	}
	w.launched = true
	ctx := m.ctx
	m.workers.Go(func() {
		if w.run(ctx) {
			m.mu.Lock()
			delete(m.pods, w.uid)
			delete(m.seen, w.uid)
			m.mu.Unlock()
		}
	})
}

// follow turns the runtime's events into wake-ups, and sends whether the stream is connected.
func (m *Manager) follow(ctx context.Context, connected chan<- bool) {
	send := func(up bool) {
		select {
		case connected <- up:
		case <-ctx.Done():
		}
	}
	for ctx.Err() == nil {
		err := m.Runtime.Events(ctx, func() { send(true) }, func(e *runtimeapi.ContainerEventResponse) {
			if box := e.GetPodSandboxStatus(); box.GetMetadata() != nil {
				m.Wake(types.UID(box.Metadata.Uid))
			}
		})
		if ctx.Err() != nil {
			return
		}
		m.Logger.Debug("the runtime's event stream ended; looking at all pods every second", "err", err)
		send(false)
		wait(ctx, time.Second)
	}
}

func wait(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// relistLoop lists all containers at intervals, for lost events and for orphans.
func (m *Manager) relistLoop(ctx context.Context, connected <-chan bool) {
	period := time.Second
	timer := time.NewTimer(0)
	defer timer.Stop()
	for rounds := 0; ; rounds++ {
		select {
		case <-ctx.Done():
			return
		case up := <-connected:
			period = time.Second
			if up {
				period = m.Relist
			}
		case <-timer.C:
		}
		err := m.relist(ctx)
		m.looks.ended(m.Now(), err)
		if err != nil && ctx.Err() == nil {
			m.Logger.Warn("cannot list what the runtime runs; trying again", "err", err)
		} else if rounds%6 == 0 {
			m.sweep()
		}
		timer.Reset(period)
	}
}

// relist wakes the pods whose containers have changed since the last look, and adopts orphans.
func (m *Manager) relist(ctx context.Context) error {
	began := m.Now()
	boxes, err := m.Runtime.ListPodSandboxes(ctx, nil)
	if err != nil {
		return err
	}
	containers, err := m.Runtime.ListContainers(ctx, nil)
	if err != nil {
		return err
	}
	if m.Meter != nil {
		m.Meter.Relisted(began, m.Now())
	}
	sums := map[types.UID]uint64{}
	add := func(uid, id string, state int32) {
		h := fnv.New64a()
		fmt.Fprintf(h, "%s %d", id, state)
		sums[types.UID(uid)] += h.Sum64() // the order of a list means nothing
	}
	stubs := map[types.UID]*v1.Pod{}
	for _, b := range boxes {
		if b.Metadata == nil {
			continue
		}
		uid := types.UID(b.Metadata.Uid)
		add(b.Metadata.Uid, b.Id, int32(b.State))
		stubs[uid] = &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: b.Metadata.Name, Namespace: b.Metadata.Namespace, UID: uid}}
	}
	for _, c := range containers {
		add(c.Labels[cri.LabelPodUID], c.Id, int32(c.State))
	}

	m.mu.Lock()
	defer m.mu.Unlock()
	for uid, sum := range sums {
		w := m.pods[uid]
		if w == nil && m.complete && stubs[uid] != nil {
			m.Logger.Info("ending a pod that the API server does not know", "pod",
				stubs[uid].Namespace+"/"+stubs[uid].Name, "uid", uid)
			w = m.updateLocked(stubs[uid], true)
		}
		if w != nil && m.seen[uid] != sum {
			w.poke()
		}
	}
	for uid, w := range m.pods {
		if _, ok := sums[uid]; !ok && m.seen[uid] != 0 {
			w.poke()
		}
	}
	m.seen = sums
	return nil
}

// sweep removes directories and groups of unknown pods.
func (m *Manager) sweep() {
	known := func(uid types.UID) bool {
		m.mu.Lock()
		defer m.mu.Unlock()
		_, ok := m.pods[uid]
		_, runs := m.seen[uid]
		return ok || runs || !m.complete
	}
	sweepEach := func(what string, list func() ([]types.UID, error), remove func(types.UID) error) {
		uids, err := list()
		if err != nil {
			m.Logger.Warn("cannot list leftovers of pods", "what", what, "err", err)
			return
		}
		for _, uid := range uids {
			if known(uid) {
				continue
			}
			if err := remove(uid); err != nil {
				m.Logger.Warn("cannot remove what a pod left", "what", what, "uid", uid, "err", err)
			}
		}
	}
	// A driver that does not answer delays nothing else.
	aside := func(busy *atomic.Bool, sweep func()) {
		if busy.CompareAndSwap(false, true) {
			m.workers.Go(func() { // ends with making, or with the time-outs of drivers
				defer busy.Store(false)
				sweep()
			})
		}
	}
	sweepEach("cgroup", m.Cgroups.Pods, m.Cgroups.Remove)
	if m.Devices != nil {
		aside(&m.sweeping.devices, func() {
			sweepEach("devices", m.Devices.Pods,
				func(uid types.UID) error { return m.Devices.Unprepare(m.making, uid) })
		})
	}
	aside(&m.sweeping.volumes, func() { sweepEach("directory", m.Volumes.Pods, m.Volumes.Unmount) })
	sweepEach("logs", m.Logs.Pods, m.Logs.RemoveOwn)
	if err := m.Logs.RemoveDeadLinks(); err != nil {
		m.Logger.Warn("cannot remove links to logs that are gone", "err", err)
	}
}
