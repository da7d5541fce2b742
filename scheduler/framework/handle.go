package framework

import (
	"context"
	"fmt"
	"log/slog"

	v1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	fwk "k8s.io/kube-scheduler/framework"
)

// World is what the loop lends to every plugin for one leadership term.
type World struct {
	// Client is fenced by the term: it stops working when leadership ends.
	Client    kubernetes.Interface
	Informers informers.SharedInformerFactory
	// NodeInfos reads the snapshot of the running cycle. It must not be used after the cycle's
	// decision, so not at PreBind, Bind, PostBind or Unreserve.
	NodeInfos fwk.NodeInfoLister
	Nominator *Nominator
	Logger    *slog.Logger
	Parallel  Parallel
	// Evict removes a running pod to make room for another. It returns at once; the deletion
	// goes on in the loop's name.
	Evict func(victim, preemptor *v1.Pod)
}

// Handle is what a plugin is built with: the world, and the profile that it becomes part of, so
// that it can ask "what if" with the profile's other plugins.
type Handle struct {
	World
	profile *Profile
}

// FilterWithNominated runs the profile's filters for pod on node, as the scheduling cycle does.
func (h *Handle) FilterWithNominated(ctx context.Context, state fwk.CycleState, pod *v1.Pod, node *NodeInfo) *fwk.Status {
	return h.profile.FilterWithNominated(ctx, state, pod, node)
}

// AddPod tells the plugins' prefilter state that a pod is added to a copy of a node.
func (h *Handle) AddPod(ctx context.Context, state fwk.CycleState, pod *v1.Pod, add fwk.PodInfo, node fwk.NodeInfo) *fwk.Status {
	return h.profile.simulate(state, func(x fwk.PreFilterExtensions) *fwk.Status {
		return x.AddPod(ctx, state, pod, add, node)
	})
}

// RemovePod tells the plugins' prefilter state that a pod is taken from a copy of a node.
func (h *Handle) RemovePod(ctx context.Context, state fwk.CycleState, pod *v1.Pod, remove fwk.PodInfo, node fwk.NodeInfo) *fwk.Status {
	return h.profile.simulate(state, func(x fwk.PreFilterExtensions) *fwk.Status {
		return x.RemovePod(ctx, state, pod, remove, node)
	})
}

// Factory builds a plugin for one term.
type Factory func(h *Handle) (fwk.Plugin, error)

// Registry finds plugins by name.
type Registry map[string]Factory

// Spec describes a profile: which scheduler name it answers to and which plugins it runs, in
// this order. A plugin runs at every extension point whose interface it implements.
type Spec struct {
	SchedulerName string
	Plugins       []Enabled
}

// Enabled names a plugin. Weight multiplies its scores; 0 means 1.
type Enabled struct {
	Name   string
	Weight int64
}

// Validate tells what is wrong with a Spec, given the plugins that exist.
func (s Spec) Validate(r Registry) error {
	if s.SchedulerName == "" {
		return fmt.Errorf("scheduler profile without a scheduler name: set one, such as %q", v1.DefaultSchedulerName)
	}
	seen := map[string]bool{}
	for _, p := range s.Plugins {
		switch {
		case r[p.Name] == nil:
			return fmt.Errorf("scheduler profile %q: there is no plugin %q", s.SchedulerName, p.Name)
		case seen[p.Name]:
			return fmt.Errorf("scheduler profile %q: plugin %q is listed twice", s.SchedulerName, p.Name)
		case p.Weight < 0 || p.Weight > maxWeight:
			return fmt.Errorf("scheduler profile %q: weight %d of plugin %q is not within 0 to %d", s.SchedulerName, p.Weight, p.Name, maxWeight)
		}
		seen[p.Name] = true
	}
	return nil
}

// maxWeight keeps the sum of all weighted scores far from overflow.
const maxWeight = 1 << 32
