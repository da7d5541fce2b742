package volumes

import (
	"context"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	storagelisters "k8s.io/client-go/listers/storage/v1"
	"k8s.io/component-helpers/storage/ephemeral"
	storage "k8s.io/component-helpers/storage/volume"
	"k8s.io/klog/v2"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/scheduler/framework"
	"github.com/barque/barque/scheduler/plugins/helper"
	"github.com/barque/barque/scheduler/plugins/names"
)

const volumeBindingKey fwk.StateKey = names.VolumeBinding

// defaultBindTimeout is how long the volumes of a pod may take.
const defaultBindTimeout = 600 * time.Second

// VolumeBinding places a pod where its volumes are or can be. For claims that wait for their first
// consumer it chooses a volume, or the node on which a provisioner shall make one.
//
//	PreFilter   sorts the pod's claims: bound, and to be bound with the pod
//	Filter      finds volumes, or the possibility to make them, for each node
//	Reserve     assumes these volumes for the chosen node
//	PreBind     writes them, and waits for the binder and the provisioner
//	Unreserve   ends the assumptions
type VolumeBinding struct {
	client     kubernetes.Interface
	claims     *assumed[v1.PersistentVolumeClaim, *v1.PersistentVolumeClaim]
	volumes    *assumed[v1.PersistentVolume, *v1.PersistentVolume]
	nodes      corelisters.NodeLister
	pods       corelisters.PodLister
	classes    storagelisters.StorageClassLister
	drivers    storagelisters.CSIDriverLister
	capacities storagelisters.CSIStorageCapacityLister
	timeout    time.Duration
	score      func(used, total int64) int64
}

// NewBinding makes the plugin VolumeBinding.
func NewBinding(h *framework.Handle) (fwk.Plugin, error) {
	args, err := framework.ArgsOf[*configv1.VolumeBindingArgs](h)
	if err != nil {
		return nil, err
	}
	core, storages := h.Informers.Core().V1(), h.Informers.Storage().V1()
	p := &VolumeBinding{
		client:     h.Client,
		claims:     newAssumed[v1.PersistentVolumeClaim](core.PersistentVolumeClaims().Informer()),
		volumes:    newAssumed[v1.PersistentVolume](core.PersistentVolumes().Informer()),
		nodes:      core.Nodes().Lister(),
		pods:       core.Pods().Lister(),
		classes:    storages.StorageClasses().Lister(),
		drivers:    storages.CSIDrivers().Lister(),
		capacities: storages.CSIStorageCapacities().Lister(),
		timeout:    defaultBindTimeout,
		score: helper.BrokenLine(
			[]configv1.UtilizationShapePoint{{Utilization: 0, Score: helper.MaxShapeScore},
				{Utilization: 100, Score: 0}}),
	}
	if args != nil {
		p.timeout = time.Duration(ptr.Deref(args.BindTimeoutSeconds, 600)) * time.Second
		if len(args.Shape) > 0 {
			p.score = helper.BrokenLine(args.Shape)
		}
	}
	return p, indexByClass(p.volumes.informer)
}

// Name of the plugin.
func (*VolumeBinding) Name() string { return names.VolumeBinding }

// volumeState has a pod's claims and volumes in one cycle.
type volumeState struct {
	// bound are the volumes of bound claims; missing means that one of them does not exist.
	bound   []*v1.PersistentVolume
	missing bool
	// unbound claims get their volumes with the pod, from those of their class.
	unbound []*v1.PersistentVolumeClaim
	byClass map[string][]*v1.PersistentVolume
	// storage is the storage from which volumes of each class can be made.
	storage map[string]*reachable

	mu sync.Mutex
	// byNode has Filter's results.
	byNode map[string]*nodeVolumes
	// scores means that nodes can be compared.
	scores bool
}

// Clone returns the same: it only grows.
func (s *volumeState) Clone() fwk.StateData { return s }

// PreFilter rejects a pod whose claims cannot be used, or wait for the binder.
func (p *VolumeBinding) PreFilter(
	_ context.Context, state fwk.CycleState, pod *v1.Pod, _ []fwk.NodeInfo,
) (*fwk.PreFilterResult, *fwk.Status) {
	if !usesClaims(pod) {
		return nil, skipped
	}
	s := &volumeState{byClass: map[string][]*v1.PersistentVolume{}, byNode: map[string]*nodeVolumes{}}
	waits := false
	var failed *fwk.Status
	forEachClaim(pod, func(name string, ofPod bool) bool {
		claim, status := p.claim(pod, name, ofPod)
		if !status.IsSuccess() {
			failed = status
			return false
		}
		if fullyBound(claim) {
			volume := p.volumes.get(claim.Spec.VolumeName)
			s.missing = s.missing || volume == nil
			if volume != nil {
				s.bound = append(s.bound, volume)
			}
			return true
		}
		class := storage.GetPersistentVolumeClaimClass(claim)
		if claim.Spec.VolumeName != "" || !p.delayed(class) {
			waits = true
			return true
		}
		s.unbound = append(s.unbound, claim)
		if s.byClass[class] == nil {
			s.byClass[class], failed = p.volumesOf(class)
		}
		return failed.IsSuccess()
	})
	switch {
	case !failed.IsSuccess():
		return nil, failed
	case waits:
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, "pod has unbound immediate PersistentVolumeClaims")
	}
	if len(s.unbound) > 0 {
		all, err := p.capacities.List(labels.Everything())
		if err != nil {
			return nil, fwk.AsStatus(err)
		}
		s.storage = storageOf(all, func(class string) bool { _, wanted := s.byClass[class]; return wanted })
	}
	state.Write(volumeBindingKey, s)
	return nil, nil
}

// claim returns a claim of a pod, or why the pod cannot use it.
func (p *VolumeBinding) claim(pod *v1.Pod, name string, ofPod bool) (*v1.PersistentVolumeClaim, *fwk.Status) {
	claim, why := p.claims.get(pod.Namespace+"/"+name), ""
	switch {
	case claim == nil && ofPod:
		why = fmt.Sprintf("waiting for ephemeral volume controller to create the persistentvolumeclaim %q", name)
	case claim == nil:
		why = fmt.Sprintf("persistentvolumeclaim %q not found", name)
	case claim.Status.Phase == v1.ClaimLost:
		why = fmt.Sprintf("persistentvolumeclaim %q bound to non-existent persistentvolume %q", name,
			claim.Spec.VolumeName)
	case claim.DeletionTimestamp != nil:
		why = fmt.Sprintf("persistentvolumeclaim %q is being deleted", name)
	case ofPod:
		if err := ephemeral.VolumeIsForPod(pod, claim); err != nil {
			why = err.Error()
		}
	}
	if why != "" {
		return nil, fwk.NewStatus(fwk.UnschedulableAndUnresolvable, why)
	}
	return claim, nil
}

// delayed reports whether claims of a class are bound with their pods.
func (p *VolumeBinding) delayed(class string) bool {
	if class == "" {
		return false
	}
	c, err := p.classes.Get(class)
	return err == nil && waitsForConsumer(c)
}

// volumesOf returns the volumes of a class, as assumed.
func (p *VolumeBinding) volumesOf(class string) ([]*v1.PersistentVolume, *fwk.Status) {
	list, err := p.volumes.informer.GetIndexer().ByIndex(volumesByClass, class)
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	out := make([]*v1.PersistentVolume, 0, len(list))
	for _, obj := range list {
		if v, ok := obj.(*v1.PersistentVolume); ok {
			out = append(out, p.volumes.over(v.Name, v))
		}
	}
	return out, nil
}

// PreFilterExtensions is nil: other pods do not matter.
func (*VolumeBinding) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// Filter rejects a node from which a volume cannot be reached, or on which none can be had.
func (p *VolumeBinding) Filter(_ context.Context, state fwk.CycleState, _ *v1.Pod, node fwk.NodeInfo) *fwk.Status {
	s, ok := framework.ReadState[*volumeState](state, volumeBindingKey)
	if !ok {
		return nil // PreFilter of this plugin is disabled
	}
	found, reasons, err := p.find(s, node.Node())
	if err != nil {
		return fwk.AsStatus(err)
	}
	if len(reasons) > 0 {
		return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, reasons...)
	}
	if found == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.byNode[node.Node().Name] = found
	s.scores = s.scores || found.comparable()
	return nil
}

// PreScore skips pods whose volumes say nothing about nodes.
func (*VolumeBinding) PreScore(_ context.Context, state fwk.CycleState, _ *v1.Pod, _ []fwk.NodeInfo) *fwk.Status {
	if s, ok := framework.ReadState[*volumeState](state, volumeBindingKey); !ok || !s.scores {
		return skipped
	}
	return nil
}

// Score scores a node by how full the volumes, or the storage that they are made of, would be.
func (p *VolumeBinding) Score(
	_ context.Context, state fwk.CycleState, _ *v1.Pod, node fwk.NodeInfo,
) (int64, *fwk.Status) {
	s, ok := framework.ReadState[*volumeState](state, volumeBindingKey)
	if !ok {
		return 0, nil
	}
	s.mu.Lock()
	found := s.byNode[node.Node().Name]
	s.mu.Unlock()
	return found.score(p.score), nil
}

// ScoreExtensions is nil: the scores are as they should be.
func (*VolumeBinding) ScoreExtensions() fwk.ScoreExtensions { return nil }

// EventsToRegister returns the events that may give a pod its volumes.
func (p *VolumeBinding) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		helper.Hinted(fwk.StorageClass, fwk.Add|fwk.Update,
			func(_ klog.Logger, _ *v1.Pod, old, now any) (fwk.QueueingHint, error) {
				was, updated := old.(*storagev1.StorageClass)
				is, ok := now.(*storagev1.StorageClass)
				return helper.HintIf(
					!updated || !ok || !equality.Semantic.DeepEqual(was.AllowedTopologies, is.AllowedTopologies))
			}),
		helper.Hinted(fwk.PersistentVolumeClaim, fwk.Add|fwk.Update, hintOnClaim),
		helper.Event(fwk.PersistentVolume, fwk.Add|fwk.Update),
		helper.Event(fwk.Node, fwk.Add|fwk.UpdateNodeLabel),
		helper.Hinted(fwk.CSIDriver, fwk.Add|fwk.Update,
			func(_ klog.Logger, _ *v1.Pod, old, now any) (fwk.QueueingHint, error) {
				was, updated := old.(*storagev1.CSIDriver)
				is, ok := now.(*storagev1.CSIDriver)
				return helper.HintIf(
					!ok ||
						updated && ptr.Deref(was.Spec.StorageCapacity, false) &&
							!ptr.Deref(is.Spec.StorageCapacity, false))
			}),
		helper.Hinted(fwk.CSIStorageCapacity, fwk.Add|fwk.Update,
			func(_ klog.Logger, _ *v1.Pod, old, now any) (fwk.QueueingHint, error) {
				was, updated := old.(*storagev1.CSIStorageCapacity)
				is, ok := now.(*storagev1.CSIStorageCapacity)
				return helper.HintIf(!updated || !ok || limitOf(is) > limitOf(was))
			}),
	}, nil
}
