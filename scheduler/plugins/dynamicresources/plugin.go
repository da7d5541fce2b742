package dynamicresources

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/dynamic-resource-allocation/structured"
	"k8s.io/klog/v2"
	configv1 "k8s.io/kube-scheduler/config/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/barque/barque/scheduler/devices"
	"github.com/barque/barque/scheduler/framework"
	"github.com/barque/barque/scheduler/plugins/helper"
	"github.com/barque/barque/scheduler/plugins/names"
)

const (
	devicesKey fwk.StateKey = names.DynamicResources

	// defaultFilterTimeout bounds the search for devices on one node.
	defaultFilterTimeout = 10 * time.Second
	// defaultBindingTimeout bounds the wait for a device that is attached after its allocation.
	defaultBindingTimeout = 10 * time.Minute
	// compiledExpressions is how many CEL expressions of selectors are kept compiled.
	compiledExpressions = 10
)

// allocatorFeatures are the features that Kubernetes enables by default.
var allocatorFeatures = structured.Features{
	AdminAccess:             true,
	PrioritizedList:         true,
	PartitionableDevices:    true,
	DeviceTaints:            true,
	DeviceBindingAndStatus:  true,
	ConsumableCapacity:      true,
	FractionalCapacityRange: true,
}

// DynamicResources allocates devices for the ResourceClaims of pods, and for extended resources
// that a DeviceClass stands for.
//
//	PreEnqueue, PreFilter   the pod's claims exist, and may be used by it
//	Filter                  the allocator finds devices for all of them on the node
//	Reserve                 the devices count as taken
//	PreBind                 allocation and reservation are written to the claims' status
//	Unreserve, PostFilter   the allocation is undone
type DynamicResources struct {
	h                             *framework.Handle
	devices                       *devices.Devices
	expressions                   *cel.Cache
	filterTimeout, bindingTimeout time.Duration
}

// New makes the plugin DynamicResources.
func New(h *framework.Handle) (fwk.Plugin, error) {
	p := &DynamicResources{
		h: h, devices: h.Devices,
		expressions:   cel.NewCache(compiledExpressions, cel.Features{EnableConsumableCapacity: true}),
		filterTimeout: defaultFilterTimeout, bindingTimeout: defaultBindingTimeout,
	}
	args, err := framework.ArgsOf[*configv1.DynamicResourcesArgs](h)
	if args != nil && args.FilterTimeout != nil {
		p.filterTimeout = args.FilterTimeout.Duration
	}
	if args != nil && args.BindingTimeout != nil {
		p.bindingTimeout = args.BindingTimeout.Duration
	}
	return p, err
}

// Name of the plugin.
func (*DynamicResources) Name() string { return names.DynamicResources }

// deviceState has the pod's claims and devices in one cycle. Nodes are filtered in parallel: they
// share the fields below mu.
type deviceState struct {
	claims    []wantedClaim
	allocator structured.Allocator
	// extended is the index of the claim for the pod's extended resources, -1 when there is none.
	// scalars are the pod's requests for them.
	extended int
	scalars  map[v1.ResourceName]int64

	mu sync.Mutex
	// unavailable are claims whose allocation kept the pod from a node.
	unavailable sets.Set[int]
	found       map[string]*nodeDevices
}

// wantedClaim is a claim of the pod.
type wantedClaim struct {
	claim *resourcev1.ResourceClaim
	// nodes are where the claim's devices can be used, nil for all.
	nodes *nodeaffinity.NodeSelector
	// allocation is set by Reserve and written by PreBind.
	allocation *resourcev1.AllocationResult
	// pending is the UID of the allocation in the ledger; "" when it is not there.
	pending types.UID
}

// nodeDevices is the allocation that Filter found on a node.
type nodeDevices struct {
	// results are by the index of the claim.
	results map[int]*resourcev1.AllocationResult
	// extended is the claim for extended resources as this node needs it. mappings assigns its
	// requests to containers.
	extended *resourcev1.ResourceClaim
	mappings []v1.ContainerExtendedResourceRequest
}

// Clone returns the same: removing pods frees no device, because claims outlive them.
func (s *deviceState) Clone() fwk.StateData { return s }

func (s *deviceState) toAllocate() (indices []int) {
	for i := range s.claims {
		if s.claims[i].claim.Status.Allocation == nil {
			indices = append(indices, i)
		}
	}
	return indices
}

func devicesOf(state fwk.CycleState) *deviceState {
	s, _ := framework.ReadState[*deviceState](state, devicesKey)
	return s
}

// PreEnqueue holds back a pod whose claims do not exist yet.
func (p *DynamicResources) PreEnqueue(_ context.Context, pod *v1.Pod) *fwk.Status {
	if _, err := p.claimsOf(pod); err != nil {
		return unusable(err.Error())
	}
	return nil
}

func unusable(reason string) *fwk.Status {
	return fwk.NewStatus(fwk.UnschedulableAndUnresolvable, reason)
}

// claimsOf returns the claims of a pod, or why one cannot be used.
func (p *DynamicResources) claimsOf(pod *v1.Pod) ([]*resourcev1.ResourceClaim, error) {
	if len(pod.Spec.ResourceClaims) == 0 {
		return nil, nil
	}
	claims := make([]*resourcev1.ResourceClaim, 0, len(pod.Spec.ResourceClaims))
	for i := range pod.Spec.ResourceClaims {
		name, made, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil {
			return nil, err
		}
		if name == nil {
			continue // no claim was needed
		}
		claim, err := p.devices.Claims.Get(pod.Namespace, *name)
		if err != nil {
			return nil, err
		}
		if claim.DeletionTimestamp != nil {
			return nil, fmt.Errorf("resourceclaim %q is being deleted", claim.Name)
		}
		if made {
			if err := resourceclaim.IsForPod(pod, claim, false); err != nil {
				return nil, err
			}
		}
		claims = append(claims, claim)
	}
	return claims, nil
}

// PreFilter finds the pod's claims and prepares their allocation.
func (p *DynamicResources) PreFilter(
	ctx context.Context, state fwk.CycleState, pod *v1.Pod, _ []fwk.NodeInfo,
) (*fwk.PreFilterResult, *fwk.Status) {
	claims, err := p.claimsOf(pod)
	if err != nil {
		return nil, unusable(err.Error())
	}
	s := &deviceState{extended: -1, unavailable: sets.New[int](), found: map[string]*nodeDevices{}}
	for _, c := range claims {
		s.claims = append(s.claims, wantedClaim{claim: c})
	}
	if c, scalars := p.extendedClaim(state, pod); c != nil {
		s.extended, s.scalars = len(s.claims), scalars
		s.claims = append(s.claims, wantedClaim{claim: c})
	}
	if len(s.claims) == 0 {
		return nil, fwk.NewStatus(fwk.Skip)
	}
	state.Write(devicesKey, s)
	for i := range s.claims {
		if status := p.checkClaim(pod, s, i); status != nil {
			return nil, status
		}
	}
	if len(s.toAllocate()) == 0 {
		return nil, nil
	}
	slices, err := p.devices.Slices()
	if err != nil {
		return nil, fwk.AsStatus(err)
	}
	s.allocator, err = structured.NewAllocator(ctx, allocatorFeatures, p.devices.Claims.State(), p.devices.Classes,
		slices, p.expressions)
	return nil, fwk.AsStatus(err)
}

// PreFilterExtensions is nil: see deviceState.Clone.
func (*DynamicResources) PreFilterExtensions() fwk.PreFilterExtensions { return nil }

// checkClaim returns why the pod must wait for one of its claims, nil if it need not.
func (p *DynamicResources) checkClaim(pod *v1.Pod, s *deviceState, i int) *fwk.Status {
	w := &s.claims[i]
	name := w.claim.Namespace + "/" + w.claim.Name
	if allocation := w.claim.Status.Allocation; allocation != nil {
		if !resourceclaim.CanBeReserved(w.claim) && !resourceclaim.IsReservedForPod(pod, w.claim, false) {
			return unusable("resourceclaim in use")
		}
		if allocation.NodeSelector != nil {
			var err error
			if w.nodes, err = nodeaffinity.NewNodeSelector(allocation.NodeSelector); err != nil {
				return fwk.AsStatus(fmt.Errorf("node selector of claim %s: %w", name, err))
			}
		}
		return nil
	}
	if p.devices.Claims.Pending(w.claim.UID) {
		return unusable(fmt.Sprintf("resource claim %s is in the process of being allocated", name))
	}
	if i == s.extended {
		return nil // its requests depend on the node
	}
	for _, r := range w.claim.Spec.Devices.Requests {
		switch {
		case r.Exactly != nil:
			if status := p.checkClass(r.Name, r.Exactly.DeviceClassName); status != nil {
				return status
			}
		case len(r.FirstAvailable) > 0:
			for _, sub := range r.FirstAvailable {
				if status := p.checkClass(r.Name+"/"+sub.Name, sub.DeviceClassName); status != nil {
					return status
				}
			}
		default:
			return unusable(fmt.Sprintf("resource claim %s, request %s: unknown request type", name, r.Name))
		}
	}
	return nil
}

func (p *DynamicResources) checkClass(request, class string) *fwk.Status {
	if class == "" {
		return fwk.AsStatus(fmt.Errorf("request %s: unsupported request type", request))
	}
	if _, err := p.devices.Classes.Get(class); apierrors.IsNotFound(err) {
		return unusable(fmt.Sprintf("request %s: device class %s does not exist", request, class))
	}
	return nil
}

// Filter checks that the pod's devices are on the node, or can be allocated there.
func (p *DynamicResources) Filter(
	ctx context.Context, state fwk.CycleState, pod *v1.Pod, node fwk.NodeInfo,
) *fwk.Status {
	s := devicesOf(state)
	if s == nil {
		return nil
	}
	extended, mappings, status := p.extendedOn(s, pod, node)
	if status != nil {
		return status
	}
	if gone := p.unavailableOn(s, node.Node()); len(gone) > 0 {
		s.mu.Lock()
		s.unavailable.Insert(gone...)
		s.mu.Unlock()
		return unusable("resourceclaim not available on the node")
	}
	if s.allocator == nil {
		return nil
	}
	var indices []int
	var claims []*resourcev1.ResourceClaim
	for _, i := range s.toAllocate() {
		claim := s.claims[i].claim
		if i == s.extended {
			if claim = extended; claim == nil {
				continue // the node has a device plugin for it
			}
		}
		indices, claims = append(indices, i), append(claims, claim)
	}
	if len(claims) == 0 {
		return nil
	}
	results, status := p.allocate(ctx, s.allocator, node.Node(), claims)
	if status != nil {
		return status
	}
	found := &nodeDevices{results: map[int]*resourcev1.AllocationResult{}, extended: extended, mappings: mappings}
	for n, i := range indices {
		found.results[i] = &results[n]
	}
	s.mu.Lock()
	s.found[node.Node().Name] = found
	s.mu.Unlock()
	return nil
}

// unavailableOn returns the allocated claims whose devices are not usable on the node, or did not
// become ready.
func (p *DynamicResources) unavailableOn(s *deviceState, node *v1.Node) (indices []int) {
	for i := range s.claims {
		w := &s.claims[i]
		switch {
		case w.claim.Status.Allocation == nil:
		case w.nodes != nil && !w.nodes.Match(node):
			indices = append(indices, i)
		default:
			ready, err := readyToBind(w.claim)
			if err != nil || (!ready && p.bindingTimedOut(w.claim, time.Now())) {
				indices = append(indices, i)
			}
		}
	}
	return indices
}

// allocate asks for devices on one node.
func (p *DynamicResources) allocate(
	ctx context.Context, allocator structured.Allocator, node *v1.Node, claims []*resourcev1.ResourceClaim,
) ([]resourcev1.AllocationResult, *fwk.Status) {
	bounded := ctx
	if p.filterTimeout > 0 {
		var cancel context.CancelFunc
		bounded, cancel = context.WithTimeout(ctx, p.filterTimeout)
		defer cancel()
	}
	results, err := allocator.Allocate(bounded, node, claims)
	switch {
	case ctx.Err() != nil:
		return nil, unusable(fmt.Sprintf("asked by caller to stop allocating devices: %v", context.Cause(ctx)))
	case errors.Is(err, context.DeadlineExceeded):
		// The next attempt may be faster: after an error the pod is retried without an event.
		return nil, fwk.AsStatus(fmt.Errorf("node %s: timed out trying to allocate devices", node.Name))
	case errors.Is(err, structured.ErrFailedAllocationOnNode):
		return nil, unusable(err.Error())
	case err != nil:
		return nil, fwk.AsStatus(err) // a claim or a class is invalid, for any node
	case len(results) != len(claims):
		return nil, unusable("cannot allocate all claims")
	}
	return results, nil
}

// PreScore skips scoring for pods without alternatives.
func (p *DynamicResources) PreScore(_ context.Context, state fwk.CycleState, _ *v1.Pod, _ []fwk.NodeInfo) *fwk.Status {
	if s := devicesOf(state); s != nil {
		for i := range s.claims {
			for _, r := range s.claims[i].claim.Spec.Devices.Requests {
				if len(r.FirstAvailable) > 0 {
					return nil
				}
			}
		}
	}
	return fwk.NewStatus(fwk.Skip)
}

// Score prefers nodes where requests get an alternative that they list early.
func (p *DynamicResources) Score(
	_ context.Context, state fwk.CycleState, _ *v1.Pod, node fwk.NodeInfo,
) (int64, *fwk.Status) {
	s := devicesOf(state)
	if s == nil {
		return 0, nil
	}
	s.mu.Lock()
	found := s.found[node.Node().Name]
	s.mu.Unlock()
	var score int64
	for i := range s.claims {
		claim := s.claims[i].claim
		allocation := claim.Status.Allocation
		if allocation == nil && found != nil {
			allocation = found.results[i]
		}
		if allocation != nil {
			score += scoreOfChoices(claim, allocation)
		}
	}
	return score, nil
}

func scoreOfChoices(claim *resourcev1.ResourceClaim, allocation *resourcev1.AllocationResult) (score int64) {
	chosen := sets.New[string]()
	for _, r := range allocation.Devices.Results {
		if resourceclaim.IsSubRequestRef(r.Request) {
			chosen.Insert(r.Request)
		}
	}
	for _, r := range claim.Spec.Devices.Requests {
		for rank, sub := range r.FirstAvailable {
			if chosen.Has(resourceclaim.CreateSubRequestRef(r.Name, sub.Name)) {
				score += int64(resourcev1.FirstAvailableDeviceRequestMaxSize - rank)
			}
		}
	}
	return score
}

// ScoreExtensions makes the best score 100.
func (*DynamicResources) ScoreExtensions() fwk.ScoreExtensions { return helper.Ascending{} }

// EventsToRegister returns changes of claims, classes, slices and nodes.
func (p *DynamicResources) EventsToRegister(context.Context) ([]fwk.ClusterEventWithHint, error) {
	return []fwk.ClusterEventWithHint{
		helper.Event(fwk.Node, fwk.Add|fwk.UpdateNodeLabel|fwk.UpdateNodeAllocatable),
		helper.Hinted(fwk.ResourceClaim, fwk.Add|fwk.Update|fwk.Delete, p.claimHelps),
		helper.Hinted(fwk.TargetPod, fwk.UpdatePodGeneratedResourceClaim,
			func(_ klog.Logger, _ *v1.Pod, _, changed any) (fwk.QueueingHint, error) {
				pod, ok := changed.(*v1.Pod)
				if !ok {
					return fwk.Queue, nil
				}
				_, err := p.claimsOf(pod)
				return helper.HintIf(err == nil)
			}),
		helper.Event(fwk.DeviceClass, fwk.Add|fwk.Update),
		helper.Event(fwk.ResourceSlice, fwk.Add|fwk.Update),
	}, nil
}

// claimHelps queues the pod when a change of a claim may help it: devices become free, or the claim
// is the pod's own.
func (p *DynamicResources) claimHelps(_ klog.Logger, pod *v1.Pod, before, after any) (fwk.QueueingHint, error) {
	old, _ := before.(*resourcev1.ResourceClaim)
	changed, _ := after.(*resourcev1.ResourceClaim)
	switch {
	case old == nil && changed == nil:
		return fwk.Queue, nil
	case changed == nil:
		return helper.HintIf(old.Status.Allocation != nil)
	}
	claims, err := p.claimsOf(pod)
	if err != nil {
		return fwk.QueueSkip, nil // another claim of the pod still keeps it waiting
	}
	if old != nil && old.Status.Allocation != nil && changed.Status.Allocation == nil {
		return fwk.Queue, nil
	}
	for _, c := range claims {
		if c.UID == changed.UID {
			return helper.HintIf(old == nil || !equality.Semantic.DeepEqual(&old.Status, &changed.Status))
		}
	}
	return fwk.QueueSkip, nil
}
