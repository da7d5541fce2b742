package extender

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	configv1 "k8s.io/kube-scheduler/config/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// Preempt asks the extenders in turn which nodes with victims may be freed; each sees only the
// nodes that are left. An extender may choose other victims on a node.
func (s *Set) Preempt(
	ctx context.Context, pod *v1.Pod, victims map[string]*extenderv1.Victims, nodes fwk.NodeInfoLister,
) (map[string]*extenderv1.Victims, error) {
	for _, e := range s.asked(pod, func(c *configv1.Extender) string { return c.PreemptVerb }) {
		if len(victims) == 0 {
			break
		}
		left, err := e.preempt(ctx, pod, victims, nodes)
		if err != nil {
			if s.skips(e, pod, err) {
				continue
			}
			return nil, err
		}
		victims = left
	}
	return victims, nil
}

func (e *extender) preempt(
	ctx context.Context, pod *v1.Pod, victims map[string]*extenderv1.Victims, nodes fwk.NodeInfoLister,
) (map[string]*extenderv1.Victims, error) {
	args := &extenderv1.ExtenderPreemptionArgs{Pod: pod, NodeNameToVictims: victims}
	if e.config.NodeCacheCapable {
		args.NodeNameToVictims, args.NodeNameToMetaVictims = nil, identifiers(victims)
	}
	var answer extenderv1.ExtenderPreemptionResult
	if err := e.call(ctx, e.config.PreemptVerb, args, &answer); err != nil {
		return nil, err
	}
	left := map[string]*extenderv1.Victims{}
	for name, ids := range answer.NodeNameToMetaVictims {
		if victims[name] == nil {
			return nil, e.lies("it frees node %q, which it was not asked about", name)
		}
		if ids == nil || len(ids.Pods) == 0 {
			if e.config.Ignorable {
				continue
			}
			return nil, e.lies("expected at least one victim pod on node %q", name)
		}
		node, err := nodes.Get(name)
		if err != nil {
			return nil, e.lies("%w", err)
		}
		v := &extenderv1.Victims{NumPDBViolations: ids.NumPDBViolations}
		for _, id := range ids.Pods {
			victim, err := victimOf(pod, node, id)
			if err != nil {
				return nil, e.lies("%w", err)
			}
			v.Pods = append(v.Pods, victim)
		}
		left[name] = v
	}
	return left, nil
}

func (e *extender) lies(format string, args ...any) error {
	return fmt.Errorf("%s: %s: %w", e, e.config.PreemptVerb, fmt.Errorf(format, args...))
}

func victimOf(pod *v1.Pod, node fwk.NodeInfo, id *extenderv1.MetaPod) (*v1.Pod, error) {
	for _, p := range node.GetPods() {
		victim := p.GetPod()
		if id == nil || string(victim.UID) != id.UID {
			continue
		}
		if corev1helpers.PodPriority(victim) >= corev1helpers.PodPriority(pod) {
			return nil, fmt.Errorf("it evicts pod %s/%s, which is not of lower priority", victim.Namespace, victim.Name)
		}
		return victim, nil
	}
	return nil, fmt.Errorf("it evicts a pod that is not on node %q: %+v", node.Node().Name, id)
}

func identifiers(victims map[string]*extenderv1.Victims) map[string]*extenderv1.MetaVictims {
	out := make(map[string]*extenderv1.MetaVictims, len(victims))
	for node, v := range victims {
		m := &extenderv1.MetaVictims{NumPDBViolations: v.NumPDBViolations, Pods: []*extenderv1.MetaPod{}}
		for _, p := range v.Pods {
			m.Pods = append(m.Pods, &extenderv1.MetaPod{UID: string(p.UID)})
		}
		out[node] = m
	}
	return out
}
