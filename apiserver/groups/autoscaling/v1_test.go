package autoscaling

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	autoscalingv1 "k8s.io/api/autoscaling/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"

	"github.com/barque/barque/apiserver/groups/grouptest"
)

// TestRoundTripThroughV1: a client of v1 that reads and writes changes no field that v1 lacks.
func TestRoundTripThroughV1(t *testing.T) {
	full := grouptest.Parse[autoscalingv2.HorizontalPodAutoscaler](t, `
metadata: {name: a, namespace: default, annotations: {own: kept}}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  minReplicas: 2
  maxReplicas: 9
  metrics:
  - {type: Resource, resource: {name: memory, target: {type: AverageValue, averageValue: 1Gi}}}
  - {type: Pods, pods: {metric: {name: m, selector: {matchLabels: {a: b}}}, target: {type: AverageValue, averageValue: "5"}}}
  - {type: Object, object: {describedObject: {apiVersion: v1, kind: Service, name: s}, metric: {name: m}, target: {type: Value, value: "5"}}}
  - {type: Object, object: {describedObject: {apiVersion: v1, kind: Service, name: s}, metric: {name: m}, target: {type: AverageValue, averageValue: "5"}}}
  - {type: External, external: {metric: {name: m}, target: {type: Value, value: "5"}}}
  - {type: External, external: {metric: {name: m}, target: {type: AverageValue, averageValue: "5"}}}
  - {type: ContainerResource, containerResource: {name: cpu, container: c, target: {type: Utilization, averageUtilization: 40}}}
  - {type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 60}}}
  behavior:
    scaleUp: {stabilizationWindowSeconds: 0, selectPolicy: Max, policies: [{type: Pods, value: 4, periodSeconds: 15}], tolerance: 50m}
    scaleDown: {selectPolicy: Disabled, policies: [{type: Percent, value: 10, periodSeconds: 60}]}
status:
  observedGeneration: 3
  lastScaleTime: "2030-01-01T00:00:00Z"
  currentReplicas: 3
  desiredReplicas: 4
  currentMetrics:
  - {type: Resource, resource: {name: memory, current: {averageValue: 1Gi}}}
  - {type: Pods, pods: {metric: {name: m, selector: {matchLabels: {a: b}}}, current: {averageValue: "5"}}}
  - {type: Object, object: {describedObject: {apiVersion: v1, kind: Service, name: s}, metric: {name: m}, current: {value: "5"}}}
  - {type: External, external: {metric: {name: m}, current: {value: "5", averageValue: "2"}}}
  - {type: ContainerResource, containerResource: {name: cpu, container: c, current: {averageUtilization: 20, averageValue: 100m}}}
  - {type: Resource, resource: {name: cpu, current: {averageUtilization: 30, averageValue: 200m}}}
  conditions:
  - {type: AbleToScale, status: "True", reason: ReadyForNewScale, message: m, lastTransitionTime: "2030-01-01T00:00:00Z", observedGeneration: 3}
`)
	before := full.DeepCopy()
	var v1 autoscalingv1.HorizontalPodAutoscaler
	if err := toV1(full, &v1); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, full); diff != "" {
		t.Errorf("the conversion changed what it read (-before +after):\n%s", diff)
	}
	if *v1.Spec.TargetCPUUtilizationPercentage != 60 || *v1.Status.CurrentCPUUtilizationPercentage != 30 {
		t.Errorf("CPU in v1: target %d, current %d", *v1.Spec.TargetCPUUtilizationPercentage,
			*v1.Status.CurrentCPUUtilizationPercentage)
	}
	if len(v1.Annotations) != 5 || v1.Annotations["own"] != "kept" {
		t.Errorf("annotations in v1: %v", v1.Annotations)
	}
	// Clients compare this text.
	const behavior = `{"ScaleUp":{"StabilizationWindowSeconds":0,"SelectPolicy":"Max","Policies":[{"Type":"Pods","Value":4,"PeriodSeconds":15}],"Tolerance":"50m"},` +
		`"ScaleDown":{"StabilizationWindowSeconds":null,"SelectPolicy":"Disabled","Policies":[{"Type":"Percent","Value":10,"PeriodSeconds":60}],"Tolerance":null}}`
	if got := v1.Annotations["autoscaling.alpha.kubernetes.io/behavior"]; got != behavior {
		t.Errorf("behavior in v1:\n%s, want\n%s", got, behavior)
	}
	var back autoscalingv2.HorizontalPodAutoscaler
	if err := fromV1(&v1, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(full, &back); diff != "" {
		t.Errorf("after v1 and back (-before +after):\n%s", diff)
	}
}

func TestFromV1(t *testing.T) {
	const ref = "scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}"
	cpu := func(percent string) string {
		return "metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: " +
			percent + "}}}]"
	}
	for name, c := range map[string]struct{ v1, want string }{
		"defaults": {"spec: {" + ref + ", maxReplicas: 3}",
			"spec: {" + ref + ", minReplicas: 1, maxReplicas: 3, " + cpu("80") + "}"},
		"target": {"spec: {" + ref + ", minReplicas: 2, maxReplicas: 3, targetCPUUtilizationPercentage: 50}",
			"spec: {" + ref + ", minReplicas: 2, maxReplicas: 3, " + cpu("50") + "}"},
		"only others": {
			"metadata: {annotations: {autoscaling.alpha.kubernetes.io/metrics: '[{\"type\":\"Resource\",\"resource\":{\"name\":\"memory\",\"targetAverageValue\":\"1Gi\"}}]'}}\nspec: {" + ref + ", minReplicas: 1, maxReplicas: 3}", "metadata: {annotations: {}}\nspec: {" + ref + ", minReplicas: 1, maxReplicas: 3, metrics: [{type: Resource, resource: {name: memory, target: {type: AverageValue, averageValue: 1Gi}}}]}"},
		"unreadable": {
			"metadata: {annotations: {own: a, autoscaling.alpha.kubernetes.io/metrics: x, autoscaling.alpha.kubernetes.io/behavior: x, autoscaling.alpha.kubernetes.io/conditions: x, autoscaling.alpha.kubernetes.io/current-metrics: x}}\nspec: {" + ref + ", minReplicas: 1, maxReplicas: 3}", "metadata: {annotations: {own: a}}\nspec: {" + ref + ", minReplicas: 1, maxReplicas: 3, " + cpu("80") + "}"},
		"empty behavior": {
			"metadata: {annotations: {autoscaling.alpha.kubernetes.io/behavior: '{}'}}\nspec: {" + ref +
				", minReplicas: 1, maxReplicas: 3}",
			"metadata: {annotations: {}}\nspec: {" + ref + ", minReplicas: 1, maxReplicas: 3, " + cpu("80") + "}"},
		"current": {
			"spec: {" + ref +
				", minReplicas: 1, maxReplicas: 3}\nstatus: {currentReplicas: 2, desiredReplicas: 2, currentCPUUtilizationPercentage: 10}", "spec: {" + ref + ", minReplicas: 1, maxReplicas: 3, " + cpu("80") + "}\nstatus: {currentReplicas: 2, desiredReplicas: 2, currentMetrics: [{type: Resource, resource: {name: cpu, current: {averageUtilization: 10}}}]}"},
	} {
		t.Run(name, func(t *testing.T) {
			var got autoscalingv2.HorizontalPodAutoscaler
			if err := fromV1(grouptest.Parse[autoscalingv1.HorizontalPodAutoscaler](t, c.v1), &got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(grouptest.Parse[autoscalingv2.HorizontalPodAutoscaler](t, c.want), &got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
