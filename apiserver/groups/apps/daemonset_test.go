package apps

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"

	"github.com/barque/barque/apiserver/groups/grouptest"
	"github.com/barque/barque/apiserver/resource"
)

func daemonSet(t *testing.T, text string) *appsv1.DaemonSet {
	t.Helper()
	d := grouptest.Parse[appsv1.DaemonSet](t, text)
	defaultDaemonSet(d)
	return d
}

func TestDaemonSetDefaults(t *testing.T) {
	want := grouptest.Parse[appsv1.DaemonSet](t, meta+`
spec:
  revisionHistoryLimit: 10
  updateStrategy: {type: RollingUpdate, rollingUpdate: {maxUnavailable: 1, maxSurge: 0}}
  selector: {matchLabels: {app: a}}
  template:
    metadata: {labels: {app: a}}
    spec:
      containers: [{name: web, image: "nginx:1.21.6", imagePullPolicy: IfNotPresent, terminationMessagePath: /dev/termination-log, terminationMessagePolicy: File}]
      dnsPolicy: ClusterFirst
      restartPolicy: Always
      schedulerName: default-scheduler
      securityContext: {}
      terminationGracePeriodSeconds: 30
`)
	if diff := cmp.Diff(want, daemonSet(t, smallest)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	kept := daemonSet(t, "spec: {revisionHistoryLimit: 0, updateStrategy: {type: OnDelete}}").Spec
	if *kept.RevisionHistoryLimit != 0 || kept.UpdateStrategy.RollingUpdate != nil {
		t.Errorf("defaults replaced what was set: %+v", kept)
	}
	surge := daemonSet(t, "spec: {updateStrategy: {rollingUpdate: {maxSurge: 10%}}}").Spec.UpdateStrategy.RollingUpdate
	if surge.MaxSurge.StrVal != "10%" || surge.MaxUnavailable.IntVal != 1 {
		t.Errorf("rolling update %+v", surge)
	}
}

func TestValidateDaemonSet(t *testing.T) {
	rolling := func(text string) string {
		return selector + ", updateStrategy: {rollingUpdate: " + text + "}, " + template
	}
	const at = "spec.updateStrategy.rollingUpdate."
	for name, c := range map[string]struct {
		spec string
		want []string
	}{
		"good":           {selector + ", " + template, nil},
		"on delete":      {selector + ", updateStrategy: {type: OnDelete}, " + template, nil},
		"surge":          {rolling("{maxSurge: 10%, maxUnavailable: 0}"), nil},
		"no selector":    {template, []string{grouptest.Invalid + "spec.template.metadata.labels"}},
		"empty selector": {"selector: {}, " + template, []string{grouptest.Invalid + "spec.selector"}},
		"other labels": {"selector: {matchLabels: {app: b}}, " + template,
			[]string{grouptest.Invalid + "spec.template.metadata.labels"}},
		"bad selector": {"selector: {matchExpressions: [{key: a, operator: Is}]}, " + template,
			[]string{grouptest.Invalid + "spec.selector.matchExpressions[0].operator"}},
		"numbers": {selector + ", minReadySeconds: -1, revisionHistoryLimit: -1, " + template,
			[]string{grouptest.Invalid + "spec.minReadySeconds", grouptest.Invalid + "spec.revisionHistoryLimit"}},
		"strategy": {selector + ", updateStrategy: {type: Hope}, " + template,
			[]string{grouptest.Unknown + "spec.updateStrategy"}},
		"both": {rolling("{maxSurge: 1, maxUnavailable: 1}"), []string{grouptest.Invalid + at + "maxSurge"}},
		"neither": {rolling("{maxSurge: 0%, maxUnavailable: 0}"),
			[]string{grouptest.Missing + at + "maxUnavailable"}},
		"less than none": {rolling("{maxUnavailable: -1}"), []string{grouptest.Invalid + at + "maxUnavailable"}},
		"more than all":  {rolling("{maxUnavailable: 101%}"), []string{grouptest.Invalid + at + "maxUnavailable"}},
		"surge over all": {rolling("{maxSurge: 101%, maxUnavailable: 0}"),
			[]string{grouptest.Invalid + at + "maxSurge"}},
		"no number": {rolling("{maxUnavailable: x}"),
			[]string{grouptest.Invalid + at + "maxUnavailable", grouptest.Missing + at + "maxUnavailable"}},
		"surge no number": {rolling("{maxSurge: x}"), []string{grouptest.Invalid + at + "maxSurge"}},
		"restart policy": {
			selector +
				", template: {metadata: {labels: {app: a}}, spec: {restartPolicy: OnFailure, activeDeadlineSeconds: 5, containers: [{name: a, image: i}]}}", []string{grouptest.Unknown + "spec.template.spec.restartPolicy", grouptest.Forbidden + "spec.template.spec.activeDeadlineSeconds"}},
		"containers": {selector + ", template: {metadata: {labels: {app: a}}, spec: {containers: [{name: A}]}}",
			[]string{grouptest.Invalid + "spec.template.spec.containers[0].name",
				grouptest.Missing + "spec.template.spec.containers[0].image"}},
	} {
		t.Run(name, func(t *testing.T) {
			d := daemonSet(t, meta+"spec: {"+c.spec+"}")
			grouptest.WantErrors(t, validateDaemonSet(context.Background(), d, nil), c.want...)
		})
	}
	d := daemonSet(t, smallest)
	d.Annotations = map[string]string{appsv1.DeprecatedTemplateGeneration: "x"}
	grouptest.WantErrors(t, validateDaemonSet(context.Background(), d, nil),
		grouptest.Invalid+"metadata.annotations[deprecated.daemonset.template.generation]")
}

func TestDaemonSetSelectorIsImmutable(t *testing.T) {
	old := daemonSet(t, smallest)
	d := old.DeepCopy()
	d.Spec.Template.Spec.Containers[0].Image, d.Spec.MinReadySeconds = "nginx:1.22", 3
	grouptest.WantErrors(t, validateDaemonSet(context.Background(), d, old))
	d.Spec.Selector.MatchLabels["tier"], d.Spec.Template.Labels["tier"] = "x", "x"
	grouptest.WantErrors(t, validateDaemonSet(context.Background(), d, old), grouptest.Invalid+"spec.selector")
}

func TestTemplateGeneration(t *testing.T) {
	ctx := context.Background()
	count := func(d *appsv1.DaemonSet) string { return d.Annotations[appsv1.DeprecatedTemplateGeneration] }
	for begin, want := range map[string]string{"": "1", "0": "1", "-3": "1", "7": "7", "x": "x"} {
		d := daemonSet(t, smallest)
		if begin != "" {
			d.Annotations = map[string]string{appsv1.DeprecatedTemplateGeneration: begin}
		}
		prepareDaemonSet(ctx, d, nil)
		prepareDaemonSet(ctx, d, nil)
		if got := count(d); got != want {
			t.Errorf("created with %q: %s, want %s", begin, got, want)
		}
	}
	old := daemonSet(t, smallest)
	prepareDaemonSet(ctx, old, nil)
	for name, c := range map[string]struct {
		change func(*appsv1.DaemonSet)
		want   string
	}{
		"nothing":     {func(*appsv1.DaemonSet) {}, "1"},
		"taken away":  {func(d *appsv1.DaemonSet) { d.Annotations = nil }, "1"},
		"set":         {func(d *appsv1.DaemonSet) { d.Annotations[appsv1.DeprecatedTemplateGeneration] = "9" }, "1"},
		"other field": {func(d *appsv1.DaemonSet) { d.Spec.MinReadySeconds = 5 }, "1"},
		"template":    {func(d *appsv1.DaemonSet) { d.Spec.Template.Spec.Containers[0].Image = "nginx:1.22" }, "2"},
	} {
		d := old.DeepCopy()
		c.change(d)
		prepareDaemonSet(ctx, d, old)
		prepareDaemonSet(ctx, d, old)
		if got := count(d); got != c.want || count(old) != "1" {
			t.Errorf("%s: %s, want %s; the old one has %s", name, got, c.want, count(old))
		}
	}
	d := old.DeepCopy()
	d.Annotations = nil
	daemonSets().(*resource.Kind[appsv1.DaemonSet]).Status.Prepare(ctx, d, old)
	if got := count(d); got != "1" {
		t.Errorf("a write to the status made it %q", got)
	}
}

func TestValidateDaemonSetStatus(t *testing.T) {
	old := daemonSet(t, "status: {collisionCount: 2}")
	for text, want := range map[string][]string{
		"{currentNumberScheduled: 3, desiredNumberScheduled: 2, numberReady: 4, collisionCount: 2, observedGeneration: 1}": nil,
		"{collisionCount: 1}": {grouptest.Invalid + "status.collisionCount"},
		"{collisionCount: 2, currentNumberScheduled: -1, numberMisscheduled: -1, desiredNumberScheduled: -1, numberReady: -1}": {
			grouptest.Invalid + "status.currentNumberScheduled", grouptest.Invalid + "status.numberMisscheduled",
			grouptest.Invalid + "status.desiredNumberScheduled", grouptest.Invalid + "status.numberReady"},
		"{collisionCount: 2, observedGeneration: -1, updatedNumberScheduled: -1, numberAvailable: -1, numberUnavailable: -1}": {
			grouptest.Invalid + "status.observedGeneration", grouptest.Invalid + "status.updatedNumberScheduled",
			grouptest.Invalid + "status.numberAvailable", grouptest.Invalid + "status.numberUnavailable"},
	} {
		d := daemonSet(t, "status: "+text)
		t.Run(text, func(t *testing.T) {
			grouptest.WantErrors(t, validateDaemonSetStatus(context.Background(), d, old), want...)
		})
	}
}

func TestDaemonSetRow(t *testing.T) {
	d := daemonSet(t, meta+`
spec: {selector: {matchLabels: {app: a}}, template: {spec: {nodeSelector: {disk: ssd, zone: a}, containers: [{name: web, image: "nginx:1.21.6"}]}}}
status: {desiredNumberScheduled: 5, currentNumberScheduled: 4, numberReady: 3, updatedNumberScheduled: 2, numberAvailable: 1}
`)
	d.CreationTimestamp = grouptest.Ago(3 * time.Minute)
	grouptest.WantRow(t, daemonSets(), d, "d", int64(5), int64(4), int64(3), int64(2), int64(1), "disk=ssd,zone=a",
		"3m", "web", "nginx:1.21.6", "app=a")
	d.Spec.Template.Spec.NodeSelector = nil
	grouptest.WantRow(t, daemonSets(), d, "d", int64(5), int64(4), int64(3), int64(2), int64(1), "<none>", "3m", "web",
		"nginx:1.21.6", "app=a")
}
