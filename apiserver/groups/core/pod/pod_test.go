package pod

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/groups/grouptest"
)

// stored is a pod as the store has it.
func stored(t *testing.T, text string) *corev1.Pod {
	t.Helper()
	p := grouptest.Parse[corev1.Pod](t,
		"metadata: {name: p, namespace: default, labels: {app: a}, resourceVersion: '1'}\n"+text)
	defaultPod(p)
	preparePod(context.Background(), p, nil)
	return p
}

const onePod = `
spec:
  tolerations: [{key: a, operator: Exists, effect: NoExecute, tolerationSeconds: 10}]
  activeDeadlineSeconds: 100
  initContainers: [{name: i, image: "i:1"}]
  containers: [{name: a, image: "a:1", resources: {limits: {cpu: 1, memory: 1Gi}}}]
`

func TestPreparePod(t *testing.T) {
	ctx := context.Background()
	p := stored(t, onePod)
	if p.Status.Phase != corev1.PodPending || p.Status.QOSClass != corev1.PodQOSBurstable {
		t.Errorf("status is %+v", p.Status)
	}
	grouptest.WantErrors(t, validatePod(ctx, p, nil))

	gated := stored(t, `spec: {schedulingGates: [{name: g}], nodeName: n, containers: [{name: a, image: i}]}`)
	if c := gated.Status.Conditions; len(c) != 1 || c[0].Reason != corev1.PodReasonSchedulingGated {
		t.Errorf("conditions of a gated pod: %+v", c)
	}
	grouptest.WantErrors(t, validatePod(ctx, gated, nil), grouptest.Forbidden+"spec.nodeName")

	affine := stored(t, `
spec:
  containers: [{name: a, image: i}]
  affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: z, labelSelector: {}, matchLabelKeys: [app, none]}]}}
`)
	want := []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpIn, Values: []string{"a"}}}
	terms := affine.Spec.Affinity.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution
	got := terms[0].LabelSelector.MatchExpressions
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("merged keys (-want +got):\n%s", diff)
	}
	grouptest.WantErrors(t, validatePod(ctx, affine, nil))
}

func TestValidatePodUpdate(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		want   []string
	}{
		"nothing":    {func(*corev1.Pod) {}, nil},
		"labels":     {func(p *corev1.Pod) { p.Labels = map[string]string{"x": "y"} }, nil},
		"image":      {func(p *corev1.Pod) { p.Spec.Containers[0].Image = "a:2" }, nil},
		"init image": {func(p *corev1.Pod) { p.Spec.InitContainers[0].Image = "i:2" }, nil},
		"no image": {func(p *corev1.Pod) { p.Spec.Containers[0].Image = "" },
			[]string{grouptest.Missing + "spec.containers[0].image"}},
		"image space": {func(p *corev1.Pod) { p.Spec.Containers[0].Image = "a " },
			[]string{grouptest.Invalid + "spec.containers[0].image"}},
		"command": {func(p *corev1.Pod) { p.Spec.Containers[0].Command = []string{"x"} },
			[]string{grouptest.Forbidden + "spec"}},
		"node": {func(p *corev1.Pod) { p.Spec.NodeName = "n" }, []string{grouptest.Forbidden + "spec"}},
		"more containers": {func(p *corev1.Pod) { p.Spec.Containers = append(p.Spec.Containers, p.Spec.Containers[0]) },
			[]string{grouptest.Forbidden + "spec.containers", grouptest.Duplicate + "spec.containers[1].name"}},
		"deadline sooner": {func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = ptr.To[int64](5) }, nil},
		"deadline later": {func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = ptr.To[int64](101) },
			[]string{grouptest.Invalid + "spec.activeDeadlineSeconds"}},
		"no deadline": {func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = nil },
			[]string{grouptest.Invalid + "spec.activeDeadlineSeconds"}},
		"more tolerations": {func(p *corev1.Pod) {
			p.Spec.Tolerations = append(p.Spec.Tolerations,
				corev1.Toleration{Key: "b", Operator: corev1.TolerationOpExists})
		}, nil},
		"toleration seconds": {func(p *corev1.Pod) { p.Spec.Tolerations[0].TolerationSeconds = ptr.To[int64](20) },
			nil},
		"toleration gone": {func(p *corev1.Pod) { p.Spec.Tolerations = nil },
			[]string{grouptest.Forbidden + "spec.tolerations"}},
		"new gate": {func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}} },
			[]string{grouptest.Forbidden + "spec.schedulingGates[0].name"}},
		"grace": {func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = ptr.To[int64](1) },
			[]string{grouptest.Forbidden + "spec"}},
	} {
		t.Run(name, func(t *testing.T) {
			old := stored(t, onePod)
			p := old.DeepCopy()
			c.change(p)
			before := p.DeepCopy()
			grouptest.WantErrors(t, validatePod(context.Background(), p, old), c.want...)
			if diff := cmp.Diff(before, p); diff != "" {
				t.Errorf("validation changed the pod:\n%s", diff)
			}
		})
	}
}

func TestGatedPodUpdate(t *testing.T) {
	old := stored(t, `spec: {schedulingGates: [{name: g}], nodeSelector: {a: b}, containers: [{name: a, image: i}]}`)
	p := old.DeepCopy()
	p.Spec.SchedulingGates = nil
	p.Spec.NodeSelector["c"] = "d"
	grouptest.WantErrors(t, validatePod(context.Background(), p, old))
	p.Spec.NodeSelector["a"] = "x"
	grouptest.WantErrors(t, validatePod(context.Background(), p, old), grouptest.Invalid+"spec.nodeSelector")
}

func TestPodStatusUpdate(t *testing.T) {
	ctx := context.Background()
	old := stored(t, `spec: {restartPolicy: Never, containers: [{name: a, image: i}]}`)
	old.Status.ContainerStatuses = []corev1.ContainerStatus{
		{Name: "a", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 1}}}}
	p := old.DeepCopy()
	p.Status.QOSClass = ""
	p.Status.PodIPs = []corev1.PodIP{{IP: "10.42.0.3"}}
	preparePodStatus(ctx, p, old)
	if p.Status.QOSClass != corev1.PodQOSBestEffort || p.Status.PodIP != "10.42.0.3" {
		t.Errorf("status became %+v", p.Status)
	}
	grouptest.WantErrors(t, validatePodStatus(ctx, p, old))

	p.Status.ContainerStatuses = []corev1.ContainerStatus{
		{Name: "a", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}
	p.Status.NominatedNodeName = "A"
	p.Status.PodIP, p.Status.PodIPs[0].IP = "x", "x"
	p.Status.QOSClass = corev1.PodQOSGuaranteed
	grouptest.WantErrors(t, validatePodStatus(ctx, p, old), grouptest.Forbidden+"status.containerStatuses[0].state",
		grouptest.Invalid+"status.nominatedNodeName",
		grouptest.Invalid+"status.podIPs[0]", grouptest.Invalid+"status.qosClass")
}

// A container may run again if its own policy, or a rule, allows it.
func TestContainersThatMayRunAgain(t *testing.T) {
	const rules = "restartPolicyRules: [{action: %s, exitCodes: {operator: In, values: [42]}}]"
	for name, c := range map[string]struct {
		spec string
		code int32
		may  bool
	}{
		"pod Never":                {`restartPolicy: Never, containers: [{name: a, image: i}]`, 1, false},
		"pod OnFailure, failed":    {`restartPolicy: OnFailure, containers: [{name: a, image: i}]`, 1, true},
		"pod OnFailure, succeeded": {`restartPolicy: OnFailure, containers: [{name: a, image: i}]`, 0, false},
		"own Always": {
			`restartPolicy: Never, containers: [{name: a, image: i, restartPolicy: Always}]`, 0, true},
		"own Never in a pod of Always": {
			`restartPolicy: Always, containers: [{name: a, image: i, restartPolicy: Never}]`, 1, false},
		"a rule": {
			`restartPolicy: Never, containers: [{name: a, image: i, restartPolicy: Never, ` +
				fmt.Sprintf(rules, "Restart") + `}]`, 42, true},
		"a rule that does not match": {
			`restartPolicy: Never, containers: [{name: a, image: i, restartPolicy: Never, ` +
				fmt.Sprintf(rules, "Restart") + `}]`, 1, false},
		"a rule of another for all": {
			`restartPolicy: Never, containers: [{name: a, image: i}, {name: b, image: i, restartPolicy: Never, ` +
				fmt.Sprintf(rules, "RestartAllContainers") + `}]`, 1, true},
		"a rule of another for its own": {
			`restartPolicy: Never, containers: [{name: a, image: i}, {name: b, image: i, restartPolicy: Never, ` +
				fmt.Sprintf(rules, "Restart") + `}]`, 42, false},
	} {
		old := stored(t, "spec: {"+c.spec+"}")
		old.Status.ContainerStatuses = []corev1.ContainerStatus{
			{Name: "a", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: c.code}}}}
		p := old.DeepCopy()
		p.Status.ContainerStatuses[0].State = corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
		if errs := validatePodStatus(context.Background(), p, old); (len(errs) == 0) != c.may {
			t.Errorf("%s: %v", name, errs)
		}
	}
}

func TestGracefulPodDelete(t *testing.T) {
	for name, c := range map[string]struct {
		pod   string
		asked *int64
		want  int64
	}{
		"assigned":          {`spec: {nodeName: n}`, nil, 30},
		"own grace":         {`spec: {nodeName: n, terminationGracePeriodSeconds: 5}`, nil, 5},
		"asked":             {`spec: {nodeName: n}`, ptr.To[int64](7), 7},
		"forced":            {`spec: {nodeName: n}`, ptr.To[int64](0), 0},
		"negative":          {`spec: {nodeName: n}`, ptr.To[int64](-1), 1},
		"not assigned":      {`spec: {}`, ptr.To[int64](7), 0},
		"ended":             {`{spec: {nodeName: n}, status: {phase: Succeeded}}`, nil, 0},
		"failed, even then": {`{spec: {nodeName: n}, status: {phase: Failed}}`, ptr.To[int64](9), 0},
	} {
		p := grouptest.Parse[corev1.Pod](t, c.pod)
		defaultPod(p)
		options := &metav1.DeleteOptions{GracePeriodSeconds: c.asked}
		if !gracefulPodDelete(context.Background(), p, options) {
			t.Errorf("%s: not graceful", name)
		}
		if *options.GracePeriodSeconds != c.want {
			t.Errorf("%s: %d seconds, want %d", name, *options.GracePeriodSeconds, c.want)
		}
	}
}

func TestEphemeralContainers(t *testing.T) {
	old := stored(t, `spec: {containers: [{name: a, image: i}], ephemeralContainers: [{name: e, image: i}]}`)
	p := old.DeepCopy()
	p.Spec.EphemeralContainers = append(p.Spec.EphemeralContainers, *p.Spec.EphemeralContainers[0].DeepCopy())
	p.Spec.EphemeralContainers[1].Name = "f"
	grouptest.WantErrors(t, ValidateEphemeralContainers(p, old))
	p.Spec.EphemeralContainers[0].Image = "other"
	grouptest.WantErrors(t, ValidateEphemeralContainers(p, old), grouptest.Forbidden+"spec.ephemeralContainers[0]")
	p.Spec.EphemeralContainers = nil
	grouptest.WantErrors(t, ValidateEphemeralContainers(p, old), grouptest.Forbidden+"spec.ephemeralContainers")
	grouptest.WantErrors(t, validatePod(context.Background(), old, nil), grouptest.Forbidden+"spec.ephemeralContainers")
}
