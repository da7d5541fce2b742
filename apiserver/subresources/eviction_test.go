package subresources

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"
)

func TestEvictionSpendsItsBudget(t *testing.T) {
	budget := func(
		name string, allowed int32, change func(*policyv1.PodDisruptionBudget),
	) *policyv1.PodDisruptionBudget {
		b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Generation: 1},
			Spec: policyv1.PodDisruptionBudgetSpec{
				Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "a"}}},
			Status: policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 1, DisruptionsAllowed: allowed,
				CurrentHealthy: 2, DesiredHealthy: 2}}
		if change != nil {
			change(b)
		}
		return b
	}
	isReady := []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	for _, c := range []struct {
		name    string
		budgets []*policyv1.PodDisruptionBudget
		labels  map[string]string
		unready bool
		dryRun  bool
		refused func(error) bool
		left    int32
	}{
		{name: "no budget"},
		{name: "another's budget", budgets: []*policyv1.PodDisruptionBudget{budget("b", 0, nil)},
			labels: map[string]string{"app": "b"}},
		{name: "one to spend", budgets: []*policyv1.PodDisruptionBudget{budget("b", 1, nil)}},
		{name: "dry run", budgets: []*policyv1.PodDisruptionBudget{budget("b", 1, nil)}, dryRun: true, left: 1},
		{name: "none to spend", budgets: []*policyv1.PodDisruptionBudget{budget("b", 0, nil)},
			refused: apierrors.IsTooManyRequests},
		{name: "not ready anyway", budgets: []*policyv1.PodDisruptionBudget{budget("b", 0, nil)}, unready: true},
		{name: "stale status",
			budgets: []*policyv1.PodDisruptionBudget{
				budget("b", 5, func(b *policyv1.PodDisruptionBudget) { b.Generation = 2 })},
			refused: apierrors.IsTooManyRequests, left: 5},
		{name: "two budgets", budgets: []*policyv1.PodDisruptionBudget{budget("b", 1, nil), budget("c", 1, nil)},
			refused: apierrors.IsInternalError, left: 1},
		{name: "unconfirmed evictions",
			budgets: []*policyv1.PodDisruptionBudget{budget("b", 1, func(b *policyv1.PodDisruptionBudget) {
				b.Status.DisruptedPods = map[string]metav1.Time{}
				for i := range 2001 {
					b.Status.DisruptedPods[fmt.Sprint(i)] = metav1.Time{}
				}
			})}, refused: apierrors.IsForbidden, left: 1},
		{name: "unhealthy may go always",
			budgets: []*policyv1.PodDisruptionBudget{budget("b", 0, func(b *policyv1.PodDisruptionBudget) {
				b.Status.CurrentHealthy = 0
				b.Spec.UnhealthyPodEvictionPolicy = ptr.To(policyv1.AlwaysAllow)
			})}, unready: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			client := fake.NewClientset()
			for _, b := range c.budgets {
				if _, err := client.PolicyV1().PodDisruptionBudgets("ns").Create(t.Context(), b,
					metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", Labels: map[string]string{"app": "a"}}}
			if c.labels != nil {
				pod.Labels = c.labels
			}
			if !c.unready {
				pod.Status.Conditions = isReady
			}
			freeOf, err := NewEviction(nil, client, true).spend(apirequest.WithNamespace(t.Context(), "ns"), pod,
				c.dryRun)
			if (freeOf != "") != c.unready {
				t.Errorf("the pod is free of budget %q", freeOf)
			}
			if c.refused == nil && err != nil || c.refused != nil && !c.refused(err) {
				t.Errorf("got %v", err)
			}
			if len(c.budgets) == 0 {
				return
			}
			b, err := client.PolicyV1().PodDisruptionBudgets("ns").Get(t.Context(), "b", metav1.GetOptions{})
			if err != nil || b.Status.DisruptionsAllowed != c.left {
				t.Errorf("%d disruptions are left, want %d (%v)", b.Status.DisruptionsAllowed, c.left, err)
			}
		})
	}
}

// With any options, a deletion is of the pod that the budget is spent on.
func TestEvictionIsOfOnePod(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", UID: "u", ResourceVersion: "7"}}
	for name, c := range map[string]struct {
		given *metav1.Preconditions
		want  types.UID
	}{
		"none":      {nil, "u"},
		"empty":     {&metav1.Preconditions{}, "u"},
		"no UID":    {&metav1.Preconditions{UID: ptr.To(types.UID(""))}, "u"},
		"a version": {&metav1.Preconditions{ResourceVersion: ptr.To("5")}, "u"},
		"a UID":     {&metav1.Preconditions{UID: ptr.To(types.UID("v"))}, "v"},
	} {
		deletion := &metav1.DeleteOptions{Preconditions: c.given}
		pinUID(deletion, pod)
		if got := deletion.Preconditions.UID; got == nil || *got != c.want {
			t.Errorf("%s: UID %v, want %s", name, got, c.want)
		}
		if c.given != nil && c.given.ResourceVersion != nil && deletion.Preconditions.ResourceVersion == nil {
			t.Errorf("%s: the version is lost", name)
		}
	}
}

// The evicted pod has the condition in its status, and the deletion is of the pod as it is
// after that.
func TestEvictionAddsTheCondition(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u", ResourceVersion: "7"},
		Status: corev1.PodStatus{
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}}
	for _, c := range []struct {
		name     string
		deletion metav1.DeleteOptions
		said     bool
	}{
		{"this pod", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: ptr.To(pod.UID)}}, true},
		{"this version", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: ptr.To("7")}},
			true},
		{"another pod", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: ptr.To(types.UID("v"))}}, false},
		{"dry run", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{}, DryRun: []string{metav1.DryRunAll}},
			false},
	} {
		t.Run(c.name, func(t *testing.T) {
			client := fake.NewClientset(pod)
			if err := NewEviction(nil, client, true).addCondition(t.Context(), pod, &c.deletion); err != nil {
				t.Fatal(err)
			}
			now, err := client.CoreV1().Pods("ns").Get(t.Context(), "p", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			said := false
			for _, condition := range now.Status.Conditions {
				said = said ||
					condition.Type == corev1.DisruptionTarget && condition.Status == corev1.ConditionTrue &&
						condition.Reason == "EvictionByEvictionAPI"
			}
			if said != c.said ||
				now.Status.Conditions[0].Type != corev1.PodReady && now.Status.Conditions[1].Type != corev1.PodReady {
				t.Errorf("conditions %+v", now.Status.Conditions)
			}
			if v := c.deletion.Preconditions.ResourceVersion; v != nil && *v != now.ResourceVersion {
				t.Errorf("deletes version %s, not %s", *v, now.ResourceVersion)
			}
		})
	}
}
