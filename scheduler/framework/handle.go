package framework

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/barque/barque/scheduler/devices"
)

// World is the access that the loop gives every plugin for one leadership term.
type World struct {
	// Client is fenced by the term: it stops working when leadership ends.
	Client    kubernetes.Interface
	Informers informers.SharedInformerFactory
	// NodeInfos reads the snapshot of the running cycle. It must not be used after the cycle's
	// decision, so not at PreBind, Bind, PostBind or Unreserve.
	NodeInfos fwk.NodeInfoLister
	Nominator *Nominator
	// Devices is the state of dynamic resources.
	Devices  *devices.Devices
	Logger   *slog.Logger
	Parallel Parallel
	// Evict removes a running pod to make room for another. It returns at once; the deletion runs
	// outside the loop. done gets the API's error in the end, unless the term ends before.
	Evict func(victim, preemptor *v1.Pod, done func(error))
	// Victims observes how many pods each preemption evicts. It may be nil.
	Victims prometheus.Observer
	// Denominate removes the nominated node of a waiting pod, and retries the pod.
	Denominate func(pod *v1.Pod)
	// Wake retries a waiting pod after its back-off, without an event.
	Wake func(uid types.UID)
	// Ungate moves a pod that PreEnqueue held back to the rejected pods, which wait for events.
	Ungate func(uid types.UID)
	// Beside makes API calls about a pod outside the loop, after its earlier calls.
	Beside func(pod *v1.Pod, calls func())
	// Event writes an Event about a pod.
	Event func(pod *v1.Pod, kind, reason, action, message string)
	// Extenders is nil when there are none.
	Extenders Extenders
}

// ExtenderName stands for all extenders among the plugins that rejected a pod. Any event wakes such
// a pod, because an extender's reasons are unknown.
const ExtenderName = "Extender"

// Extenders are users' servers that take part in binding and preemption.
type Extenders interface {
	// Bind binds the pod to its node. took is false when a plugin must bind it.
	Bind(ctx context.Context, pod *v1.Pod) (took bool, err error)
	// Preempt returns the nodes that may be freed, perhaps with other victims.
	Preempt(
		ctx context.Context, pod *v1.Pod, victims map[string]*extenderv1.Victims,
	) (map[string]*extenderv1.Victims, error)
}

// Handle is the argument of a plugin's factory: the world, and the plugin's profile. With the
// profile it can run the other plugins' filters on a changed node.
type Handle struct {
	World
	// Args are the plugin's own, of the type that KubeSchedulerConfiguration has for it, with its
	// defaults filled in; nil means all defaults.
	Args    runtime.Object
	profile *Profile
}

// ArgsOf returns the arguments that a plugin is built with, nil when it gets the defaults.
func ArgsOf[T runtime.Object](h *Handle) (args T, err error) {
	if h.Args == nil {
		return args, nil
	}
	args, ok := h.Args.(T)
	if !ok {
		return args, fmt.Errorf("arguments are a %T, want a %T", h.Args, args)
	}
	return args, nil
}

// FilterWithNominated runs the profile's filters for pod on node, as the scheduling cycle does.
func (h *Handle) FilterWithNominated(
	ctx context.Context, state fwk.CycleState, pod *v1.Pod, node *NodeInfo,
) *fwk.Status {
	return h.profile.FilterWithNominated(ctx, state, pod, node)
}

// AddPod updates the plugins' prefilter state: a pod is added to a copy of a node.
func (h *Handle) AddPod(
	ctx context.Context, state fwk.CycleState, pod *v1.Pod, add fwk.PodInfo, node fwk.NodeInfo,
) *fwk.Status {
	return h.profile.simulate(state, func(x fwk.PreFilterExtensions) *fwk.Status {
		return x.AddPod(ctx, state, pod, add, node)
	})
}

// RemovePod updates the plugins' prefilter state: a pod is removed from a copy of a node.
func (h *Handle) RemovePod(
	ctx context.Context, state fwk.CycleState, pod *v1.Pod, remove fwk.PodInfo, node fwk.NodeInfo,
) *fwk.Status {
	return h.profile.simulate(state, func(x fwk.PreFilterExtensions) *fwk.Status {
		return x.RemovePod(ctx, state, pod, remove, node)
	})
}

// Factory builds a plugin for one term. Its arguments are in h.Args.
type Factory func(h *Handle) (fwk.Plugin, error)

// Registry finds plugins by name.
type Registry map[string]Factory
