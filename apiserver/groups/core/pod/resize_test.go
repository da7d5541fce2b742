package pod

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/groups/grouptest"
)

// resized is a pod with all fields that a resize uses.
const resized = `
metadata: {name: p, namespace: default, resourceVersion: "1"}
spec:
  resources: {requests: {cpu: 2, memory: 2Gi}}
  volumes: [{name: v, emptyDir: {}}]
  initContainers:
  - {name: first, image: i, resources: {requests: {cpu: 100m}}}
  - {name: once, image: i, resources: {requests: {cpu: 100m}}, resizePolicy: [{resourceName: cpu, restartPolicy: NotRequired}]}
  - {name: side, image: i, restartPolicy: Always, resources: {requests: {cpu: 100m}}, resizePolicy: [{resourceName: cpu, restartPolicy: RestartContainer}]}
  containers:
  - {name: web, image: i, resources: {requests: {cpu: 100m, memory: 1Gi, ephemeral-storage: 1Gi}, limits: {memory: 2Gi}}}
  - {name: log, image: i}
status: {qosClass: Burstable, phase: Running, containerStatuses: [{name: web, state: {running: {}}, resources: {}}]}
`

func TestValidateResize(t *testing.T) {
	const spec = grouptest.Forbidden + "spec"
	for name, c := range map[string]struct {
		change func(p, old *corev1.Pod)
		want   []string
	}{
		"nothing": {func(_, _ *corev1.Pod) {}, nil},
		"amounts": {func(p, _ *corev1.Pod) {
			set(t, p.Spec.Containers[0].Resources.Requests, "cpu", "1")
			set(t, p.Spec.Containers[0].Resources.Limits, "memory", "3Gi")
			set(t, p.Spec.InitContainers[1].Resources.Requests, "cpu", "200m")
			set(t, p.Spec.InitContainers[2].Resources.Requests, "cpu", "200m")
			set(t, p.Spec.Resources.Requests, "memory", "4Gi")
		}, nil},
		"what was not set": {func(p, _ *corev1.Pod) {
			p.Spec.Containers[1].Resources = parsed(t, "{requests: {cpu: 10m}, limits: {cpu: 20m}}")
		}, nil},
		"request taken away": {func(p, _ *corev1.Pod) { delete(p.Spec.Containers[0].Resources.Requests, "cpu") },
			[]string{spec + ".containers[0].resources.requests"}},
		"limit taken away": {func(p, _ *corev1.Pod) { delete(p.Spec.Containers[0].Resources.Limits, "memory") },
			[]string{spec + ".containers[0].resources.limits"}},
		"init taken away": {func(p, _ *corev1.Pod) { delete(p.Spec.InitContainers[2].Resources.Requests, "cpu") },
			[]string{spec + ".initContainers[2].resources.requests"}},
		"of the pod": {func(p, _ *corev1.Pod) { delete(p.Spec.Resources.Requests, "cpu") },
			[]string{spec + ".resources.requests"}},
		"all of the pod": {func(p, _ *corev1.Pod) { p.Spec.Resources = nil }, []string{spec + ".resources"}},
		"invalid": {func(p, _ *corev1.Pod) { set(t, p.Spec.Containers[0].Resources.Limits, "cpu", "50m") },
			[]string{grouptest.Invalid + "spec.containers[0].resources.requests"}},
		"other resource": {
			func(p, _ *corev1.Pod) { set(t, p.Spec.Containers[0].Resources.Requests, "ephemeral-storage", "2Gi") },
			[]string{spec}},
		"init other": {func(p, _ *corev1.Pod) {
			set(t, p.Spec.InitContainers[2].Resources.Requests, "ephemeral-storage", "2Gi")
		}, []string{spec + ".initContainers[2]"}},
		"policy": {func(p, _ *corev1.Pod) {
			p.Spec.Containers[0].ResizePolicy = []corev1.ContainerResizePolicy{
				{ResourceName: "cpu", RestartPolicy: "NotRequired"}}
		}, []string{spec}},
		"class": {func(p, old *corev1.Pod) {
			p.Spec.Resources, old.Spec.Resources, old.Status.QOSClass = nil, nil, "BestEffort"
		}, []string{grouptest.Invalid + "spec"}},
		"image":       {func(p, _ *corev1.Pod) { p.Spec.Containers[0].Image = "j" }, []string{spec}},
		"other field": {func(p, _ *corev1.Pod) { p.Spec.Hostname = "h" }, []string{spec}},
		"volumes":     {func(p, _ *corev1.Pod) { p.Spec.Volumes = nil }, []string{spec + ".volumes"}},
		"one less": {func(p, _ *corev1.Pod) { p.Spec.Containers = p.Spec.Containers[:1] },
			[]string{spec + ".containers"}},
		"init less": {func(p, _ *corev1.Pod) { p.Spec.InitContainers = p.Spec.InitContainers[:2] },
			[]string{spec + ".initContainers"}},
		"renamed": {func(p, _ *corev1.Pod) { p.Spec.Containers[1].Name = "other" },
			[]string{spec + ".containers[1].name"}},
		"static": {
			func(_, old *corev1.Pod) { old.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: ""} },
			[]string{grouptest.Forbidden + "[]"}},
		"windows": {func(_, old *corev1.Pod) { old.Spec.OS = &corev1.PodOS{Name: corev1.Windows} },
			[]string{grouptest.Forbidden + "[]"}},
		"old kubelet": {func(_, old *corev1.Pod) { old.Status.ContainerStatuses[0].Resources = nil }, []string{spec}},
	} {
		t.Run(name, func(t *testing.T) {
			old := resizedPod(t)
			p := old.DeepCopy()
			c.change(p, old)
			before := p.DeepCopy()
			grouptest.WantErrors(t, ValidateResize(p, old), c.want...)
			if diff := cmp.Diff(before, p); diff != "" {
				t.Errorf("validation changed the pod:\n%s", diff)
			}
		})
	}
}

// resizedPod is the stored form of resized: parsed and defaulted, without Prepare.
func resizedPod(t *testing.T) *corev1.Pod {
	t.Helper()
	p := grouptest.Parse[corev1.Pod](t, resized)
	defaultPod(p)
	return p
}

func set(t *testing.T, list corev1.ResourceList, name corev1.ResourceName, amount string) {
	t.Helper()
	list[name] = parsed(t, "{requests: {x: "+amount+"}}").Requests["x"]
}

func parsed(t *testing.T, text string) corev1.ResourceRequirements {
	t.Helper()
	return *grouptest.Parse[corev1.ResourceRequirements](t, text)
}

func TestPrepareResize(t *testing.T) {
	old := resizedPod(t)
	p := old.DeepCopy()
	set(t, p.Spec.Containers[0].Resources.Requests, "cpu", "1")
	want := p.DeepCopy()
	p.Spec.Containers[0].Image, p.Spec.Hostname, p.Spec.NodeName, p.Spec.Volumes, p.Spec.Resources = "j", "h", "n", nil,
		nil
	p.Status.Phase, p.Status.Conditions = corev1.PodFailed, []corev1.PodCondition{{Type: corev1.PodReady}}
	PrepareResize(p, old)
	if diff := cmp.Diff(want, p); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	// Resources that a pod gets as a whole for the first time are completed from its containers.
	p, old.Spec.Resources = old.DeepCopy(), nil
	p.Spec.Resources = ptr.To(parsed(t, "{limits: {cpu: 5}}"))
	PrepareResize(p, old)
	if diff := cmp.Diff(ptr.To(parsed(t, "{limits: {cpu: 5}, requests: {cpu: 200m, memory: 1Gi}}")),
		p.Spec.Resources); diff != "" {
		t.Errorf("resources of the pod as a whole (-want +got):\n%s", diff)
	}
	p.Spec.Containers[1].Name = "other"
	want = p.DeepCopy()
	PrepareResize(p, old)
	if diff := cmp.Diff(want, p); diff != "" {
		t.Errorf("with another container (-want +got):\n%s", diff)
	}
}
