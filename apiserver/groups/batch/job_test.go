package batch

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	schedulingv1alpha3 "k8s.io/api/scheduling/v1alpha3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/groups/grouptest"
	"github.com/barque/barque/apiserver/resource"
)

const (
	meta     = "metadata: {name: j, namespace: default, uid: u1, resourceVersion: '1'}\n"
	pod      = "spec: {restartPolicy: Never, containers: [{name: work, image: 'pi:3', imagePullPolicy: IfNotPresent}], initContainers: [{name: first, image: 'pi:3'}]}"
	template = "template: {" + pod + "}"
)

// job is a job of a spec, as it is stored.
func job(t *testing.T, spec string) *batchv1.Job {
	t.Helper()
	j := grouptest.Parse[batchv1.Job](t, meta+"spec: {"+spec+"}")
	defaultJob(j)
	prepareJob(context.Background(), j, nil)
	defaultJob(j)
	return j
}

func TestJobDefaults(t *testing.T) {
	for name, c := range map[string]struct{ spec, want string }{
		"nothing": {
			"",
			"parallelism: 1, completions: 1, backoffLimit: 6, completionMode: NonIndexed, suspend: false, podReplacementPolicy: TerminatingOrFailed, manualSelector: false",
		},
		"parallelism alone": {
			"parallelism: 3",
			"parallelism: 3, backoffLimit: 6, completionMode: NonIndexed, suspend: false, podReplacementPolicy: TerminatingOrFailed, manualSelector: false",
		},
		"completions alone": {
			"completions: 3",
			"parallelism: 1, completions: 3, backoffLimit: 6, completionMode: NonIndexed, suspend: false, podReplacementPolicy: TerminatingOrFailed, manualSelector: false",
		},
		"limit per index": {
			"completions: 3, completionMode: Indexed, backoffLimitPerIndex: 1",
			"parallelism: 1, completions: 3, completionMode: Indexed, backoffLimitPerIndex: 1, backoffLimit: 2147483647, suspend: false, podReplacementPolicy: TerminatingOrFailed, manualSelector: false",
		},
		"failure policy": {
			"podFailurePolicy: {rules: [{action: Ignore, onPodConditions: [{type: DisruptionTarget}, {type: Other, status: 'False'}]}]}",
			"podFailurePolicy: {rules: [{action: Ignore, onPodConditions: [{type: DisruptionTarget, status: 'True'}, {type: Other, status: 'False'}]}]}, " +
				"parallelism: 1, completions: 1, backoffLimit: 6, completionMode: NonIndexed, suspend: false, podReplacementPolicy: Failed, manualSelector: false",
		},
		"all set": {
			"parallelism: 0, completions: 0, backoffLimit: 0, completionMode: Indexed, suspend: true, podReplacementPolicy: Failed, manualSelector: true",
			"parallelism: 0, completions: 0, backoffLimit: 0, completionMode: Indexed, suspend: true, podReplacementPolicy: Failed, manualSelector: true",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := grouptest.Parse[batchv1.Job](t, "spec: {"+c.spec+"}")
			defaultJob(got)
			want := grouptest.Parse[batchv1.Job](t, "spec: {"+c.want+`, template: {spec: {
				restartPolicy: Always, dnsPolicy: ClusterFirst, schedulerName: default-scheduler, securityContext: {}, terminationGracePeriodSeconds: 30}}}`)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestGeneratedSelector(t *testing.T) {
	generated := map[string]string{
		"job-name": "j", "batch.kubernetes.io/job-name": "j",
		"controller-uid": "u1", "batch.kubernetes.io/controller-uid": "u1",
	}
	j := job(t, template)
	if diff := cmp.Diff(generated, j.Spec.Template.Labels); diff != "" {
		t.Errorf("labels of the template (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(generated, j.Labels); diff != "" {
		t.Errorf("labels of the job (-want +got):\n%s", diff)
	}
	want := &metav1.LabelSelector{MatchLabels: map[string]string{"batch.kubernetes.io/controller-uid": "u1"}}
	if diff := cmp.Diff(want, j.Spec.Selector); diff != "" {
		t.Errorf("selector (-want +got):\n%s", diff)
	}

	named := job(t, "template: {metadata: {labels: {app: a}}, "+pod+"}")
	if named.Labels["app"] != "a" || named.Labels["job-name"] != "j" || named.Spec.Template.Labels["app"] != "a" {
		t.Errorf("labels of a job without its own: %v", named.Labels)
	}

	manual := job(t,
		"manualSelector: true, selector: {matchLabels: {app: a}}, template: {metadata: {labels: {app: a}}, "+pod+"}")
	if len(manual.Spec.Template.Labels) != 1 || len(manual.Spec.Selector.MatchLabels) != 1 {
		t.Errorf("a manual selector was changed: %+v", manual.Spec)
	}
	grouptest.WantErrors(t, validateJob(context.Background(), manual, nil))
}

func TestSchedulingIsDropped(t *testing.T) {
	j := grouptest.Parse[batchv1.Job](t, meta+"spec: {"+template+"}")
	j.Spec.Scheduling = &batchv1.JobSchedulingConfiguration{
		SchedulingPolicy: &schedulingv1alpha3.WorkloadPodGroupSchedulingPolicy{}}
	defaultJob(j)
	prepareJob(context.Background(), j, nil)
	if j.Spec.Scheduling != nil {
		t.Error("workload-aware scheduling is off, and was kept")
	}
}

func TestValidateJob(t *testing.T) {
	const (
		indexed = "completionMode: Indexed, completions: 5, "
		spec    = "spec."
		labels  = "spec.template.metadata.labels"
	)
	rule := func(fields string) string {
		return template + ", podFailurePolicy: {rules: [{" + fields + "}]}"
	}
	success := func(fields string) string {
		return indexed + template + ", successPolicy: {rules: [" + fields + "]}"
	}
	const at, successAt = "spec.podFailurePolicy.rules[0]", "spec.successPolicy.rules[0]"
	for name, c := range map[string]struct {
		spec string
		want []string
	}{
		"good":    {template, nil},
		"indexed": {indexed + "parallelism: 5, backoffLimitPerIndex: 1, maxFailedIndexes: 5, " + template, nil},
		"numbers": {
			"parallelism: -1, completions: -1, backoffLimit: -1, activeDeadlineSeconds: -1, ttlSecondsAfterFinished: -1, " + template, []string{grouptest.Invalid + spec + "parallelism", grouptest.Invalid + spec + "completions", grouptest.Invalid + spec + "backoffLimit", grouptest.Invalid + spec + "activeDeadlineSeconds", grouptest.Invalid + spec + "ttlSecondsAfterFinished"}},
		"template": {"template: {spec: {restartPolicy: Never, containers: []}}",
			[]string{grouptest.Missing + spec + "template.spec.containers"}},

		"restart always": {"template: {spec: {containers: [{name: a, image: i}]}}",
			[]string{grouptest.Missing + spec + "template.spec.restartPolicy"}},
		"restart unknown": {"template: {spec: {restartPolicy: Maybe, containers: [{name: a, image: i}]}}",
			[]string{grouptest.Unknown + spec + "template.spec.restartPolicy",
				grouptest.Unknown + spec + "template.spec.restartPolicy"}},
		"restart failure policy": {
			"template: {spec: {restartPolicy: OnFailure, containers: [{name: a, image: i}]}}, podFailurePolicy: {rules: []}", []string{grouptest.Invalid + spec + "template.spec.restartPolicy"}},

		"manager":           {"managedBy: example.com/runner, " + template, nil},
		"manager without /": {"managedBy: runner, " + template, []string{grouptest.Invalid + spec + "managedBy"}},
		"manager, long": {"managedBy: example.com/" + strings.Repeat("a", 60) + ", " + template,
			[]string{grouptest.TooLong + spec + "managedBy"}},
		"mode": {"completionMode: Sometimes, " + template,
			[]string{grouptest.Unknown + spec + "completionMode"}},
		"endless indexes": {"completionMode: Indexed, parallelism: 2, " + template,
			[]string{grouptest.Missing + spec + "completions"}},
		"wide": {indexed + "parallelism: 100001, " + template,
			[]string{grouptest.Invalid + spec + "parallelism"}},
		"per index": {"backoffLimitPerIndex: 1, maxFailedIndexes: 1, " + template,
			[]string{grouptest.Invalid + spec + "backoffLimitPerIndex", grouptest.Invalid + spec + "maxFailedIndexes"}},
		"failed alone": {indexed + "maxFailedIndexes: 1, " + template,
			[]string{grouptest.Missing + spec + "backoffLimitPerIndex"}},
		"more may fail": {indexed + "backoffLimitPerIndex: 1, maxFailedIndexes: 6, " + template,
			[]string{grouptest.Invalid + spec + "maxFailedIndexes"}},
		"negative per index": {indexed + "backoffLimitPerIndex: -1, maxFailedIndexes: -1, " + template,
			[]string{grouptest.Invalid + spec + "backoffLimitPerIndex", grouptest.Invalid + spec + "maxFailedIndexes"}},
		"many, unbounded": {"completionMode: Indexed, completions: 100001, backoffLimitPerIndex: 1, " + template,
			[]string{grouptest.Missing + spec + "maxFailedIndexes"}},
		"many, wide": {
			"completionMode: Indexed, completions: 100001, backoffLimitPerIndex: 1, maxFailedIndexes: 10000, parallelism: 10001, " + template, []string{grouptest.Invalid + spec + "parallelism"}},
		"many, may fail": {
			"completionMode: Indexed, completions: 100001, backoffLimitPerIndex: 1, maxFailedIndexes: 10001, " +
				template, []string{grouptest.Invalid + spec + "maxFailedIndexes"}},
		"replacement": {"podReplacementPolicy: Never, " + template,
			[]string{grouptest.Unknown + spec + "podReplacementPolicy"}},
		"replaced too early": {"podReplacementPolicy: TerminatingOrFailed, podFailurePolicy: {rules: []}, " + template,
			[]string{grouptest.Unknown + spec + "podReplacementPolicy"}},
		"another name": {
			"template: {metadata: {labels: {job-name: other, batch.kubernetes.io/job-name: other}}, " + pod + "}",
			[]string{grouptest.Invalid + labels + "[job-name]",
				grouptest.Invalid + labels + "[batch.kubernetes.io/job-name]"}},
		"another uid": {
			"template: {metadata: {labels: {controller-uid: other, batch.kubernetes.io/controller-uid: other}}, " +
				pod + "}",
			[]string{grouptest.Invalid + labels + "[controller-uid]",
				grouptest.Invalid + labels + "[batch.kubernetes.io/controller-uid]", grouptest.Invalid + labels}},
		"own selector": {
			"selector: {matchLabels: {app: a}}, template: {metadata: {labels: {app: a}}, " + pod + "}",
			[]string{grouptest.Invalid + spec + "selector"}},
		"no manual selector": {"manualSelector: true, " + template,
			[]string{grouptest.Missing + spec + "selector", grouptest.Invalid + labels}},
		"bad manual selector": {
			"manualSelector: true, selector: {matchExpressions: [{key: a, operator: Is}]}, " + template,
			[]string{grouptest.Invalid + spec + "selector.matchExpressions[0].operator"}},
		"selects others": {
			"manualSelector: true, selector: {matchLabels: {app: b}}, template: {metadata: {labels: {app: a}}, " + pod +
				"}", []string{grouptest.Invalid + labels}},

		"failure rules": {
			template +
				", podFailurePolicy: {rules: [{action: FailJob, onExitCodes: {containerName: work, operator: In, values: [1, 5, 42]}}, {action: Count, onExitCodes: {containerName: first, operator: NotIn, values: [0]}}, {action: Ignore, onPodConditions: [{type: DisruptionTarget}]}]}", nil},
		"fail an index": {
			indexed + "backoffLimitPerIndex: 1, " + rule("action: FailIndex, onExitCodes: {operator: In, values: [1]}"),
			nil},
		"too many rules": {
			template + ", podFailurePolicy: {rules: [" +
				strings.Repeat("{action: Ignore, onPodConditions: [{type: A}]}, ", 21) + "]}",
			[]string{grouptest.TooMany + "spec.podFailurePolicy.rules"}},
		"no action": {rule("onPodConditions: [{type: A}]"), []string{grouptest.Missing + at + ".action"}},
		"unknown action": {rule("action: Cry, onPodConditions: [{type: A}]"),
			[]string{grouptest.Unknown + at + ".action"}},
		"no index to fail": {rule("action: FailIndex, onPodConditions: [{type: A}]"),
			[]string{grouptest.Invalid + at + ".action"}},
		"rule of nothing": {rule("action: Ignore"), []string{grouptest.Invalid + at}},
		"rule of both": {
			rule("action: Ignore, onPodConditions: [{type: A}], onExitCodes: {operator: In, values: [1]}"),
			[]string{grouptest.Invalid + at}},
		"condition type": {rule("action: Ignore, onPodConditions: [{type: ''}, {type: 'A B'}]"),
			[]string{grouptest.Invalid + at + ".onPodConditions[0].type",
				grouptest.Invalid + at + ".onPodConditions[0].type",
				grouptest.Invalid + at + ".onPodConditions[1].type"}},
		"condition status": {rule("action: Ignore, onPodConditions: [{type: A, status: Maybe}]"),
			[]string{grouptest.Unknown + at + ".onPodConditions[0].status"}},
		"too many conditions": {rule("action: Ignore, onPodConditions: [" + strings.Repeat("{type: A}, ", 21) + "]"),
			[]string{grouptest.TooMany + at + ".onPodConditions"}},
		"no operator": {rule("action: Ignore, onExitCodes: {operator: '', values: [1]}"),
			[]string{grouptest.Missing + at + ".onExitCodes.operator"}},
		"unknown operator": {rule("action: Ignore, onExitCodes: {operator: Exists, values: [1]}"),
			[]string{grouptest.Unknown + at + ".onExitCodes.operator"}},
		"unknown container": {rule("action: Ignore, onExitCodes: {containerName: other, operator: In, values: [1]}"),
			[]string{grouptest.Invalid + at + ".onExitCodes.containerName"}},
		"no codes": {rule("action: Ignore, onExitCodes: {operator: In, values: []}"),
			[]string{grouptest.Invalid + at + ".onExitCodes.values"}},
		"too many codes": {rule("action: Ignore, onExitCodes: {operator: In, values: [" + numbers(1, 256) + "]}"),
			[]string{grouptest.TooMany + at + ".onExitCodes.values"}},
		"success is a failure": {rule("action: Ignore, onExitCodes: {operator: In, values: [0]}"),
			[]string{grouptest.Invalid + at + ".onExitCodes.values[0]"}},
		"unordered codes": {rule("action: Ignore, onExitCodes: {operator: In, values: [2, 1]}"),
			[]string{grouptest.Invalid + at + ".onExitCodes.values"}},
		"code twice": {rule("action: Ignore, onExitCodes: {operator: In, values: [1, 1]}"),
			[]string{grouptest.Duplicate + at + ".onExitCodes.values[1]"}},

		"success": {
			success("{succeededIndexes: '0,2-4', succeededCount: 4}, {succeededCount: 5}, {succeededIndexes: '1'}"),
			nil},
		"success, not indexed": {template + ", successPolicy: {rules: [{succeededCount: 1}]}",
			[]string{grouptest.Invalid + "spec.successPolicy"}},
		"no success rules": {success(""), []string{grouptest.Missing + "spec.successPolicy.rules"}},
		"many success rules": {success(strings.Repeat("{succeededCount: 1}, ", 21)),
			[]string{grouptest.TooMany + "spec.successPolicy.rules"}},
		"success of nothing": {success("{}"), []string{grouptest.Missing + successAt}},
		"success count": {success("{succeededCount: -1}"),
			[]string{grouptest.Invalid + successAt + ".succeededCount"}},
		"success of more": {success("{succeededCount: 6}"),
			[]string{grouptest.Invalid + successAt + ".succeededCount"}},
		"success of unlisted": {success("{succeededIndexes: '1-2', succeededCount: 3}"),
			[]string{grouptest.Invalid + successAt + ".succeededCount"}},
		"success beyond": {success("{succeededIndexes: '5'}"),
			[]string{grouptest.Invalid + successAt + ".succeededIndexes"}},
		"success order": {success("{succeededIndexes: '2,1'}"),
			[]string{grouptest.Invalid + successAt + ".succeededIndexes"}},
		"success text": {success("{succeededIndexes: 'a'}"),
			[]string{grouptest.Invalid + successAt + ".succeededIndexes"}},
		"success long": {success("{succeededIndexes: '" + strings.Repeat("0", 64*1024+1) + "'}"),
			[]string{grouptest.TooLong + successAt + ".succeededIndexes"}},
		"success, no end": {
			"completionMode: Indexed, parallelism: 1, " + template + ", successPolicy: {rules: [{succeededCount: 1}]}",
			[]string{grouptest.Missing + spec + "completions"}},
	} {
		t.Run(name, func(t *testing.T) {
			grouptest.WantErrors(t, validateJob(context.Background(), job(t, c.spec), nil), c.want...)
		})
	}
}

func numbers(from, to int) string {
	var out []string
	for n := from; n <= to; n++ {
		out = append(out, fmt.Sprint(n))
	}
	return strings.Join(out, ", ")
}

func TestNamesOfIndexedJobs(t *testing.T) {
	for name, c := range map[string]struct {
		length, completions int
		want                []string
	}{
		"fits":       {60, 100, nil},
		"too long":   {60, 101, []string{grouptest.Invalid + "metadata.name"}},
		"has none":   {63, 0, nil},
		"too long 2": {62, 1, []string{grouptest.Invalid + "metadata.name"}},
	} {
		t.Run(name, func(t *testing.T) {
			j := grouptest.Parse[batchv1.Job](t,
				fmt.Sprintf(
					"metadata: {name: %s, namespace: default, uid: u}\nspec: {completionMode: Indexed, completions: %d, %s}",
					strings.Repeat("a", c.length), c.completions, template))
			defaultJob(j)
			prepareJob(context.Background(), j, nil)
			grouptest.WantErrors(t, validateJob(context.Background(), j, nil), c.want...)
		})
	}
}

func TestJobUpdate(t *testing.T) {
	const (
		indexed = "completionMode: Indexed, completions: 5, parallelism: 5, backoffLimitPerIndex: 1, successPolicy: {rules: [{succeededCount: 1}]}, " + template
		at      = "spec."
	)
	for name, c := range map[string]struct {
		spec   string
		change func(s *batchv1.JobSpec)
		want   []string
	}{
		"nothing": {template, func(*batchv1.JobSpec) {}, nil},
		"free to change": {template, func(s *batchv1.JobSpec) {
			s.Parallelism, s.BackoffLimit, s.Suspend = ptr.To[int32](0), ptr.To[int32](1), ptr.To(true)
			s.ActiveDeadlineSeconds, s.TTLSecondsAfterFinished = ptr.To[int64](5), ptr.To[int32](5)
		}, nil},
		"completions": {template, func(s *batchv1.JobSpec) { s.Completions = ptr.To[int32](2) },
			[]string{grouptest.Invalid + at + "completions"}},
		"grow": {indexed,
			func(s *batchv1.JobSpec) { s.Completions, s.Parallelism = ptr.To[int32](6), ptr.To[int32](6) }, nil},
		"grow by half": {indexed, func(s *batchv1.JobSpec) { s.Completions = ptr.To[int32](6) },
			[]string{grouptest.Invalid + at + "completions"}},
		"end removed": {indexed, func(s *batchv1.JobSpec) { s.Completions = nil },
			[]string{grouptest.Missing + at + "completions"}},
		"mode": {"completions: 5, " + template,
			func(s *batchv1.JobSpec) { s.CompletionMode = ptr.To(batchv1.IndexedCompletion) },
			[]string{grouptest.Invalid + at + "completionMode"}},
		"per index": {indexed, func(s *batchv1.JobSpec) { s.BackoffLimitPerIndex = ptr.To[int32](2) },
			[]string{grouptest.Invalid + at + "backoffLimitPerIndex"}},
		"success policy": {indexed, func(s *batchv1.JobSpec) { s.SuccessPolicy = nil },
			[]string{grouptest.Invalid + at + "successPolicy"}},
		"failure policy": {"podReplacementPolicy: Failed, " + template,
			func(s *batchv1.JobSpec) { s.PodFailurePolicy = &batchv1.PodFailurePolicy{} },
			[]string{grouptest.Invalid + at + "podFailurePolicy"}},
		"manager": {template, func(s *batchv1.JobSpec) { s.ManagedBy = ptr.To("example.com/x") },
			[]string{grouptest.Invalid + at + "managedBy"}},
		"selector": {template,
			func(s *batchv1.JobSpec) { s.Selector.MatchLabels = map[string]string{"job-name": "j"} },
			[]string{grouptest.Invalid + at + "selector"}},
		"template": {template, func(s *batchv1.JobSpec) { s.Template.Spec.Containers[0].Image = "pi:4" },
			[]string{grouptest.Invalid + at + "template"}},
		"placement": {template,
			func(s *batchv1.JobSpec) { s.Template.Spec.NodeSelector = map[string]string{"a": "b"} },
			[]string{grouptest.Invalid + at + "template"}},
	} {
		t.Run(name, func(t *testing.T) {
			old := job(t, c.spec)
			j := old.DeepCopy()
			c.change(&j.Spec)
			grouptest.WantErrors(t, validateJob(context.Background(), j, old), c.want...)
		})
	}
}

// TestSuspendedTemplate: while a job is suspended and has no pods, its template can be adapted to
// where there is room for it.
func TestSuspendedTemplate(t *testing.T) {
	const inside, whole = grouptest.Invalid + "spec.template.spec", grouptest.Invalid + "spec.template"
	affinity := func(zone string) *corev1.NodeAffinity {
		return &corev1.NodeAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{
					{MatchExpressions: []corev1.NodeSelectorRequirement{
						{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{zone}}}},
				}}}
	}
	cpu := func(amount string) corev1.ResourceRequirements {
		return *grouptest.Parse[corev1.ResourceRequirements](t, "requests: {cpu: "+amount+"}")
	}
	adapt := func(p *corev1.PodTemplateSpec) {
		p.Labels["queue"], p.Annotations = "fast", map[string]string{"a": "b"}
		p.Spec.NodeSelector = map[string]string{"zone": "b"}
		p.Spec.Tolerations = []corev1.Toleration{{Key: "gpu", Operator: corev1.TolerationOpExists}}
		p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "a.b/c"}}
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: affinity("b")}
		p.Spec.Containers[0].Resources, p.Spec.InitContainers[0].Resources = cpu("2"), cpu("1")
	}
	started := batchv1.JobStatus{StartTime: ptr.To(grouptest.Ago(time.Hour))}
	stopped := started
	stopped.Conditions = []batchv1.JobCondition{{Type: batchv1.JobSuspended, Status: corev1.ConditionTrue}}
	stopping := stopped
	stopping.Active = 1
	for name, c := range map[string]struct {
		spec   string
		status batchv1.JobStatus
		change func(p *corev1.PodTemplateSpec)
		want   []string
	}{
		"adapted": {"suspend: true, " + template, batchv1.JobStatus{}, adapt, nil},
		"stopped": {"suspend: true, " + template, stopped, adapt, nil},
		"affinity goes": {
			"suspend: true, template: {spec: {restartPolicy: Never, affinity: {nodeAffinity: {}}, containers: [{name: a, image: i}]}}", batchv1.JobStatus{}, func(p *corev1.PodTemplateSpec) { p.Spec.Affinity = nil }, nil},
		"running":         {template, started, adapt, []string{whole}},
		"not yet stopped": {"suspend: true, " + template, started, adapt, []string{whole}},
		"has a pod":       {"suspend: true, " + template, stopping, adapt, []string{whole}},
		"image": {"suspend: true, " + template, batchv1.JobStatus{},
			func(p *corev1.PodTemplateSpec) { p.Spec.Containers[0].Image = "pi:4" }, []string{inside}},
		"container": {"suspend: true, " + template, batchv1.JobStatus{},
			func(p *corev1.PodTemplateSpec) { p.Spec.Containers[0].Name = "other" }, []string{inside}},
		"one more": {"suspend: true, " + template, batchv1.JobStatus{}, func(p *corev1.PodTemplateSpec) {
			c := p.Spec.Containers[0]
			c.Name = "second"
			p.Spec.Containers = append(p.Spec.Containers, c)
		}, []string{inside}},
		"pod affinity": {"suspend: true, " + template, batchv1.JobStatus{}, func(p *corev1.PodTemplateSpec) {
			p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{}}
		}, []string{inside}},
	} {
		t.Run(name, func(t *testing.T) {
			old := job(t, c.spec)
			old.Status = c.status
			j := old.DeepCopy()
			c.change(&j.Spec.Template)
			grouptest.WantErrors(t, validateJob(context.Background(), j, old), c.want...)
		})
	}
}

func TestJobWarnings(t *testing.T) {
	kind := jobs().(*resource.Kind[batchv1.Job])
	j := job(t, template)
	if got := kind.Warnings(context.Background(), j, nil); len(got) != 0 {
		t.Errorf("warnings of nothing: %q", got)
	}
	j.Name = "j.example"
	if got := kind.Warnings(context.Background(), j, nil); len(got) != 1 ||
		!strings.HasPrefix(got[0], "metadata.name: this is used in Pod names and hostnames") {
		t.Errorf("warnings of a name with a dot: %q", got)
	}
	many := job(t, "completionMode: Indexed, completions: 100001, parallelism: 10001, "+template)
	if got := kind.Warnings(context.Background(), many, nil); len(got) != 1 ||
		!strings.HasPrefix(got[0], "spec: In Indexed Jobs with a number of completions higher than 10^5") {
		t.Errorf("warnings of many: %q", got)
	}
	if got := kind.Warnings(context.Background(), many, many); len(got) != 0 {
		t.Errorf("warnings of an update of the metadata: %q", got)
	}
	newer := many.DeepCopy()
	newer.Generation++
	if got := kind.Warnings(context.Background(), newer, many); len(got) != 1 {
		t.Errorf("warnings of an update of the spec: %q", got)
	}
}

func TestJobRow(t *testing.T) {
	j := job(t, "completions: 3, manualSelector: true, selector: {matchLabels: {app: a}}, "+template)
	j.CreationTimestamp = grouptest.Ago(5 * time.Minute)
	j.Status = batchv1.JobStatus{Succeeded: 1, StartTime: ptr.To(grouptest.Ago(3 * time.Minute))}
	grouptest.WantRow(t, jobs(), j, "j", "Running", "1/3", "3m", "5m", "work", "pi:3", "app=a")

	j.Status.CompletionTime = ptr.To(grouptest.Ago(time.Minute))
	j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobSuccessCriteriaMet, Status: corev1.ConditionTrue},
		{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
	j.Spec.Completions, j.Spec.Parallelism = nil, ptr.To[int32](2)
	grouptest.WantRow(t, jobs(), j, "j", "Complete", "1/1 of 2", "2m", "5m", "work", "pi:3", "app=a")

	for status, c := range map[string]batchv1.JobConditionType{
		"Failed": batchv1.JobFailed, "Suspended": batchv1.JobSuspended, "FailureTarget": batchv1.JobFailureTarget,
		"SuccessCriteriaMet": batchv1.JobSuccessCriteriaMet,
	} {
		j.Spec.Parallelism, j.Status = ptr.To[int32](1),
			batchv1.JobStatus{Conditions: []batchv1.JobCondition{{Type: c, Status: corev1.ConditionTrue}}}
		grouptest.WantRow(t, jobs(), j, "j", status, "0/1", "", "5m", "work", "pi:3", "app=a")
	}
	j.DeletionTimestamp, j.Status = ptr.To(grouptest.Ago(time.Second)), batchv1.JobStatus{}
	grouptest.WantRow(t, jobs(), j, "j", "Terminating", "0/1", "", "5m", "work", "pi:3", "app=a")
}
