package apps

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"

	"github.com/barque/barque/apiserver/groups/grouptest"
)

const (
	meta     = "metadata: {name: d, namespace: default, resourceVersion: '1', labels: {app: a}}\n"
	template = "template: {metadata: {labels: {app: a}}, spec: {containers: [{name: web, image: 'nginx:1.21.6'}]}}"
	selector = "selector: {matchLabels: {app: a}}"
	smallest = meta + "spec: {" + selector + ", " + template + "}"
)

func deployment(t *testing.T, text string) *appsv1.Deployment {
	t.Helper()
	d := grouptest.Parse[appsv1.Deployment](t, text)
	defaultDeployment(d)
	return d
}

func TestDeploymentDefaults(t *testing.T) {
	want := grouptest.Parse[appsv1.Deployment](t, meta+`
spec:
  replicas: 1
  revisionHistoryLimit: 10
  progressDeadlineSeconds: 600
  strategy: {type: RollingUpdate, rollingUpdate: {maxSurge: 25%, maxUnavailable: 25%}}
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
	if diff := cmp.Diff(want, deployment(t, smallest)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	kept := deployment(t,
		meta+"spec: {replicas: 0, strategy: {type: Recreate}, revisionHistoryLimit: 0, progressDeadlineSeconds: 5}")
	if *kept.Spec.Replicas != 0 || kept.Spec.Strategy.RollingUpdate != nil || *kept.Spec.RevisionHistoryLimit != 0 ||
		*kept.Spec.ProgressDeadlineSeconds != 5 {
		t.Errorf("defaults replaced what was set: %+v", kept.Spec)
	}
}

func TestValidateDeployment(t *testing.T) {
	for name, c := range map[string]struct {
		spec string
		want []string
	}{
		"good": {selector + ", " + template, nil},
		"no selector": {template,
			[]string{grouptest.Missing + "spec.selector", grouptest.Invalid + "spec.template.metadata.labels"}},
		"empty selector": {"selector: {}, " + template, []string{grouptest.Invalid + "spec.selector"}},
		"other labels": {"selector: {matchLabels: {app: b}}, " + template,
			[]string{grouptest.Invalid + "spec.template.metadata.labels"}},
		"bad selector": {"selector: {matchExpressions: [{key: a, operator: Is}]}, " + template,
			[]string{grouptest.Invalid + "spec.selector.matchExpressions[0].operator",
				grouptest.Invalid + "spec.selector"}},
		"numbers": {
			selector + ", replicas: -1, minReadySeconds: -1, revisionHistoryLimit: -1, " + template,
			[]string{grouptest.Invalid + "spec.replicas", grouptest.Invalid + "spec.minReadySeconds",
				grouptest.Invalid + "spec.revisionHistoryLimit"}},
		"deadline": {selector + ", minReadySeconds: 600, " + template,
			[]string{grouptest.Invalid + "spec.progressDeadlineSeconds"}},
		"strategy": {selector + ", strategy: {type: Hope}, " + template,
			[]string{grouptest.Unknown + "spec.strategy"}},
		"recreate rolling": {selector + ", strategy: {type: Recreate, rollingUpdate: {}}, " + template,
			[]string{grouptest.Forbidden + "spec.strategy.rollingUpdate"}},
		"no room": {
			selector + ", strategy: {rollingUpdate: {maxSurge: 0, maxUnavailable: 0%}}, " + template,
			[]string{grouptest.Invalid + "spec.strategy.rollingUpdate.maxUnavailable"}},
		"percent": {
			selector + ", strategy: {rollingUpdate: {maxSurge: x, maxUnavailable: 101%}}, " + template,
			[]string{grouptest.Invalid + "spec.strategy.rollingUpdate.maxSurge",
				grouptest.Invalid + "spec.strategy.rollingUpdate.maxUnavailable"}},
		"restart policy": {
			selector +
				", template: {metadata: {labels: {app: a}}, spec: {restartPolicy: Never, activeDeadlineSeconds: 5, containers: [{name: a, image: i}]}}", []string{grouptest.Unknown + "spec.template.spec.restartPolicy", grouptest.Forbidden + "spec.template.spec.activeDeadlineSeconds"}},
		"containers": {
			selector + ", template: {metadata: {labels: {app: a}}, spec: {containers: [{name: A}]}}",
			[]string{grouptest.Invalid + "spec.template.spec.containers[0].name",
				grouptest.Missing + "spec.template.spec.containers[0].image"}},
		"ephemeral": {
			selector +
				", template: {metadata: {labels: {app: a}}, spec: {containers: [{name: a, image: i}], ephemeralContainers: [{name: e, image: i}]}}", []string{grouptest.Forbidden + "spec.template.spec.ephemeralContainers"}},
		"only limits of a device": {
			selector +
				", template: {metadata: {labels: {app: a}}, spec: {containers: [{name: a, image: i, resources: {limits: {a.b/c: 1}}}]}}", nil},
	} {
		t.Run(name, func(t *testing.T) {
			d := deployment(t, meta+"spec: {"+c.spec+"}")
			grouptest.WantErrors(t, validateDeployment(context.Background(), d, nil), c.want...)
		})
	}
}

func TestSelectorsAreImmutable(t *testing.T) {
	ctx := context.Background()
	old := deployment(t, smallest)
	d := old.DeepCopy()
	d.Spec.Selector.MatchLabels["tier"], d.Spec.Template.Labels["tier"] = "x", "x"
	grouptest.WantErrors(t, validateDeployment(ctx, d, old), grouptest.Invalid+"spec.selector")

	oldSet := grouptest.Parse[appsv1.ReplicaSet](t, smallest)
	defaultReplicaSet(oldSet)
	rs := oldSet.DeepCopy()
	grouptest.WantErrors(t, validateReplicaSet(ctx, rs, oldSet))
	rs.Spec.Selector.MatchLabels["tier"], rs.Spec.Template.Labels["tier"] = "x", "x"
	grouptest.WantErrors(t, validateReplicaSet(ctx, rs, oldSet), grouptest.Invalid+"spec.selector")
}

func TestDeploymentGeneration(t *testing.T) {
	old := deployment(t, smallest)
	old.Generation = 4
	d := old.DeepCopy()
	prepareDeployment(context.Background(), d, old)
	if d.Generation != 4 {
		t.Errorf("generation is %d without a change", d.Generation)
	}
	d.Annotations = map[string]string{"a": "b"}
	prepareDeployment(context.Background(), d, old)
	if d.Generation != 5 {
		t.Errorf("generation is %d after a change of the annotations, want 5", d.Generation)
	}
}

func TestValidateStatus(t *testing.T) {
	ctx := context.Background()
	old := deployment(t, smallest)
	d := old.DeepCopy()
	d.Status = appsv1.DeploymentStatus{Replicas: 3, UpdatedReplicas: 3, ReadyReplicas: 2, AvailableReplicas: 2,
		ObservedGeneration: 1}
	grouptest.WantErrors(t, validateDeploymentStatus(ctx, d, old))
	d.Status = appsv1.DeploymentStatus{Replicas: 1, UpdatedReplicas: 2, ReadyReplicas: 1, AvailableReplicas: 2,
		UnavailableReplicas: -1}
	grouptest.WantErrors(t, validateDeploymentStatus(ctx, d, old), grouptest.Invalid+"status.updatedReplicas",
		grouptest.Invalid+"status.availableReplicas", grouptest.Invalid+"status.availableReplicas",
		grouptest.Invalid+"status.unavailableReplicas")

	rs := grouptest.Parse[appsv1.ReplicaSet](t, meta+`status: {replicas: 1, readyReplicas: 2, availableReplicas: -1}`)
	grouptest.WantErrors(t, validateReplicaSetStatus(ctx, rs, rs), grouptest.Invalid+"status.readyReplicas",
		grouptest.Invalid+"status.availableReplicas")
}

func TestRows(t *testing.T) {
	d := deployment(t, meta+`
spec: {replicas: 3, selector: {matchLabels: {app: a, b: c}}, template: {spec: {containers: [{name: web, image: "nginx:1.21.6"}, {name: log, image: "log:2"}]}}}
status: {replicas: 4, readyReplicas: 2, updatedReplicas: 1, availableReplicas: 2}
`)
	d.CreationTimestamp = grouptest.Ago(3 * time.Minute)
	grouptest.WantRow(t, deployments(), d, "d", "2/3", int64(1), int64(2), "3m", "web,log", "nginx:1.21.6,log:2",
		"app=a,b=c")

	rs := grouptest.Parse[appsv1.ReplicaSet](t, meta+`
spec: {replicas: 3, selector: {matchLabels: {app: a}}, template: {spec: {containers: [{name: web, image: "nginx:1.21.6"}]}}}
status: {replicas: 2, readyReplicas: 1}
`)
	grouptest.WantRow(t, replicaSets(), rs, "d", int64(3), int64(2), int64(1), "<unknown>", "web", "nginx:1.21.6",
		"app=a")
}
