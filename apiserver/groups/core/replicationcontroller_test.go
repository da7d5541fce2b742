package core

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/barque/barque/apiserver/groups/grouptest"
	"github.com/barque/barque/apiserver/resource"
)

const (
	rcMeta     = "metadata: {name: d, namespace: default, resourceVersion: '1'}\n"
	rcTemplate = "template: {metadata: {labels: {app: a}}, spec: {containers: [{name: web, image: 'nginx:1.21.6'}]}}"
)

func replicationController(t *testing.T, text string) *corev1.ReplicationController {
	t.Helper()
	rc := grouptest.Parse[corev1.ReplicationController](t, text)
	defaultReplicationController(rc)
	return rc
}

func TestReplicationControllerDefaults(t *testing.T) {
	want := grouptest.Parse[corev1.ReplicationController](t, `
metadata: {name: d, namespace: default, resourceVersion: "1", labels: {app: a}}
spec:
  replicas: 1
  selector: {app: a}
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
	rc := replicationController(t, rcMeta+"spec: {"+rcTemplate+"}")
	if diff := cmp.Diff(want, rc); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	rc.Spec.Selector["b"], rc.Labels["c"] = "x", "x"
	if len(rc.Spec.Template.Labels) != 1 {
		t.Error("the template shares its labels")
	}
	kept := replicationController(t,
		"metadata: {labels: {x: y}}\nspec: {replicas: 0, selector: {app: b}, "+rcTemplate+"}")
	if *kept.Spec.Replicas != 0 || kept.Spec.Selector["app"] != "b" || kept.Labels["app"] != "" {
		t.Errorf("defaults replaced what was set: %+v %+v", kept.Labels, kept.Spec)
	}
}

func TestValidateReplicationController(t *testing.T) {
	const pod = "template: {metadata: {labels: {app: a}}, spec: "
	for name, c := range map[string]struct {
		spec string
		want []string
	}{
		"good":        {rcTemplate, nil},
		"no template": {"selector: {app: a}", []string{grouptest.Missing + "spec.template"}},
		"no labels": {"template: {spec: {containers: [{name: a, image: i}]}}",
			[]string{grouptest.Missing + "spec.selector"}},
		"other labels": {"selector: {app: b}, " + rcTemplate,
			[]string{grouptest.Invalid + "spec.template.metadata.labels"}},
		"numbers": {"replicas: -1, minReadySeconds: -1, " + rcTemplate,
			[]string{grouptest.Invalid + "spec.replicas", grouptest.Invalid + "spec.minReadySeconds"}},
		"restart policy": {pod + "{restartPolicy: Never, activeDeadlineSeconds: 5, containers: [{name: a, image: i}]}}",
			[]string{grouptest.Unknown + "spec.template.spec.restartPolicy",
				grouptest.Forbidden + "spec.template.spec.activeDeadlineSeconds"}},
		"containers": {pod + "{containers: [{name: A}]}}",
			[]string{grouptest.Invalid + "spec.template.spec.containers[0].name",
				grouptest.Missing + "spec.template.spec.containers[0].image"}},
	} {
		t.Run(name, func(t *testing.T) {
			rc := replicationController(t, rcMeta+"spec: {"+c.spec+"}")
			grouptest.WantErrors(t, validateReplicationController(context.Background(), rc, nil), c.want...)
		})
	}
	// Unlike the selectors of all younger workloads, this one may change.
	old := replicationController(t, rcMeta+"spec: {"+rcTemplate+"}")
	rc := old.DeepCopy()
	rc.Spec.Selector["tier"], rc.Spec.Template.Labels["tier"] = "x", "x"
	grouptest.WantErrors(t, validateReplicationController(context.Background(), rc, old))
}

func TestValidateReplicationControllerStatus(t *testing.T) {
	for text, want := range map[string][]string{
		"{replicas: 3, fullyLabeledReplicas: 3, readyReplicas: 2, availableReplicas: 2, observedGeneration: 1}": nil,
		"{replicas: -1}": {grouptest.Invalid + "status.replicas",
			grouptest.Invalid + "status.fullyLabeledReplicas", grouptest.Invalid + "status.readyReplicas",
			grouptest.Invalid + "status.availableReplicas"},
		"{fullyLabeledReplicas: 1}":           {grouptest.Invalid + "status.fullyLabeledReplicas"},
		"{readyReplicas: 1}":                  {grouptest.Invalid + "status.readyReplicas"},
		"{replicas: 1, availableReplicas: 1}": {grouptest.Invalid + "status.availableReplicas"},
		"{observedGeneration: -1}":            {grouptest.Invalid + "status.observedGeneration"},
	} {
		rc := grouptest.Parse[corev1.ReplicationController](t, "status: "+text)
		t.Run(text, func(t *testing.T) {
			grouptest.WantErrors(t, validateReplicationControllerStatus(context.Background(), rc, nil), want...)
		})
	}
}

func TestReplicationControllerKind(t *testing.T) {
	kind := replicationControllers().(*resource.Kind[corev1.ReplicationController])
	rc := grouptest.Parse[corev1.ReplicationController](t, rcMeta+`
spec: {replicas: 3, selector: {b: c, app: a}, template: {spec: {containers: [{name: web, image: "nginx:1.21.6"}]}}}
status: {replicas: 2, readyReplicas: 1}
`)
	rc.CreationTimestamp = grouptest.Ago(3 * time.Minute)
	grouptest.WantRow(t, kind, rc, "d", int64(3), int64(2), int64(1), "3m", "web", "nginx:1.21.6", "app=a,b=c")
	query, err := kind.Scale.Selector(rc)
	if err != nil || query != "app=a,b=c" || *kind.Scale.Replicas(rc) != 3 || kind.Scale.Observed(rc) != 2 {
		t.Errorf("scale: selector %q (%v), %d desired, %d observed", query, err, *kind.Scale.Replicas(rc),
			kind.Scale.Observed(rc))
	}
	if got := kind.Fields(rc)["status.replicas"]; got != "2" {
		t.Errorf("status.replicas=%s", got)
	}
	if kind.GarbageCollection != rest.OrphanDependents {
		t.Errorf("a delete without a policy: %s", kind.GarbageCollection)
	}
	rc.Spec = corev1.ReplicationControllerSpec{}
	grouptest.WantRow(t, kind, rc, "d", int64(0), int64(2), int64(1), "3m", "", "", "<none>")
}
