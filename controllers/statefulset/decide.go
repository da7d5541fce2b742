package statefulset

import (
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/barque/barque/controllers/pods"
)

// version is a revision with its template.
type version struct {
	name     string
	template *corev1.PodTemplateSpec
}

// observed is the input of decide about one StatefulSet.
type observed struct {
	set  *appsv1.StatefulSet
	pods []*corev1.Pod // its own, by name and reference
	// claims are the namespace's claims for the pods' names, by name.
	claims map[string]*corev1.PersistentVolumeClaim
	// current is the version of the pods below the partition, update that of the others.
	current, update version
}

// plan has the changes for one StatefulSet, in this order. Claims come before the pods that need
// them.
type plan struct {
	createClaims []*corev1.PersistentVolumeClaim
	updateClaims []*corev1.PersistentVolumeClaim // copies with other owners
	create       []*corev1.Pod
	relabel      []*corev1.Pod // copies with the labels of their identity
	delete       []*corev1.Pod
	status       appsv1.StatefulSetStatus
	events       []event
	again        time.Duration
}

// event is one that users see.
type event struct{ kind, reason, message string }

// view is decide's input, with derived data.
type view struct {
	observed
	now       time.Time
	replicas  []*corev1.Pod // by place; nil where there is none
	condemned []*corev1.Pod // beyond the replicas, the last ordinal first
}

// decide takes one step. It brings the pods to their number in order. When all exist and are well,
// it replaces pods of older revisions from the last to the first.
//
// A pod is created only when no pod of its name is left, in any state of its node: two pods of one
// identity never run.
func decide(o observed, now time.Time) (plan, error) {
	v := look(o, now)
	p := plan{status: v.status()}
	for _, pod := range o.pods {
		if _, wait := pods.Available(pod, o.set.Spec.MinReadySeconds, now); wait > 0 &&
			(p.again == 0 || wait < p.again) {
			p.again = wait
		}
	}
	if o.set.DeletionTimestamp != nil {
		return p, nil
	}
	settled := v.fill(&p)
	if settled {
		for _, pod := range v.condemned {
			v.fixClaims(&p, pod)
		}
		settled = v.shrink(&p)
	}
	v.tellBlocked(&p)
	if !settled || o.set.Spec.UpdateStrategy.Type == appsv1.OnDeleteStatefulSetStrategyType {
		return p, nil
	}
	return p, v.roll(&p)
}

func look(o observed, now time.Time) *view {
	v := &view{observed: o, now: now, replicas: make([]*corev1.Pod, replicasOf(o.set))}
	for _, pod := range o.pods {
		ordinal, ok := ordinalOf(o.set, pod)
		if !ok {
			continue
		}
		if place := ordinal - start(o.set); place >= 0 && place < len(v.replicas) {
			v.replicas[place] = pod
		} else {
			v.condemned = append(v.condemned, pod)
		}
	}
	slices.SortFunc(v.condemned, func(a, b *corev1.Pod) int {
		x, _ := ordinalOf(o.set, a)
		y, _ := ordinalOf(o.set, b)
		return y - x
	})
	return v
}

func replicasOf(set *appsv1.StatefulSet) int {
	if set.Spec.Replicas == nil {
		return 1
	}
	return int(*set.Spec.Replicas)
}

func start(set *appsv1.StatefulSet) int {
	if set.Spec.Ordinals == nil {
		return 0
	}
	return int(set.Spec.Ordinals.Start)
}

// ordered reports whether pods come and go one after the other.
func ordered(set *appsv1.StatefulSet) bool {
	return set.Spec.PodManagementPolicy != appsv1.ParallelPodManagement
}

func partition(set *appsv1.StatefulSet) int {
	if r := set.Spec.UpdateStrategy.RollingUpdate; r != nil && r.Partition != nil {
		return int(*r.Partition)
	}
	return 0
}

func revisionOf(pod *corev1.Pod) string { return pod.Labels[appsv1.StatefulSetRevisionLabel] }

func (v *view) serves(pod *corev1.Pod) bool {
	if pod == nil || pod.DeletionTimestamp != nil || pod.Status.Phase != corev1.PodRunning {
		return false
	}
	ok, _ := pods.Available(pod, v.set.Spec.MinReadySeconds, v.now)
	return ok
}

// fill creates missing pods, from the first ordinal on; settled means that nothing blocks the next
// step. In order, each pod waits for the one before it.
func (v *view) fill(p *plan) (settled bool) {
	inOrder := ordered(v.set)
	for place, pod := range v.replicas {
		ordinal := start(v.set) + place
		switch {
		case pod == nil:
			if !v.mayCreate(p, ordinal) {
				if inOrder {
					return false
				}
				continue
			}
			v.claimsFor(p, ordinal, nil)
			p.create = append(p.create, v.newPod(ordinal, place))
			if inOrder {
				return false
			}
		case pods.Finished(pod): // pods of a set are never meant to end
			if pod.DeletionTimestamp == nil {
				p.delete = append(p.delete, pod)
			}
			if inOrder {
				return false
			}
		default:
			if pod.Status.Phase == corev1.PodPending && pod.DeletionTimestamp == nil {
				v.claimsFor(p, ordinal, pod) // a claim may have been deleted
			}
			if inOrder && !v.serves(pod) {
				return false
			}
			v.fixIdentity(p, pod)
			v.fixClaims(p, pod)
		}
	}
	return true
}

// shrink deletes pods beyond the replicas, the last first. In order, it waits for each to be gone,
// and for all others to be well. It does not wait for the first ill pod, which might be ill for
// ever.
func (v *view) shrink(p *plan) (settled bool) {
	inOrder := ordered(v.set)
	var firstIll *corev1.Pod
	for _, pod := range slices.Concat(v.replicas, reversed(v.condemned)) {
		if firstIll == nil && pod != nil && !v.serves(pod) {
			firstIll = pod
		}
	}
	for _, pod := range v.condemned {
		switch {
		case pod.DeletionTimestamp != nil:
			if inOrder {
				return false
			}
			continue
		case inOrder && !v.serves(pod) && pod != firstIll:
			return false
		}
		p.delete = append(p.delete, pod)
		if inOrder {
			return false
		}
	}
	return true
}

func reversed(list []*corev1.Pod) []*corev1.Pod {
	out := slices.Clone(list)
	slices.Reverse(out)
	return out
}

// roll replaces pods of older revisions from the last to the partition, as many as may be down.
func (v *view) roll(p *plan) error {
	most := 1
	if r := v.set.Spec.UpdateStrategy.RollingUpdate; r != nil && r.MaxUnavailable != nil {
		n, err := intstr.GetScaledValueFromIntOrPercent(r.MaxUnavailable, len(v.replicas), false)
		if err != nil {
			return err
		}
		most = max(1, n)
	}
	down := 0
	for _, pod := range v.replicas {
		if !v.serves(pod) {
			down++
		}
	}
	for place := len(v.replicas) - 1; place >= partition(v.set); place-- {
		pod := v.replicas[place]
		if pod == nil || pod.DeletionTimestamp != nil || revisionOf(pod) == v.update.name ||
			slices.Contains(p.delete, pod) {
			continue
		}
		switch {
		case !v.serves(pod): // it is down already; in order there is none
			p.delete = append(p.delete, pod)
		case down < most:
			p.delete = append(p.delete, pod)
			down++
		}
	}
	return nil
}

// blocked is the type of the condition of a rollout that waits for a pod of another revision.
const blocked = appsv1.StatefulSetConditionType("RolloutBlocked")

// patience is how long a pod may take before the rollout counts as blocked.
const patience = 5 * time.Minute

// tellBlocked sets the condition of a rollout that cannot go on. In order, no pod is replaced while
// one before or behind it is not well. A later revision does not reach a pod that its own revision
// broke.
func (v *view) tellBlocked(p *plan) {
	pod := v.broken(p)
	i := slices.IndexFunc(p.status.Conditions, func(c appsv1.StatefulSetCondition) bool { return c.Type == blocked })
	if pod == nil {
		if i >= 0 {
			p.status.Conditions = slices.Delete(p.status.Conditions, i, i+1)
		}
		return
	}
	message := fmt.Sprintf(
		"Pod %s of revision %s is not ready, and revision %s waits for it. To go on: kubectl delete pod %s -n %s",
		pod.Name, revisionOf(pod), v.update.name, pod.Name, pod.Namespace)
	if i >= 0 && p.status.Conditions[i].Message == message {
		return
	}
	p.events = append(p.events, event{corev1.EventTypeWarning, "RolloutBlocked", message})
	c := appsv1.StatefulSetCondition{Type: blocked, Status: corev1.ConditionTrue, Reason: "PodNotReady",
		Message: message, LastTransitionTime: timeOf(v.now)}
	if i < 0 {
		p.status.Conditions = append(p.status.Conditions, c)
		return
	}
	p.status.Conditions[i] = c
}

// broken returns the pod that a rollout in order has waited for too long.
func (v *view) broken(p *plan) *corev1.Pod {
	if !ordered(v.set) || v.set.Spec.UpdateStrategy.Type == appsv1.OnDeleteStatefulSetStrategyType {
		return nil
	}
	for place, pod := range v.replicas {
		if pod == nil || pods.Finished(pod) || pod.DeletionTimestamp != nil {
			return nil // something is done about it
		}
		if v.serves(pod) {
			continue
		}
		if place < partition(v.set) || revisionOf(pod) == v.update.name {
			return nil
		}
		since := pod.CreationTimestamp.Time
		if c := pods.Condition(pod, corev1.PodReady); c != nil && c.LastTransitionTime.After(since) {
			since = c.LastTransitionTime.Time
		}
		if wait := since.Add(patience).Sub(v.now); wait > 0 {
			if p.again == 0 || wait < p.again {
				p.again = wait
			}
			return nil
		}
		return pod
	}
	return nil
}

// status counts the pods. When all are of the newest revision and ready, it is the current one.
func (v *view) status() appsv1.StatefulSetStatus {
	s := *v.set.Status.DeepCopy()
	s.ObservedGeneration = v.set.Generation
	s.CurrentRevision, s.UpdateRevision = v.current.name, v.update.name
	if s.CollisionCount == nil {
		s.CollisionCount = new(int32)
	}
	s.Replicas, s.ReadyReplicas, s.AvailableReplicas, s.CurrentReplicas, s.UpdatedReplicas = 0, 0, 0, 0, 0
	for _, pod := range v.pods {
		s.Replicas++
		if pod.Status.Phase == corev1.PodRunning && pods.Ready(pod) {
			s.ReadyReplicas++
			if ok, _ := pods.Available(pod, v.set.Spec.MinReadySeconds, v.now); ok {
				s.AvailableReplicas++
			}
		}
		if pod.DeletionTimestamp != nil {
			continue
		}
		if revisionOf(pod) == v.current.name {
			s.CurrentReplicas++
		}
		if revisionOf(pod) == v.update.name {
			s.UpdatedReplicas++
		}
	}
	if n := int32(len(v.replicas)); s.UpdatedReplicas == n && s.ReadyReplicas == n && s.Replicas == n {
		s.CurrentReplicas, s.CurrentRevision = n, v.update.name
	}
	return s
}
