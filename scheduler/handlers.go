package scheduler

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	toolscache "k8s.io/client-go/tools/cache"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/barque/barque/scheduler/framework"
)

// watch feeds the cache and the queue from the informers, and returns when both have all objects of
// the informers. stop removes the handlers; after it returns, no call is running and none has an
// effect.
func (t *term) watch(ctx context.Context) (stop func(), err error) {
	var g gate
	var undo []func()
	stop = func() {
		for _, u := range undo {
			u()
		}
		g.close()
	}
	core := t.cfg.Informers.Core().V1()
	var synced []toolscache.InformerSynced
	for _, informer := range []toolscache.SharedIndexInformer{
		core.Namespaces().Informer(), core.Services().Informer(),
		t.cfg.Informers.Policy().V1().PodDisruptionBudgets().Informer(),
	} {
		synced = append(synced, informer.HasSynced) // only listed
	}
	offered, err := t.devices.Start(ctx, t.client,
		deviceHandler[resourcev1.ResourceSlice](&g, t, fwk.ResourceSlice, nil))
	undo = append(undo, t.devices.Stop)
	if err != nil {
		return stop, err
	}
	synced = append(synced, offered)
	resource := t.cfg.Informers.Resource().V1()
	var watched []watchedKind
	// Claims, volumes and devices first: pods that wait for a node find them. Nodes before pods:
	// pods that find their node in the cache save a copy.
	for _, s := range storageKinds(t.cfg.Informers) {
		watched = append(watched, watchedKind{s.informer(), s.handler(&g, t)})
	}
	watched = append(watched,
		watchedKind{core.Nodes().Informer(), handler(&g, t.nodeChanged)},
		watchedKind{resource.DeviceClasses().Informer(), deviceHandler(&g, t, fwk.DeviceClass, t.classChanged)},
		watchedKind{resource.ResourceClaims().Informer(), deviceHandler(&g, t, fwk.ResourceClaim, t.claimChanged)},
		watchedKind{core.Pods().Informer(), handler(&g, t.podChanged)})
	for _, w := range watched {
		reg, err := w.informer.AddEventHandler(w.handler)
		if err != nil {
			return stop, fmt.Errorf("watch the cluster for the scheduler: %w", err)
		}
		undo = append(undo, func() {
			if err := w.informer.RemoveEventHandler(reg); err != nil {
				t.log.Error("cannot remove the scheduler's informer handler", "err", err)
			}
		})
		synced = append(synced, reg.HasSynced)
	}
	return stop, t.until(ctx, 2*time.Millisecond, func() bool {
		return !slices.ContainsFunc(synced, func(s toolscache.InformerSynced) bool { return !s() })
	})
}

// watchedKind is a kind of objects whose changes matter.
type watchedKind struct {
	informer toolscache.SharedIndexInformer
	handler  toolscache.ResourceEventHandler
}

// gate lets handlers run until it is closed; close waits for those under way.
type gate struct {
	mu     sync.RWMutex
	closed bool
}

func (g *gate) run(fn func()) {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if !g.closed {
		fn()
	}
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
}

// handler makes an informer's handler of a function that gets the object before and after; nil
// stands for absence.
func handler[T any](g *gate, changed func(old, new *T)) toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if o, ok := obj.(*T); ok {
				g.run(func() { changed(nil, o) })
			}
		},
		UpdateFunc: func(before, after any) {
			b, okB := before.(*T)
			if a, okA := after.(*T); okA && okB {
				g.run(func() { changed(b, a) })
			}
		},
		DeleteFunc: func(obj any) {
			if gone, ok := obj.(toolscache.DeletedFinalStateUnknown); ok {
				obj = gone.Obj
			}
			if o, ok := obj.(*T); ok {
				g.run(func() { changed(o, nil) })
			}
		},
	}
}

func (t *term) nodeChanged(old, new *v1.Node) {
	switch {
	case new == nil:
		t.cache.RemoveNode(old.Name)
		t.queue.Move(fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Delete}, old, nil)
	case old == nil:
		t.cache.SetNode(new)
		t.queue.Move(fwk.ClusterEvent{Resource: fwk.Node, ActionType: fwk.Add}, nil, new)
	default:
		t.cache.SetNode(new)
		if what := nodeDiff(old, new); what != 0 {
			t.queue.Move(fwk.ClusterEvent{Resource: fwk.Node, ActionType: what}, old, new)
		}
	}
}

func nodeDiff(old, new *v1.Node) (what fwk.ActionType) {
	if !equality.Semantic.DeepEqual(old.Status.Allocatable, new.Status.Allocatable) {
		what |= fwk.UpdateNodeAllocatable
	}
	if !maps.Equal(old.Labels, new.Labels) {
		what |= fwk.UpdateNodeLabel
	}
	if !maps.Equal(old.Annotations, new.Annotations) {
		what |= fwk.UpdateNodeAnnotation
	}
	if old.Spec.Unschedulable != new.Spec.Unschedulable ||
		!equality.Semantic.DeepEqual(old.Spec.Taints, new.Spec.Taints) {
		what |= fwk.UpdateNodeTaint
	}
	if !slices.EqualFunc(old.Status.Conditions, new.Status.Conditions, func(a, b v1.NodeCondition) bool {
		return a.Type == b.Type && a.Status == b.Status
	}) {
		what |= fwk.UpdateNodeCondition
	}
	return what
}

// podChanged classifies a change by the pod's role before and after: it occupies a node, it waits
// for one, or neither.
func (t *term) podChanged(old, new *v1.Pod) {
	if old != nil && new != nil && old.UID != new.UID {
		// Deleted and created again while the watch was broken.
		t.podChanged(old, nil)
		old = nil
	}
	switch {
	case new != nil && occupies(new):
		t.podPlaced(old, new)
	case old != nil && occupies(old):
		t.cache.RemovePod(old.UID)
		t.queue.Move(fwk.ClusterEvent{Resource: fwk.AssignedPod, ActionType: fwk.Delete}, old, nil)
	case new != nil && t.waits(new):
		t.podWaits(old, new)
	case old != nil:
		t.queue.Delete(old.UID)
		t.nominees.Forget(old.UID)
	}
}

func (t *term) podPlaced(old, new *v1.Pod) {
	t.cache.AddPod(t.podInfo(new))
	if old != nil && occupies(old) {
		if what := podDiff(old, new); what != 0 {
			t.queue.Move(fwk.ClusterEvent{Resource: fwk.AssignedPod, ActionType: what}, old, new)
		}
		return
	}
	t.queue.Delete(new.UID)
	t.nominees.Forget(new.UID)
	t.queue.Move(fwk.ClusterEvent{Resource: fwk.AssignedPod, ActionType: fwk.Add}, nil, new)
}

func (t *term) podWaits(old, new *v1.Pod) {
	info := t.podInfo(new)
	if node := new.Status.NominatedNodeName; node != "" && t.nominees.Node(new.UID) == "" {
		t.nominees.Set(info, node) // by the leader before us
	}
	if old == nil || !t.waits(old) {
		if !t.cache.Has(new.UID) {
			t.queue.Add(info)
		}
		return
	}
	t.queue.Update(old, info, fwk.ClusterEvent{Resource: fwk.TargetPod, ActionType: podDiff(old, new)})
}

// podInfo derives a PodInfo. Unparsable terms, which passed the API's validation, are ignored, so
// that the pod stays visible.
func (t *term) podInfo(pod *v1.Pod) *framework.PodInfo {
	info, err := framework.NewPodInfo(pod)
	if err != nil {
		t.log.Warn("pod has an affinity that does not parse; ignoring it",
			"namespace", pod.Namespace, "pod", pod.Name, "err", err)
	}
	return info
}

func podDiff(old, new *v1.Pod) (what fwk.ActionType) {
	if !maps.Equal(old.Labels, new.Labels) {
		what |= fwk.UpdatePodLabel
	}
	if len(old.Spec.Tolerations) != len(new.Spec.Tolerations) {
		what |= fwk.UpdatePodToleration
	}
	if len(old.Spec.SchedulingGates) > 0 && len(new.Spec.SchedulingGates) == 0 {
		what |= fwk.UpdatePodSchedulingGatesEliminated
	}
	if !resourceclaim.PodStatusEqual(old.Status.ResourceClaimStatuses, new.Status.ResourceClaimStatuses) {
		what |= fwk.UpdatePodGeneratedResourceClaim
	}
	if equality.Semantic.DeepEqual(old.Spec.Containers, new.Spec.Containers) &&
		equality.Semantic.DeepEqual(old.Status.ContainerStatuses, new.Status.ContainerStatuses) {
		return what
	}
	was, is := framework.PodResource(old).Resource, framework.PodResource(new).Resource
	if is.GetMilliCPU() < was.GetMilliCPU() || is.GetMemory() < was.GetMemory() {
		what |= fwk.UpdatePodScaleDown
	}
	if is.GetMilliCPU() > was.GetMilliCPU() || is.GetMemory() > was.GetMemory() {
		what |= fwk.UpdatePodScaleUp
	}
	return what
}

func terminal(pod *v1.Pod) bool {
	return pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed
}

func occupies(pod *v1.Pod) bool { return pod.Spec.NodeName != "" && !terminal(pod) }

// waits reports whether this scheduler must find a node for the pod.
func (t *term) waits(pod *v1.Pod) bool {
	return pod.Spec.NodeName == "" && !terminal(pod) && pod.DeletionTimestamp == nil &&
		t.profiles[pod.Spec.SchedulerName] != nil
}
