package daemonset

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"

	"github.com/barque/barque/controllers/pods"
)

// burst bounds how many pods one look at a DaemonSet creates or deletes.
const burst = 250

// observed is the input of decide about one DaemonSet.
type observed struct {
	set   *appsv1.DaemonSet
	nodes []*corev1.Node
	pods  []*corev1.Pod // all that it controls
	hash  string        // of the current template
	// wait is how long the failed pod on a node is to stay, 0 if it may go.
	wait func(node string) time.Duration
}

// plan has the changes for one DaemonSet.
type plan struct {
	create []string // nodes
	delete []*corev1.Pod
	failed []string // nodes whose failed pod is among delete
	events []event
	status appsv1.DaemonSetStatus
	again  time.Duration
}

// event is one that users see.
type event struct{ kind, reason, message string }

// soon asks for another look after d at the latest.
func (p *plan) soon(d time.Duration) {
	if d > 0 && (p.again == 0 || d < p.again) {
		p.again = d
	}
}

// view is decide's input, with derived data.
type view struct {
	observed
	now   time.Time
	here  map[string][]*corev1.Pod // by node, the oldest first; without pods that have ended or are terminating
	fits  map[string]fit
	names []string // of the nodes, sorted
}

// decide takes one step. It gives each node its pod. When every node has its pod, it replaces pods
// of older templates within the limits of the strategy.
func decide(o observed, now time.Time) (plan, error) {
	v := look(o, now)
	p := plan{status: v.status()}
	v.waits(&p)
	v.manage(&p)
	if len(p.create)+len(p.delete) == 0 && o.set.Spec.UpdateStrategy.Type == appsv1.RollingUpdateDaemonSetStrategyType {
		if err := v.roll(&p); err != nil {
			return plan{}, err
		}
	}
	p.create = p.create[:min(len(p.create), burst)]
	p.delete = p.delete[:min(len(p.delete), burst)]
	return p, nil
}

func look(o observed, now time.Time) *view {
	v := &view{observed: o, now: now, here: map[string][]*corev1.Pod{}, fits: map[string]fit{}}
	for _, pod := range o.pods {
		if node := targetOf(pod); node != "" && (pod.DeletionTimestamp == nil || !pods.Finished(pod)) {
			v.here[node] = append(v.here[node], pod)
		}
	}
	for _, list := range v.here {
		slices.SortFunc(list, older)
	}
	spec := o.set.Spec.Template.Spec
	affinity := nodeaffinity.NewRequiredNodeAffinity(spec.NodeSelector, spec.Affinity)
	tolerations := withDefaults(spec.Tolerations, spec.HostNetwork)
	for _, node := range o.nodes {
		v.names = append(v.names, node.Name)
		v.fits[node.Name] = fitOf(&spec, node, affinity, tolerations)
	}
	slices.Sort(v.names)
	return v
}

// older orders pods: bound to their node first, then by age.
func older(a, b *corev1.Pod) int {
	if bound := a.Spec.NodeName != ""; bound != (b.Spec.NodeName != "") {
		if bound {
			return -1
		}
		return 1
	}
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}

// manage finds the nodes that lack their pod and the pods that no node should have.
func (v *view) manage(p *plan) {
	for _, node := range v.names {
		here, fit := v.here[node], v.fits[node]
		switch {
		case fit.run && len(here) == 0:
			p.create = append(p.create, node)
		case fit.keep:
			v.tidy(p, node, v.unended(p, node))
		default:
			for _, pod := range here {
				if pod.DeletionTimestamp == nil {
					p.delete = append(p.delete, pod)
				}
			}
		}
	}
	// A pod for a deleted node is never bound, and no other controller deletes it.
	for node, here := range v.here {
		if _, exists := v.fits[node]; exists {
			continue
		}
		for _, pod := range here {
			if pod.Spec.NodeName == "" && pod.DeletionTimestamp == nil {
				p.delete = append(p.delete, pod)
			}
		}
	}
	slices.SortStableFunc(p.delete, func(a, b *corev1.Pod) int { return cmp.Compare(a.Name, b.Name) })
}

// unended returns the pods of a node that run or will run. It deletes the pods that have ended,
// because a DaemonSet's pods must not end. A node that keeps refusing its pod gets the next one
// later each time.
func (v *view) unended(p *plan, node string) []*corev1.Pod {
	var out []*corev1.Pod
	for _, pod := range v.here[node] {
		switch {
		case pod.DeletionTimestamp != nil:
		case pod.Status.Phase == corev1.PodFailed:
			if wait := v.wait(node); wait > 0 {
				p.soon(wait)
				continue
			}
			p.failed = append(p.failed, node)
			p.delete = append(p.delete, pod)
			p.events = append(p.events, event{corev1.EventTypeWarning, "FailedDaemonPod",
				fmt.Sprintf("Found failed daemon pod %s/%s on node %s, will try to kill it", pod.Namespace, pod.Name,
					node)})
		case pod.Status.Phase == corev1.PodSucceeded:
			p.delete = append(p.delete, pod)
			p.events = append(p.events, event{corev1.EventTypeNormal, "SucceededDaemonPod",
				fmt.Sprintf("Found succeeded daemon pod %s/%s on node %s, will try to delete it", pod.Namespace,
					pod.Name, node)})
		default:
			out = append(out, pod)
		}
	}
	return out
}

// tidy leaves a node one pod, and while it surges one of each template.
func (v *view) tidy(p *plan, node string, running []*corev1.Pod) {
	surge, err := limitOf(v.set, surgeOf, 1)
	if err != nil || surge == 0 {
		if len(running) > 1 {
			p.delete = append(p.delete, running[1:]...)
		}
		return
	}
	if len(running) == 0 && v.fits[node].run &&
		!slices.ContainsFunc(v.here[node], func(pod *corev1.Pod) bool { return pod.DeletionTimestamp == nil }) {
		p.create = append(p.create, node) // the one that goes need not be waited for
		return
	}
	var newest, old *corev1.Pod
	for _, pod := range running {
		switch updated := v.updated(pod); {
		case updated && newest == nil:
			newest = pod
		case !updated && old == nil:
			old = pod
		default:
			p.delete = append(p.delete, pod)
		}
	}
	if newest != nil && old != nil && (!pods.Ready(old) || v.available(newest)) {
		p.delete = append(p.delete, old)
	}
}

func (v *view) updated(pod *corev1.Pod) bool {
	return v.hash != "" && pod.Labels[appsv1.DefaultDaemonSetUniqueLabelKey] == v.hash
}

func (v *view) available(pod *corev1.Pod) bool {
	ok, _ := pods.Available(pod, v.set.Spec.MinReadySeconds, v.now)
	return ok
}

// waits asks for a look when the next pod becomes available.
func (v *view) waits(p *plan) {
	for _, pod := range v.pods {
		if _, wait := pods.Available(pod, v.set.Spec.MinReadySeconds, v.now); wait > 0 && pods.Active(pod) {
			p.soon(wait)
		}
	}
}

func (v *view) status() appsv1.DaemonSetStatus {
	s := *v.set.Status.DeepCopy()
	s.ObservedGeneration = v.set.Generation
	s.DesiredNumberScheduled, s.CurrentNumberScheduled, s.NumberMisscheduled, s.NumberReady = 0, 0, 0, 0
	s.UpdatedNumberScheduled, s.NumberAvailable, s.NumberUnavailable = 0, 0, 0
	for _, node := range v.names {
		here := v.here[node]
		if !v.fits[node].run {
			if len(here) > 0 {
				s.NumberMisscheduled++
			}
			continue
		}
		s.DesiredNumberScheduled++
		if len(here) == 0 {
			continue
		}
		s.CurrentNumberScheduled++
		if pods.Ready(here[0]) {
			s.NumberReady++
			if v.available(here[0]) {
				s.NumberAvailable++
			}
		}
		if v.updated(here[0]) {
			s.UpdatedNumberScheduled++
		}
	}
	s.NumberUnavailable = s.DesiredNumberScheduled - s.NumberAvailable
	return s
}

func surgeOf(r *appsv1.RollingUpdateDaemonSet) *intstr.IntOrString       { return r.MaxSurge }
func unavailableOf(r *appsv1.RollingUpdateDaemonSet) *intstr.IntOrString { return r.MaxUnavailable }

// limitOf returns a limit of the rolling update for a number of nodes, 0 where there is none.
func limitOf(
	set *appsv1.DaemonSet, which func(*appsv1.RollingUpdateDaemonSet) *intstr.IntOrString, nodes int,
) (int, error) {
	s := set.Spec.UpdateStrategy
	if s.Type != appsv1.RollingUpdateDaemonSetStrategyType || s.RollingUpdate == nil || which(s.RollingUpdate) == nil {
		return 0, nil
	}
	return intstr.GetScaledValueFromIntOrPercent(which(s.RollingUpdate), nodes, true)
}
