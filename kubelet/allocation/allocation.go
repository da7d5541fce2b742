// Package allocation keeps the resources that each pod of the node was allocated.
//
// A pod is allocated the resources of its spec when the node admits it. A later change of the spec
// (a resize) is allocated only when it fits beside all other pods; until then the pod keeps its
// allocation. An allocation is on disk before it is used, so that a restarted kubelet neither
// refuses a running pod nor actuates a resize that does not fit. New pods and resizes are decided
// only when all pods of the node are known.
//
// Package admission decides. The workers of pods actuate.
package allocation

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"

	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"github.com/barque/barque/internal/atomicfile"
	"github.com/barque/barque/kubelet/admission"
)

// Given has the allocated resources of a pod.
type Given struct {
	Pod        *v1.ResourceRequirements           `json:"pod,omitempty"`
	Containers map[string]v1.ResourceRequirements `json:"containers,omitempty"`
	// Generation is that of the spec with these resources.
	Generation int64 `json:"generation,omitempty"`
	// Resized is set once a resize was allocated.
	Resized bool `json:"resized,omitempty"`
}

// Pending is the reason why a pod's resize is not allocated.
type Pending struct {
	Reason  string // Deferred or Infeasible
	Message string
}

// Answer is the decision about a pod.
type Answer struct {
	// Pod is the pod with its allocated resources.
	Pod *v1.Pod
	// Refused is set when the node does not take the pod.
	Refused *admission.Refusal
	// Waiting is set while it cannot be decided yet: other pods of the node are not known.
	Waiting bool
	Pending *Pending
	// Generation is that of the spec whose resources were allocated.
	Generation int64
	// Resized is set once after each allocated resize, and EverResized from the first one on, also
	// by a process that starts later.
	Resized, EverResized bool
}

// Config configures a Manager.
type Config struct {
	// File keeps the allocations. Its directory exists.
	File string
	// Node returns the known node with its allocatable resources. Newest asks the API server for
	// it, since a watch may be late; it returns nil when there is no answer. Newest may
	// be nil itself.
	Node   func() *v1.Node
	Newest func() *v1.Node
	// Host returns the machine's part of the input; Pod, Others and Node are not read.
	Host func() admission.Input
	// Wake makes a pod be looked at again.
	Wake func(types.UID)
	// Preempt ends a pod to make room for a critical one. It does not wait, and may be called
	// again.
	Preempt func(types.UID)
	Logger  *slog.Logger
}

// Manager keeps the allocations. It is safe for concurrent use.
type Manager struct {
	Config

	mu     sync.Mutex
	saved  map[types.UID]Given // as on disk
	pods   map[types.UID]*holder
	urgent map[types.UID]bool // pods that wait for the end of others
	synced bool
	write  func(path string, data []byte, mode os.FileMode) error
}

// holder is an admitted pod.
type holder struct {
	pod     *v1.Pod // the desired pod, with its newest status
	pending *Pending
	since   int64 // orders pending resizes by when they began to wait
	resized bool  // allocated since the last Answer
	deleted bool  // the API server no longer has it: it is ending
}

const formatVersion = 1

type file struct {
	Version int                 `json:"version"`
	Pods    map[types.UID]Given `json:"pods"`
}

// New reads the saved allocations.
func New(config Config) (*Manager, error) {
	m := &Manager{Config: config, saved: map[types.UID]Given{}, pods: map[types.UID]*holder{},
		urgent: map[types.UID]bool{}, write: atomicfile.Write}
	raw, err := os.ReadFile(config.File)
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the resources given to pods: %w", err)
	}
	var f file
	if err := json.Unmarshal(raw, &f); err != nil {
		return nil,
			fmt.Errorf("%s: the resources given to pods: %w; remove the file to give all pods what their specs ask for",
				config.File, err)
	}
	if f.Version != formatVersion {
		return nil,
			fmt.Errorf("%s has format %d, and this version knows %d: run the version that wrote it, or remove the file",
				config.File, f.Version, formatVersion)
	}
	if f.Pods != nil {
		m.saved = f.Pods
	}
	return m, nil
}

// Known adds a pod of this node before Answer is called for it. A pod with a saved allocation or a
// started container counts from now on. It is called once for each pod.
func (m *Manager) Known(pod *v1.Pod) {
	m.mu.Lock()
	defer m.mu.Unlock()
	over := pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed
	if _, ok := m.saved[pod.UID]; (ok || started(pod)) && !over && m.pods[pod.UID] == nil {
		m.pods[pod.UID] = &holder{pod: pod}
	}
}

// started reports whether any kubelet has created containers of a pod.
func started(pod *v1.Pod) bool {
	for _, list := range [][]v1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		if slices.ContainsFunc(list, func(s v1.ContainerStatus) bool { return s.ContainerID != "" }) {
			return true
		}
	}
	return false
}

// Synced ends the calls of Known: all pods of the node are known. Allocations of other pods are
// forgotten, because those pods were deleted while the kubelet was down. Resizes are decided from
// now on, by the next Answer.
func (m *Manager) Synced() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.synced = true
	before := len(m.saved)
	for uid := range m.saved {
		if m.pods[uid] == nil {
			delete(m.saved, uid)
		}
	}
	if len(m.saved) != before {
		m.save()
	}
}

// Answer decides whether a pod may run and with which resources. A pod that runs was admitted
// before. It may wait for the API server.
func (m *Manager) Answer(pod *v1.Pod, runs bool) Answer {
	a := m.decide(pod, runs, m.Node())
	if a.Refused == nil || !a.Refused.ByNode || m.Newest == nil || admission.IsStatic(pod) {
		return a
	}
	// Labels and taints that let the scheduler choose this node may be newer than the cached node.
	if node := m.Newest(); node != nil {
		return m.decide(pod, runs, node)
	}
	return a
}

// decide is Answer with the labels and taints of one Node.
func (m *Manager) decide(pod *v1.Pod, runs bool, node *v1.Node) Answer {
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.pods[pod.UID]
	if h == nil && !runs {
		if !m.synced && !admission.IsStatic(pod) {
			return Answer{Pod: pod, Waiting: true}
		}
		in := m.input(pod)
		in.Node = node
		refusal := admission.Check(in)
		if refusal != nil && refusal.Resource != "" {
			if m.fitsLater(in) {
				m.urgent[pod.UID] = true
				return Answer{Pod: pod, Waiting: true}
			}
			if victims := admission.Victims(in); len(victims) > 0 {
				m.urgent[pod.UID] = true
				for _, victim := range victims {
					m.Preempt(victim.UID)
				}
				return Answer{Pod: pod, Waiting: true}
			}
		}
		delete(m.urgent, pod.UID)
		if refusal != nil {
			return Answer{Pod: pod, Refused: refusal}
		}
	}
	if h == nil {
		h = &holder{pod: pod}
		m.pods[pod.UID] = h
	}
	h.pod = pod
	if _, ok := m.saved[pod.UID]; !ok {
		// A pod that was started by a kubelet that kept no allocations may be in the middle of a
		// resize.
		given := asked(pod)
		if seen, ok := told(pod); ok {
			given = seen
		}
		m.saved[pod.UID] = given
		if err := m.save(); err != nil {
			m.Logger.Error("cannot save what a pod was given; a restart of the kubelet may admit it anew", "pod",
				pod.Namespace+"/"+pod.Name, "err", err)
		}
	}
	m.resize(h)
	return m.answer(h)
}

func (m *Manager) answer(h *holder) Answer {
	given := m.saved[h.pod.UID]
	a := Answer{Pod: with(h.pod, given), Pending: h.pending, Generation: given.Generation, Resized: h.resized,
		EverResized: given.Resized}
	h.resized = false
	return a
}

// Get returns a pod with its allocated resources. It decides nothing.
func (m *Manager) Get(pod *v1.Pod) *v1.Pod {
	m.mu.Lock()
	defer m.mu.Unlock()
	if given, ok := m.saved[pod.UID]; ok {
		return with(pod, given)
	}
	return pod
}

// Deleted marks a pod that the API server no longer has. The scheduler no longer counts it, so that
// new pods arrive for its resources. They wait for Release.
func (m *Manager) Deleted(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if h := m.pods[uid]; h != nil {
		h.deleted = true
	}
}

// fitsLater reports whether only ending pods keep a pod from the node.
func (m *Manager) fitsLater(in admission.Input) bool {
	in.Others = slices.DeleteFunc(slices.Clone(in.Others),
		func(other *v1.Pod) bool { return m.pods[other.UID].deleted })
	return admission.Check(in) == nil
}

// Release frees the resources of a pod of which nothing runs any more.
func (m *Manager) Release(uid types.UID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, held := m.pods[uid]
	delete(m.pods, uid)
	if _, ok := m.saved[uid]; ok {
		delete(m.saved, uid)
		if err := m.save(); err != nil {
			m.Logger.Warn("cannot save what pods were given; it is saved with the next change", "err", err)
		}
	}
	delete(m.urgent, uid)
	if held {
		for waiting := range m.urgent {
			m.Wake(waiting)
		}
		m.retry()
	}
}

// Shrunk takes the pod's own status after its containers have released the resources of a resize
// down. The API server's status may be late.
func (m *Manager) Shrunk(uid types.UID, status v1.PodStatus) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if h := m.pods[uid]; h != nil {
		pod := *h.pod
		pod.Status = status
		h.pod = &pod
		m.retry()
	}
}

// retry wakes the pods whose resize waits and fits now, the most urgent first.
func (m *Manager) retry() {
	var waiting []*holder
	for _, h := range m.pods {
		if h.pending != nil && h.pending.Reason == v1.PodReasonDeferred {
			waiting = append(waiting, h)
		}
	}
	slices.SortFunc(waiting, func(a, b *holder) int {
		return cmp.Or(cmp.Compare(rank(m.grows(a)), rank(m.grows(b))), cmp.Compare(priority(b.pod), priority(a.pod)),
			cmp.Compare(rank(a.pod.Status.QOSClass != v1.PodQOSGuaranteed),
				rank(b.pod.Status.QOSClass != v1.PodQOSGuaranteed)),
			cmp.Compare(a.since, b.since))
	})
	for _, h := range waiting {
		before := *h.pending
		m.resize(h)
		if h.pending == nil || *h.pending != before {
			m.Wake(h.pod.UID)
		}
	}
}

func rank(last bool) int {
	if last {
		return 1
	}
	return 0
}

func priority(pod *v1.Pod) int32 {
	if pod.Spec.Priority == nil {
		return 0
	}
	return *pod.Spec.Priority
}

// grows reports whether a pod requests more than its allocation.
func (m *Manager) grows(h *holder) bool {
	had, want := admission.Requests(with(h.pod, m.saved[h.pod.UID])), admission.Requests(h.pod)
	return want.Cpu().Cmp(*had.Cpu()) > 0 || want.Memory().Cmp(*had.Memory()) > 0
}

// resize allocates the resources of a pod's spec if they fit, and notes the obstacle otherwise.
func (m *Manager) resize(h *holder) {
	given, wanted := m.saved[h.pod.UID], asked(h.pod)
	if same(given, wanted) {
		h.pending = nil
		return
	}
	if !m.synced {
		// A pod that is not known yet may hold the resources that this one wants. Synced is the
		// time to decide.
		h.pending = toldPending(h.pod)
		return
	}
	pending := m.obstacle(h.pod)
	if pending == nil {
		wanted.Resized = true
		m.saved[h.pod.UID] = wanted
		if err := m.save(); err != nil {
			// A resize that is not on disk is not actuated. The next call tries again.
			m.saved[h.pod.UID] = given
			m.Logger.Error("cannot save what a pod is to get by its resize; trying again", "pod",
				h.pod.Namespace+"/"+h.pod.Name, "err", err)
			return
		}
		h.pending, h.since, h.resized = nil, 0, true
		return
	}
	if h.pending == nil {
		h.since = m.latest() + 1
	}
	h.pending = pending
}

func (m *Manager) latest() int64 {
	var last int64
	for _, h := range m.pods {
		last = max(last, h.since)
	}
	return last
}

// obstacle returns the reason against a resize, temporary or final.
func (m *Manager) obstacle(pod *v1.Pod) *Pending {
	in := m.input(pod)
	want := admission.Requests(pod)
	for _, name := range []v1.ResourceName{v1.ResourceMemory, v1.ResourceCPU} {
		all := in.Node.Status.Allocatable[name]
		if q := want[name]; q.Cmp(all) > 0 {
			asked, capacity := q.Value(), all.Value()
			if name == v1.ResourceCPU {
				asked, capacity = q.MilliValue(), all.MilliValue()
			}
			return &Pending{Reason: v1.PodReasonInfeasible, Message: fmt.Sprintf(
				"Node didn't have enough capacity: %s, requested: %d, capacity: %d", name, asked, capacity)}
		}
	}
	if refusal := admission.Fit(&in); refusal != nil {
		return &Pending{Reason: v1.PodReasonDeferred, Message: refusal.Message}
	}
	return nil
}

// input collects the input of a decision about a pod.
func (m *Manager) input(pod *v1.Pod) admission.Input {
	in := m.Host()
	in.Pod, in.Node, in.Others = pod, m.Node(), nil
	for uid, h := range m.pods {
		if uid != pod.UID {
			given, ok := m.saved[uid]
			if !ok {
				given = asked(h.pod)
			}
			in.Others = append(in.Others, other(h.pod, given))
		}
	}
	return in
}

// asked returns the resources of a pod's spec.
func asked(pod *v1.Pod) Given {
	g := Given{Pod: pod.Spec.Resources.DeepCopy(), Containers: map[string]v1.ResourceRequirements{},
		Generation: pod.Generation}
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			g.Containers[list[i].Name] = *list[i].Resources.DeepCopy()
		}
	}
	return g
}

// told returns the resources of a pod and its containers by its status; false when the status lists
// no container.
func told(pod *v1.Pod) (Given, bool) {
	g := asked(pod)
	if has := pod.Status.Resources; has != nil && g.Pod != nil {
		g.Pod.Limits, g.Pod.Requests = only(has.Limits, g.Pod.Limits), only(has.Requests, g.Pod.Requests)
	}
	seen := 0
	for _, list := range [][]v1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for i := range list {
			s := &list[i]
			if r, ok := g.Containers[s.Name]; ok && s.State.Running != nil && s.Resources != nil {
				r.Limits, r.Requests = s.Resources.Limits, s.Resources.Requests
				g.Containers[s.Name] = r
				seen++
			}
		}
	}
	return g, seen > 0
}

// only returns the resources of a list that names has, too. The status of a pod also has those of
// its containers.
func only(list, names v1.ResourceList) v1.ResourceList {
	var named v1.ResourceList
	for name, q := range list {
		if _, ok := names[name]; ok {
			if named == nil {
				named = v1.ResourceList{}
			}
			named[name] = q
		}
	}
	return named
}

// toldPending returns the pending resize that the pod's status reports, or nil.
func toldPending(pod *v1.Pod) *Pending {
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == v1.PodResizePending && c.Status == v1.ConditionTrue {
			return &Pending{Reason: c.Reason, Message: c.Message}
		}
	}
	return nil
}

// same compares amounts, not generations.
func same(a, b Given) bool {
	return apiequality.Semantic.DeepEqual(a.Pod, b.Pod) && apiequality.Semantic.DeepEqual(a.Containers, b.Containers)
}

// other returns a pod as it counts for other pods: by its allocation. Its status may still report a
// resize as infeasible that was allocated since; the allocation would not count then.
func other(pod *v1.Pod, given Given) *v1.Pod {
	pod = with(pod, given)
	refused := func(c v1.PodCondition) bool { return c.Type == v1.PodResizePending }
	if !slices.ContainsFunc(pod.Status.Conditions, refused) {
		return pod
	}
	copied := *pod
	copied.Status.Conditions = slices.DeleteFunc(slices.Clone(pod.Status.Conditions), refused)
	return &copied
}

// with returns a pod whose spec has the given resources. It copies only when they differ.
func with(pod *v1.Pod, given Given) *v1.Pod {
	if same(asked(pod), given) {
		return pod
	}
	pod = pod.DeepCopy()
	pod.Spec.Resources = given.Pod.DeepCopy()
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if r, ok := given.Containers[list[i].Name]; ok {
				list[i].Resources = *r.DeepCopy()
			}
		}
	}
	return pod
}

// save writes the allocations.
func (m *Manager) save() error {
	raw, err := json.Marshal(file{Version: formatVersion, Pods: m.saved})
	if err != nil {
		return err
	}
	return m.write(filepath.Clean(m.File), raw, 0o600)
}
