package statefulset

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func set(replicas int32, edits ...func(*appsv1.StatefulSet)) *appsv1.StatefulSet {
	s := &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "web", UID: "web", Generation: 2},
		Spec: appsv1.StatefulSetSpec{
			Replicas: &replicas, ServiceName: "svc",
			Selector:       &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}},
			UpdateStrategy: appsv1.StatefulSetUpdateStrategy{Type: appsv1.RollingUpdateStatefulSetStrategyType},
		},
	}
	for _, edit := range edits {
		edit(s)
	}
	return s
}

func parallel(s *appsv1.StatefulSet) { s.Spec.PodManagementPolicy = appsv1.ParallelPodManagement }
func from(n int32) func(*appsv1.StatefulSet) {
	return func(s *appsv1.StatefulSet) { s.Spec.Ordinals = &appsv1.StatefulSetOrdinals{Start: n} }
}
func rolling(partition int32, unavailable string) func(*appsv1.StatefulSet) {
	return func(s *appsv1.StatefulSet) {
		u := intstr.Parse(unavailable)
		s.Spec.UpdateStrategy.RollingUpdate = &appsv1.RollingUpdateStatefulSetStrategy{Partition: &partition,
			MaxUnavailable: &u}
	}
}
func onDelete(s *appsv1.StatefulSet) {
	s.Spec.UpdateStrategy.Type = appsv1.OnDeleteStatefulSetStrategyType
}
func claimed(scaled, deleted appsv1.PersistentVolumeClaimRetentionPolicyType) func(*appsv1.StatefulSet) {
	return func(s *appsv1.StatefulSet) {
		s.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{
			{ObjectMeta: metav1.ObjectMeta{Name: "data", Labels: map[string]string{"l": "m"}}}}
		s.Spec.PersistentVolumeClaimRetentionPolicy = &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{
			WhenScaled: scaled, WhenDeleted: deleted}
	}
}

const (
	keep = appsv1.RetainPersistentVolumeClaimRetentionPolicyType
	drop = appsv1.DeletePersistentVolumeClaimRetentionPolicyType
)

// pod is an available pod of the newest revision.
func pod(ordinal int, edits ...func(*corev1.Pod)) *corev1.Pod {
	name := fmt.Sprint("web-", ordinal)
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: name, UID: types.UID(name + "-uid"),
			CreationTimestamp: metav1.NewTime(now.Add(-time.Hour)),
			Labels: map[string]string{appsv1.StatefulSetRevisionLabel: "new",
				appsv1.StatefulSetPodNameLabel: name}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{
			{Type: corev1.PodReady, Status: corev1.ConditionTrue,
				LastTransitionTime: metav1.NewTime(now.Add(-10 * time.Second))}}},
	}
	for _, e := range edits {
		e(p)
	}
	return p
}

func old(p *corev1.Pod)     { p.Labels[appsv1.StatefulSetRevisionLabel] = "old" }
func unready(p *corev1.Pod) { p.Status.Conditions = nil }
func failed(p *corev1.Pod)  { p.Status.Phase = corev1.PodFailed; unready(p) }
func going(p *corev1.Pod)   { p.DeletionTimestamp = &metav1.Time{Time: now} }
func young(p *corev1.Pod)   { p.CreationTimestamp = metav1.NewTime(now) }
func strange(p *corev1.Pod) { delete(p.Labels, appsv1.StatefulSetPodNameLabel) }

func volume(ordinal int, owners ...metav1.OwnerReference) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: fmt.Sprint("data-web-", ordinal), OwnerReferences: owners}}
}

func observe(s *appsv1.StatefulSet, pods []*corev1.Pod, claims ...*corev1.PersistentVolumeClaim) observed {
	o := observed{set: s, pods: pods, claims: map[string]*corev1.PersistentVolumeClaim{},
		current: version{"old",
			&corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Image: "old"}}}}},
		update: version{"new",
			&corev1.PodTemplateSpec{
				Spec: corev1.PodSpec{Containers: []corev1.Container{{Image: "new"}},
					Volumes: []corev1.Volume{{Name: "data"}, {Name: "tmp"}}}}}}
	for _, c := range claims {
		o.claims[c.Name] = c
	}
	return o
}

func podNames(list []*corev1.Pod) string {
	var out []string
	for _, p := range list {
		out = append(out, strings.TrimPrefix(p.Name, "web-"))
	}
	return strings.Join(out, " ")
}

func TestDecide(t *testing.T) {
	all := func(edits ...func(*corev1.Pod)) []*corev1.Pod {
		return []*corev1.Pod{pod(0, edits...), pod(1, edits...), pod(2, edits...)}
	}
	for _, c := range []struct {
		name           string
		set            *appsv1.StatefulSet
		pods           []*corev1.Pod
		create, delete string
		again          time.Duration
	}{
		{name: "the first", set: set(3), create: "0"},
		{name: "the next", set: set(3), pods: []*corev1.Pod{pod(0)}, create: "1"},
		{name: "not before the first is ready", set: set(3), pods: []*corev1.Pod{pod(0, unready)}},
		{name: "not before it is available", set: set(3, func(s *appsv1.StatefulSet) { s.Spec.MinReadySeconds = 30 }),
			pods: []*corev1.Pod{pod(0)}, again: 20 * time.Second},
		{name: "not while it goes", set: set(3), pods: []*corev1.Pod{pod(0, going)}},
		{name: "all at once", set: set(3, parallel), pods: []*corev1.Pod{pod(1, unready)}, create: "0 2"},
		{name: "ordinals from five", set: set(2, from(5)), pods: []*corev1.Pod{pod(5)}, create: "6"},
		{name: "ordinals moved on", set: set(2, from(1)), pods: []*corev1.Pod{pod(0), pod(1), pod(2)}, delete: "0"},
		{name: "a failed one is replaced", set: set(2), pods: []*corev1.Pod{pod(0, failed), pod(1)}, delete: "0"},
		{name: "a failed one that goes is waited for", set: set(2), pods: []*corev1.Pod{pod(0, failed, going), pod(1)}},
		{name: "a hole", set: set(3), pods: []*corev1.Pod{pod(0), pod(2)}, create: "1"},
		{name: "nothing to do", set: set(3), pods: all()},
		{name: "the last goes first", set: set(1), pods: all(), delete: "2"},
		{name: "one after the other", set: set(1), pods: []*corev1.Pod{pod(0), pod(1), pod(2, going)}},
		{name: "not while another is ill", set: set(1), pods: []*corev1.Pod{pod(0), pod(1, unready), pod(2, unready)}},
		{name: "unless it is the ill one", set: set(1), pods: []*corev1.Pod{pod(0), pod(1), pod(2, unready)},
			delete: "2"},
		{name: "all go at once", set: set(1, parallel), pods: []*corev1.Pod{pod(0, unready), pod(1), pod(2)},
			delete: "2 1"},
		{name: "to nothing", set: set(0), pods: []*corev1.Pod{pod(0, unready)}, delete: "0"},
		{name: "rollout from the last", set: set(3), pods: all(old), delete: "2"},
		{name: "rollout goes on", set: set(3), pods: []*corev1.Pod{pod(0, old), pod(1, old), pod(2)}, delete: "1"},
		{name: "rollout waits", set: set(3), pods: []*corev1.Pod{pod(0, old), pod(1, old), pod(2, unready, young)}},
		{name: "partition", set: set(3, rolling(2, "1")), pods: []*corev1.Pod{pod(0, old), pod(1, old), pod(2)}},
		{name: "two may be down", set: set(3, rolling(0, "2")), pods: all(old), delete: "2 1"},
		{name: "a share of them is rounded down", set: set(3, rolling(0, "50%")), pods: all(old), delete: "2"},
		{name: "parallel rollout takes what is down", set: set(3, parallel, rolling(0, "1")),
			pods: []*corev1.Pod{pod(0, old, unready), pod(1, old), pod(2, old, unready)}, delete: "2 0"},
		{name: "parallel rollout waits", set: set(3, parallel),
			pods: []*corev1.Pod{pod(0, old), pod(1, old), pod(2, going)}},
		{name: "when the user deletes them", set: set(3, onDelete), pods: all(old)},
		{name: "of other names", set: set(1),
			pods: []*corev1.Pod{pod(0), func() *corev1.Pod { p := pod(0); p.Name = "web-00"; return p }(),
				func() *corev1.Pod { p := pod(0); p.Name = "web-x"; return p }()}},
		{name: "being deleted",
			set:  set(3, func(s *appsv1.StatefulSet) { s.DeletionTimestamp = &metav1.Time{Time: now} }),
			pods: []*corev1.Pod{pod(0)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, err := decide(observe(c.set, c.pods), now)
			if err != nil {
				t.Fatal(err)
			}
			if podNames(p.create) != c.create || podNames(p.delete) != c.delete || p.again != c.again {
				t.Errorf("create %q, delete %q, again %v; want %q, %q, %v", podNames(p.create), podNames(p.delete),
					p.again, c.create, c.delete, c.again)
			}
		})
	}
}

func TestIdentity(t *testing.T) {
	s := set(2, rolling(1, "1"), claimed(keep, keep))
	p, err := decide(observe(s, []*corev1.Pod{pod(0, strange)}), now)
	if err != nil {
		t.Fatal(err)
	}
	if len(p.create) != 1 || len(p.createClaims) != 1 || len(p.relabel) != 1 {
		t.Fatalf("plan %+v", p)
	}
	made := p.create[0]
	if made.Name != "web-1" || made.GenerateName != "" || made.Spec.Hostname != "web-1" ||
		made.Spec.Subdomain != "svc" || made.Spec.Containers[0].Image != "new" ||
		made.Labels[appsv1.StatefulSetPodNameLabel] != "web-1" || made.Labels[appsv1.PodIndexLabel] != "1" ||
		made.Labels[appsv1.StatefulSetRevisionLabel] != "new" || !metav1.IsControlledBy(made, s) {
		t.Errorf("pod %+v", made)
	}
	if v := made.Spec.Volumes; len(v) != 2 || v[0].PersistentVolumeClaim == nil ||
		v[0].PersistentVolumeClaim.ClaimName != "data-web-1" || v[1].Name != "tmp" {
		t.Errorf("volumes %+v", v)
	}
	if c := p.createClaims[0]; c.Name != "data-web-1" || c.Labels["app"] != "x" || c.Labels["l"] != "m" ||
		len(c.OwnerReferences) != 0 {
		t.Errorf("claim %+v", c)
	}
	if p.relabel[0].Labels[appsv1.StatefulSetPodNameLabel] != "web-0" {
		t.Errorf("labels %v", p.relabel[0].Labels)
	}
	if len(s.Spec.VolumeClaimTemplates[0].Labels) != 1 {
		t.Error("the template itself was changed")
	}
	// Below the partition the current revision comes back.
	p, err = decide(observe(s, nil), now)
	if err != nil || len(p.create) != 1 || revisionOf(p.create[0]) != "old" ||
		p.create[0].Spec.Containers[0].Image != "old" {
		t.Errorf("below the partition: %v, %v", p.create, err)
	}
}

func TestClaimRetention(t *testing.T) {
	s := set(1, claimed(keep, keep))
	bySet := *metav1.NewControllerRef(s, kind)
	byPod := func(n int) metav1.OwnerReference { return *metav1.NewControllerRef(pod(n), podKind) }
	other := metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: "c", UID: "c"}
	manager := metav1.OwnerReference{APIVersion: "x/v1", Kind: "X", Name: "x", UID: "x", Controller: bySet.Controller}
	formerSet := bySet
	formerSet.UID = "former"
	for _, c := range []struct {
		name            string
		scaled, deleted appsv1.PersistentVolumeClaimRetentionPolicyType
		has             []metav1.OwnerReference
		of              int // 0 is a replica, 1 is condemned
		want            string
	}{
		{"kept", keep, keep, nil, 0, ""},
		{"kept from now on", keep, keep, []metav1.OwnerReference{bySet, other}, 0, "ConfigMap"},
		{"goes with the set", keep, drop, nil, 0, "StatefulSet"},
		{"goes with the set already", keep, drop, []metav1.OwnerReference{bySet}, 0, ""},
		{"goes with the set although too much", keep, drop, nil, 1, "StatefulSet"},
		{"goes with the pod when too much", drop, keep, nil, 1, "Pod"},
		{"does not while it is not", drop, keep, []metav1.OwnerReference{byPod(0), other}, 0, "ConfigMap"},
		{"with either", drop, drop, []metav1.OwnerReference{bySet}, 1, "Pod"},
		{"with either, as long as it is needed", drop, drop, nil, 0, "StatefulSet"},
		{"somebody else's", keep, drop, []metav1.OwnerReference{manager}, 0, ""},
		{"of a set before", keep, drop, []metav1.OwnerReference{formerSet}, 0, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := set(1, claimed(c.scaled, c.deleted))
			p, err := decide(
				observe(s, []*corev1.Pod{pod(0), pod(1)}, volume(c.of, c.has...),
					volume(1-c.of, func() []metav1.OwnerReference {
						// The other one is as it should be.
						switch {
						case c.of == 0 && c.scaled == drop:
							return []metav1.OwnerReference{byPod(1)}
						case c.deleted == drop:
							return []metav1.OwnerReference{bySet}
						}
						return nil
					}()...)), now)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, u := range p.updateClaims {
				for _, ref := range u.OwnerReferences {
					got = append(got, ref.Kind)
				}
				if u.Name != fmt.Sprint("data-web-", c.of) {
					t.Errorf("writes %s", u.Name)
				}
			}
			if strings.Join(got, " ") != c.want {
				t.Errorf("owners %v, want %s", got, c.want)
			}
		})
	}
	// A pod is not created on a claim that is about to go.
	gone := byPod(0)
	gone.UID = "former"
	for _, blocked := range []*corev1.PersistentVolumeClaim{volume(0, gone), func() *corev1.PersistentVolumeClaim {
		c := volume(0)
		c.DeletionTimestamp = &metav1.Time{Time: now}
		return c
	}()} {
		p, err := decide(observe(set(1, claimed(drop, keep)), nil, blocked), now)
		if err != nil || len(p.create) > 0 {
			t.Errorf("creates %v on %+v, %v", p.create, blocked.ObjectMeta, err)
		}
	}
}

func TestStatus(t *testing.T) {
	s := set(3)
	p, err := decide(observe(s, []*corev1.Pod{pod(0, old), pod(1, going), pod(2, unready)}), now)
	if err != nil {
		t.Fatal(err)
	}
	want := appsv1.StatefulSetStatus{ObservedGeneration: 2, Replicas: 3, ReadyReplicas: 2, AvailableReplicas: 2,
		CurrentReplicas: 1, UpdatedReplicas: 1,
		CurrentRevision: "old", UpdateRevision: "new", CollisionCount: new(int32)}
	if !equality.Semantic.DeepEqual(p.status, want) {
		t.Errorf("status %+v", p.status)
	}
	p, err = decide(observe(s, []*corev1.Pod{pod(0), pod(1), pod(2)}), now)
	if err != nil || p.status.CurrentRevision != "new" || p.status.CurrentReplicas != 3 {
		t.Errorf("all are new: %+v, %v", p.status, err)
	}
}

// An ordered rollout that waits for a broken pod reports that, with the remedy, after a while and
// once.
func TestBlockedRolloutIsTold(t *testing.T) {
	broken := func(p *corev1.Pod) { old(p); unready(p) }
	s := set(2)
	p, err := decide(observe(s, []*corev1.Pod{pod(0), pod(1, broken, young)}), now)
	if err != nil || len(p.events) > 0 || p.again != patience {
		t.Errorf("at first: %+v, %v", p, err)
	}
	p, err = decide(observe(s, []*corev1.Pod{pod(0), pod(1, broken)}), now)
	if err != nil || len(p.events) != 1 || len(p.status.Conditions) != 1 ||
		!strings.Contains(p.events[0].message, "kubectl delete pod web-1 -n d") || len(p.delete) > 0 {
		t.Errorf("later: %+v, %v", p, err)
	}
	s.Status = p.status
	p, err = decide(observe(s, []*corev1.Pod{pod(0), pod(1, broken)}), now.Add(time.Hour))
	if err != nil || len(p.events) > 0 || !equality.Semantic.DeepEqual(p.status, s.Status) {
		t.Errorf("still: %+v, %v", p, err)
	}
	p, err = decide(observe(s, []*corev1.Pod{pod(0), pod(1, unready, young)}), now)
	if err != nil || len(p.status.Conditions) != 0 {
		t.Errorf("when its pod is new: %+v, %v", p, err)
	}
}

// Scaling and rolling out from any state ends with the wanted pods, without two pods of a name.
// Order is kept where it is required, with no more pods down than allowed. Then nothing is left to
// do.
func TestProperties(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 5))
		most := 1 + r.IntN(2)
		s := set(int32(r.IntN(6)), rolling(0, fmt.Sprint(most)), from(int32(r.IntN(2))))
		if r.IntN(2) == 0 {
			parallel(s)
		}
		var here []*corev1.Pod
		for i := range r.IntN(6) {
			here = append(here, pod(i, old))
		}
		at := now
		look := func() plan {
			p, err := decide(observe(s, here), at)
			if err != nil {
				t.Fatal(err)
			}
			return p
		}
		done := false
		for range 2000 {
			at = at.Add(time.Second)
			p := look()
			s.Status = p.status
			s.Status.CurrentRevision = "old" // observe says so
			if done = len(p.create)+len(p.delete) == 0 && int(p.status.UpdatedReplicas) == replicasOf(s) &&
				len(here) == replicasOf(s) && int(p.status.AvailableReplicas) == replicasOf(s); done {
				break
			}
			if ordered(s) && len(p.create)+len(p.delete) > most {
				t.Fatalf("seed %d: create %s, delete %s at once", seed, podNames(p.create), podNames(p.delete))
			}
			for _, made := range p.create {
				if slices.ContainsFunc(here, func(p *corev1.Pod) bool { return p.Name == made.Name }) {
					t.Fatalf("seed %d: a second %s", seed, made.Name)
				}
				made.CreationTimestamp, made.UID = metav1.NewTime(at), types.UID(fmt.Sprint(made.Name, at.UnixNano()))
				made.Status.Phase = corev1.PodPending
				here = append(here, made)
			}
			for _, gone := range p.delete {
				gone.DeletionTimestamp = &metav1.Time{Time: at}
			}
			here = slices.DeleteFunc(here,
				func(p *corev1.Pod) bool { return p.DeletionTimestamp != nil && r.IntN(2) == 0 })
			for _, p := range here {
				if r.IntN(2) == 0 {
					p.Status.Phase = corev1.PodRunning
					p.Status.Conditions = []corev1.PodCondition{
						{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(at)}}
				}
			}
		}
		if again := look(); !done || len(again.create)+len(again.delete)+len(again.relabel) > 0 {
			t.Fatalf("seed %d: done %v, then %+v", seed, done, again)
		}
	}
}
