package csi

import (
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/cluster-test/csidriver"
)

func size(text string) v1.ResourceList {
	return v1.ResourceList{v1.ResourceStorage: resource.MustParse(text)}
}

func TestDecide(t *testing.T) {
	const pending, progress, infeasible = v1.PersistentVolumeClaimNodeResizePending,
		v1.PersistentVolumeClaimNodeResizeInProgress, v1.PersistentVolumeClaimNodeResizeInfeasible
	for name, c := range map[string]struct {
		has, asked, allocated string
		account               v1.ClaimResourceStatus
		mode                  v1.PersistentVolumeAccessMode
		marks                 map[string]string
		g                     growth
		readOnly              bool
		want                  step
	}{
		"nothing to do": {has: "2Gi", asked: "2Gi", g: growth{size: resource.MustParse("2Gi")},
			want: step{}},
		"pending": {has: "1Gi", asked: "2Gi", allocated: "2Gi", account: pending,
			want: step{expand: true, recovers: true}},
		"begun before": {has: "1Gi", asked: "2Gi", allocated: "2Gi", account: progress,
			want: step{expand: true, recovers: true}},
		"given up": {has: "1Gi", asked: "2Gi", allocated: "2Gi", account: infeasible,
			want: step{recovers: true}},
		"the controller is at it": {has: "1Gi", asked: "2Gi", allocated: "2Gi",
			account: v1.PersistentVolumeClaimControllerResizeInProgress, want: step{recovers: true}},
		"a resizer without account": {has: "1Gi", asked: "2Gi", want: step{expand: true}},
		"read-only": {has: "1Gi", asked: "2Gi", allocated: "2Gi", account: pending, readOnly: true,
			want: step{refused: true}},
		"refused while in use": {has: "1Gi", asked: "2Gi", allocated: "2Gi", account: pending,
			g: growth{busy: true}, want: step{}},
		"failed, another size wanted": {has: "1Gi", asked: "1Gi", allocated: "2Gi", account: pending,
			g:    growth{failed: true},
			want: step{expand: true, recovers: true, hopeless: true}},
		"done elsewhere, one writer": {has: "2Gi", asked: "2Gi", allocated: "2Gi",
			want: step{recovers: true, done: true}},
		"done elsewhere, many writers": {has: "2Gi", asked: "2Gi", allocated: "2Gi", mode: v1.ReadWriteMany,
			want: step{expand: true, recovers: true, done: true}},
		"done elsewhere, nodes do nothing": {has: "2Gi", asked: "2Gi", allocated: "2Gi", mode: v1.ReadWriteMany,
			marks: map[string]string{notRequired: "true"},
			want:  step{recovers: true, done: true}},
	} {
		claim := &v1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Annotations: c.marks}}
		claim.Spec.Resources.Requests, claim.Status.Capacity = size(c.asked), size(c.has)
		claim.Spec.AccessModes = []v1.PersistentVolumeAccessMode{c.mode}
		if c.allocated != "" {
			claim.Status.AllocatedResources = size(c.allocated)
		}
		if c.account != "" {
			claim.Status.AllocatedResourceStatuses = map[v1.ResourceName]v1.ClaimResourceStatus{
				v1.ResourceStorage: c.account}
		}
		if c.g.size.IsZero() {
			c.g.size = resource.MustParse("1Gi")
		}
		got := decide(c.g, claim, &v1.PersistentVolume{Spec: v1.PersistentVolumeSpec{Capacity: size("2Gi")}},
			c.readOnly)
		to := got.to
		got.to = resource.Quantity{}
		if got != c.want || (got.expand || got.refused || got.done) && to.Cmp(resource.MustParse("2Gi")) != 0 {
			t.Errorf("%s: %+v to %s, want %+v", name, got, to.String(), c.want)
		}
	}
}

// TestGrow: a volume is expanded while a pod has it, and its claim has the new size.
func TestGrow(t *testing.T) {
	objects := volume("pv", func(pv *v1.PersistentVolume) { pv.Spec.Capacity = size("2Gi") })
	claim := objects[1].(*v1.PersistentVolumeClaim)
	claim.Spec.Resources.Requests, claim.Status.Capacity, claim.Status.AllocatedResources = size("2Gi"), size("2Gi"),
		size("2Gi")
	m := newMachine(t, csidriver.Config{}, objects...)
	now := time.Now()
	m.plugin.Now = func() time.Time { return now }
	if err := m.driver.Add("handle-of-pv", false); err != nil {
		t.Fatal(err)
	}
	m.mount(podOf("a", "pv"))
	if asked := m.asked(0); slices.Contains(asked, "NodeExpandVolume") {
		t.Errorf("asked for more: %q", asked)
	}
	// As the resizer leaves it.
	pv, err := m.client.CoreV1().PersistentVolumes().Get(t.Context(), "pv", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pv.Spec.Capacity = size("3Gi")
	if _, err := m.client.CoreV1().PersistentVolumes().Update(t.Context(), pv, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	claims := m.client.CoreV1().PersistentVolumeClaims("ns")
	if claim, err = claims.Get(t.Context(), "pv", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	claim.Spec.Resources.Requests, claim.Status.AllocatedResources = size("3Gi"), size("3Gi")
	claim.Status.AllocatedResourceStatuses = map[v1.ResourceName]v1.ClaimResourceStatus{
		v1.ResourceStorage: v1.PersistentVolumeClaimNodeResizePending}
	claim.Status.Conditions = []v1.PersistentVolumeClaimCondition{
		{Type: v1.PersistentVolumeClaimFileSystemResizePending, Status: v1.ConditionTrue}}
	if _, err := claims.Update(t.Context(), claim, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	state := func() v1.PersistentVolumeClaimStatus {
		got, err := claims.Get(t.Context(), "pv", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return got.Status
	}
	m.driver.Misbehave(func(string) csidriver.Fault { return csidriver.Fail })
	now = now.Add(refreshEvery)
	m.mount(podOf("a", "pv"))
	if s := state(); s.AllocatedResourceStatuses[v1.ResourceStorage] != v1.PersistentVolumeClaimNodeResizeInProgress ||
		!slices.ContainsFunc(s.Conditions, func(c v1.PersistentVolumeClaimCondition) bool {
			return c.Type == v1.PersistentVolumeClaimNodeResizeError
		}) {
		t.Errorf("after a failure: %+v", s)
	}
	m.driver.Misbehave(nil)
	now = now.Add(refreshEvery)
	m.mount(podOf("a", "pv"))
	s := state()
	has := s.Capacity[v1.ResourceStorage]
	if has.Cmp(resource.MustParse("3Gi")) != 0 || len(s.AllocatedResourceStatuses) > 0 || len(s.Conditions) > 0 {
		t.Errorf("after it is larger: %+v", s)
	}
	if !slices.ContainsFunc(m.events,
		func(e string) bool { return strings.HasPrefix(e, "FileSystemResizeSuccessful ") }) {
		t.Errorf("events: %q", m.events)
	}
	since := len(m.driver.Calls())
	now = now.Add(refreshEvery)
	m.mount(podOf("a", "pv"))
	if asked := m.asked(since); len(asked) > 0 {
		t.Errorf("asked again: %q", asked)
	}
	m.unmount("a")
	m.clean()
}
