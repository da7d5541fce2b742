package autoscaling

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	autoscalingv2 "k8s.io/api/autoscaling/v2"

	"github.com/barque/barque/apiserver/groups/grouptest"
)

const (
	meta   = "metadata: {name: a, namespace: default, resourceVersion: '1'}\n"
	target = "scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}, "
	base   = target + "maxReplicas: 5, "
)

func autoscaler(t *testing.T, spec string) *autoscalingv2.HorizontalPodAutoscaler {
	t.Helper()
	a := grouptest.Parse[autoscalingv2.HorizontalPodAutoscaler](t, meta+"spec: {"+spec+"}")
	defaultAutoscaler(a)
	return a
}

func TestDefaults(t *testing.T) {
	const (
		cpu  = "metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 80}}}]"
		up   = "{stabilizationWindowSeconds: 0, selectPolicy: Max, policies: [{type: Pods, value: 4, periodSeconds: 15}, {type: Percent, value: 100, periodSeconds: 15}]}"
		down = "{selectPolicy: Max, policies: [{type: Percent, value: 100, periodSeconds: 15}]}"
		own  = "{stabilizationWindowSeconds: 5, selectPolicy: Min, policies: [{type: Pods, value: 1, periodSeconds: 5}], tolerance: 10m}"
	)
	for name, c := range map[string]struct{ spec, want string }{
		"nothing": {base, base + "minReplicas: 1, " + cpu},
		"set": {base + "minReplicas: 0, metrics: [{type: Pods}]",
			base + "minReplicas: 0, metrics: [{type: Pods}]"},
		"empty behavior": {base + "behavior: {}",
			base + "minReplicas: 1, " + cpu + ", behavior: {scaleUp: " + up + ", scaleDown: " + down + "}"},
		"half a rule": {base + "behavior: {scaleUp: {tolerance: 10m}, scaleDown: {stabilizationWindowSeconds: 5}}",
			base + "minReplicas: 1, " + cpu + ", behavior: {scaleUp: {tolerance: 10m, " + up[1:] +
				", scaleDown: {stabilizationWindowSeconds: 5, " + down[1:] + "}"},
		"own rules": {base + "behavior: {scaleUp: " + own + ", scaleDown: " + own + "}",
			base + "minReplicas: 1, " + cpu + ", behavior: {scaleUp: " + own + ", scaleDown: " + own + "}"},
	} {
		t.Run(name, func(t *testing.T) {
			want := grouptest.Parse[autoscalingv2.HorizontalPodAutoscaler](t, meta+"spec: {"+c.want+"}")
			if diff := cmp.Diff(want, autoscaler(t, c.spec)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestValidate(t *testing.T) {
	const (
		at     = "spec.metrics[0]."
		metric = "metric: {name: rate}, "
		object = "describedObject: {apiVersion: networking.k8s.io/v1, kind: Ingress, name: i}, "
		policy = "{type: Pods, value: 1, periodSeconds: 5}"
	)
	metrics := func(fields string) string { return base + "metrics: [{" + fields + "}]" }
	up := func(fields string) string { return base + "behavior: {scaleUp: {" + fields + "}}" }
	for name, c := range map[string]struct {
		spec string
		want []string
	}{
		"good": {base, nil},
		"no maximum": {
			target + "minReplicas: 0, metrics: [{type: External, external: {" + metric +
				"target: {type: Value, value: 1}}}]", []string{grouptest.Missing + "spec.maxReplicas"}},
		"negative": {target + "maxReplicas: -1, minReplicas: -2",
			[]string{grouptest.Invalid + "spec.maxReplicas", grouptest.Invalid + "spec.minReplicas"}},
		"below minimum": {base + "minReplicas: 6", []string{grouptest.Invalid + "spec.maxReplicas"}},
		"zero": {
			base + "minReplicas: 0, metrics: [{type: Object, object: {" + object + metric +
				"target: {type: Value, value: 1}}}]", nil},
		"zero, by cpu": {base + "minReplicas: 0", []string{grouptest.Forbidden + "spec.metrics"}},
		"no target": {"scaleTargetRef: {}, maxReplicas: 1",
			[]string{grouptest.Missing + "spec.scaleTargetRef.kind", grouptest.Missing + "spec.scaleTargetRef.name",
				grouptest.Invalid + "spec.scaleTargetRef.apiVersion"}},
		"target names": {"scaleTargetRef: {apiVersion: apps/v1, kind: a/b, name: ..}, maxReplicas: 1",
			[]string{grouptest.Invalid + "spec.scaleTargetRef.kind", grouptest.Invalid + "spec.scaleTargetRef.name"}},
		"target version": {"scaleTargetRef: {apiVersion: a/b/c, kind: Deployment, name: a}, maxReplicas: 1",
			[]string{grouptest.Invalid + "spec.scaleTargetRef.apiVersion"}},
		"no group": {"scaleTargetRef: {apiVersion: v1, kind: Deployment, name: a}, maxReplicas: 1",
			[]string{grouptest.Invalid + "spec.scaleTargetRef.apiVersion"}},
		"core controller": {"scaleTargetRef: {apiVersion: v1, kind: ReplicationController, name: a}, maxReplicas: 1",
			nil},

		"each source": {base + "metrics: [" +
			"{type: Object, object: {" + object + metric + "target: {type: AverageValue, averageValue: 1}}}, " +
			"{type: External, external: {" + metric + "target: {type: Value, value: 1}}}, " +
			"{type: Pods, pods: {" + metric + "target: {type: AverageValue, averageValue: 1}}}, " +
			"{type: Resource, resource: {name: memory, target: {type: AverageValue, averageValue: 1Gi}}}, " +
			"{type: ContainerResource, containerResource: {name: cpu, container: c, target: {type: Utilization, averageUtilization: 1}}}]", nil},
		"no type": {metrics("pods: {" + metric + "target: {type: AverageValue, averageValue: 1}}"),
			[]string{grouptest.Missing + at + "type", grouptest.Unknown + at + "type"}},
		"unknown type": {metrics("type: Mood, pods: {" + metric + "target: {type: AverageValue, averageValue: 1}}"),
			[]string{grouptest.Unknown + at + "type"}},
		"no source": {metrics("type: Pods"), []string{grouptest.Missing + at + "pods"}},
		"two sources": {
			metrics(
				"type: Pods, pods: {" + metric +
					"target: {type: AverageValue, averageValue: 1}}, resource: {name: ''}"),
			[]string{grouptest.Forbidden + at + "resource"}},
		"other source": {
			metrics("type: Pods, resource: {name: cpu, target: {type: Utilization, averageUtilization: 1}}"),
			[]string{grouptest.Missing + at + "pods"}},

		"object": {metrics("type: Object, object: {describedObject: {}, target: {type: Value}}"),
			[]string{grouptest.Missing + at + "object.describedObject.kind",
				grouptest.Missing + at + "object.describedObject.name", grouptest.Missing + at + "object.metric.name",
				grouptest.Missing + at + "object.target.averageValue"}},
		"object version": {
			metrics(
				"type: Object, object: {describedObject: {apiVersion: a/b/c, kind: K, name: n}, " + metric +
					"target: {type: Value, value: 1}}"),
			[]string{grouptest.Invalid + at + "object.describedObject.apiVersion"}},
		"metric name": {
			metrics("type: Pods, pods: {metric: {name: a/b}, target: {type: AverageValue, averageValue: 1}}"),
			[]string{grouptest.Invalid + at + "pods.metric.name"}},
		"pods average": {metrics("type: Pods, pods: {" + metric + "target: {type: Value, value: 1}}"),
			[]string{grouptest.Missing + at + "pods.target.averageValue"}},
		"external": {metrics("type: External, external: {" + metric + "target: {type: Value}}"),
			[]string{grouptest.Missing + at + "external.target.averageValue"}},
		"external both": {
			metrics("type: External, external: {" + metric + "target: {type: Value, value: 1, averageValue: 1}}"),
			[]string{grouptest.Forbidden + at + "external.target.value"}},
		"resource": {metrics("type: Resource, resource: {name: '', target: {type: Utilization}}"),
			[]string{grouptest.Missing + at + "resource.name",
				grouptest.Missing + at + "resource.target.averageUtilization"}},
		"resource both": {
			metrics(
				"type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 1, averageValue: 1}}"), []string{grouptest.Forbidden + at + "resource.target.averageValue"}},
		"container": {
			metrics(
				"type: ContainerResource, containerResource: {name: '', container: '', target: {type: Utilization, averageUtilization: 1}}"), []string{grouptest.Missing + at + "containerResource.name", grouptest.Missing + at + "containerResource.container"}},
		"container names": {
			metrics(
				"type: ContainerResource, containerResource: {name: storage, container: C, target: {type: Utilization, averageUtilization: 1}}"), []string{grouptest.Invalid + at + "containerResource.name", grouptest.Invalid + at + "containerResource.container"}},
		"no target type": {metrics("type: Pods, pods: {" + metric + "target: {averageValue: 1}}"),
			[]string{grouptest.Missing + at + "pods.target.type", grouptest.Invalid + at + "pods.target.type"}},
		"targets not above 0": {
			metrics(
				"type: Object, object: {" + object + metric +
					"target: {type: Value, value: 0, averageValue: -1, averageUtilization: 0}}"),
			[]string{grouptest.Invalid + at + "object.target.value",
				grouptest.Invalid + at + "object.target.averageValue",
				grouptest.Invalid + at + "object.target.averageUtilization"}},

		"behavior": {
			up(
				"tolerance: 0, stabilizationWindowSeconds: 3600, selectPolicy: Disabled, policies: [{type: Percent, value: 1, periodSeconds: 1800}]"), nil},
		"window": {up("stabilizationWindowSeconds: 3601"),
			[]string{grouptest.Invalid + "spec.behavior.scaleUp.stabilizationWindowSeconds"}},
		"negative rules": {up("stabilizationWindowSeconds: -1, tolerance: -1"),
			[]string{grouptest.Invalid + "spec.behavior.scaleUp.stabilizationWindowSeconds",
				grouptest.Invalid + "spec.behavior.scaleUp.tolerance"}},
		"select": {up("selectPolicy: Best, policies: [" + policy + "]"),
			[]string{grouptest.Unknown + "spec.behavior.scaleUp.selectPolicy"}},
		"no policies": {base + "behavior: {scaleDown: {policies: []}}",
			[]string{grouptest.Missing + "spec.behavior.scaleDown.policies"}},
		"policy": {
			up("policies: [{type: Nodes, value: 0, periodSeconds: 0}, {type: Pods, value: 1, periodSeconds: 1801}]"),
			[]string{grouptest.Unknown + "spec.behavior.scaleUp.policies[0].type",
				grouptest.Invalid + "spec.behavior.scaleUp.policies[0].value",
				grouptest.Invalid + "spec.behavior.scaleUp.policies[0].periodSeconds",
				grouptest.Invalid + "spec.behavior.scaleUp.policies[1].periodSeconds"}},
	} {
		t.Run(name, func(t *testing.T) {
			grouptest.WantErrors(t, validateAutoscaler(context.Background(), autoscaler(t, c.spec), nil), c.want...)
		})
	}
}

// TestStoredVersions: versions that could be stored once may stay, and may not come.
func TestStoredVersions(t *testing.T) {
	const object = "metrics: [{type: Object, object: {describedObject: {apiVersion: a/b/c, kind: K, name: n}, metric: {name: m}, target: {type: Value, value: 1}}}]"
	for name, c := range map[string]struct {
		old, spec string
		want      []string
	}{
		"target stays": {"scaleTargetRef: {kind: Deployment, name: a}, maxReplicas: 1",
			"scaleTargetRef: {kind: Deployment, name: b}, maxReplicas: 2", nil},
		"target of another": {"scaleTargetRef: {kind: Deployment, name: a}, maxReplicas: 1",
			"scaleTargetRef: {kind: ReplicaSet, name: a}, maxReplicas: 1",
			[]string{grouptest.Invalid + "spec.scaleTargetRef.apiVersion"}},
		"object stays": {base + object, base + object, nil},
		"object comes": {base, base + object,
			[]string{grouptest.Invalid + "spec.metrics[0].object.describedObject.apiVersion"}},
	} {
		t.Run(name, func(t *testing.T) {
			grouptest.WantErrors(t,
				validateAutoscaler(context.Background(), autoscaler(t, c.spec), autoscaler(t, c.old)), c.want...)
		})
	}
}

func TestValidateStatus(t *testing.T) {
	a := grouptest.Parse[autoscalingv2.HorizontalPodAutoscaler](t,
		"status: {currentReplicas: 1, desiredReplicas: 2, conditions: [{type: AbleToScale, status: 'True', observedGeneration: 1}]}")
	grouptest.WantErrors(t, validateAutoscalerStatus(context.Background(), a, a))
	a = grouptest.Parse[autoscalingv2.HorizontalPodAutoscaler](t,
		"status: {currentReplicas: -1, desiredReplicas: -1, conditions: [{type: AbleToScale, status: 'True', observedGeneration: -1}]}")
	grouptest.WantErrors(t, validateAutoscalerStatus(context.Background(), a, a),
		grouptest.Invalid+"status.currentReplicas",
		grouptest.Invalid+"status.desiredReplicas", grouptest.Invalid+"status.conditions[0].observedGeneration")
}

func TestRow(t *testing.T) {
	a := autoscaler(t, base)
	a.CreationTimestamp = grouptest.Ago(3 * time.Minute)
	grouptest.WantRow(t, podAutoscalers(), a, "a", "Deployment/web", "cpu: <unknown>/80%", "1", int64(5), int64(0),
		"3m")

	a.Status = grouptest.Parse[autoscalingv2.HorizontalPodAutoscaler](t,
		"status: {currentReplicas: 2, currentMetrics: [{type: Resource, resource: {name: cpu, current: {averageUtilization: 35, averageValue: 7m}}}]}").Status
	grouptest.WantRow(t, podAutoscalers(), a, "a", "Deployment/web", "cpu: 35%/80%", "1", int64(5), int64(2), "3m")
}

func TestFormatMetrics(t *testing.T) {
	const m = "metric: {name: m}, "
	for name, c := range map[string]struct{ spec, status, want string }{
		"none": {"", "", "<none>"},
		"amount": {"{type: Resource, resource: {name: memory, target: {averageValue: 1Gi}}}",
			"{type: Resource, resource: {name: memory, current: {averageValue: 512Mi}}}", "memory: 512Mi/1Gi"},
		"container": {
			"{type: ContainerResource, containerResource: {name: cpu, container: c, target: {averageUtilization: 50}}}",
			"{type: ContainerResource, containerResource: {name: cpu, container: c, current: {averageUtilization: 20}}}", "cpu: 20%/50%"},
		"no target": {"{type: Resource, resource: {name: cpu, target: {}}}", "", "cpu: <unknown>/<auto>"},
		"external": {"{type: External, external: {" + m + "target: {value: 10}}}",
			"{type: External, external: {" + m + "current: {value: 5}}}", "5/10"},
		"average": {"{type: Object, object: {" + m + "target: {averageValue: 10}}}",
			"{type: Object, object: {" + m + "current: {averageValue: 5}}}", "5/10 (avg)"},
		"pods": {"{type: Pods, pods: {" + m + "target: {averageValue: 10}}}", "{type: Resource}", "<unknown>/10"},
		"many": {
			"{type: Pods, pods: {" + m + "target: {averageValue: 1}}}, {type: Pods, pods: {" + m +
				"target: {averageValue: 2}}}, {type: Mood}, {type: Mood}", "", "<unknown>/1, <unknown>/2 + 2 more..."},
		"unknown": {"{type: Mood}", "", "<unknown type>"},
	} {
		a := grouptest.Parse[autoscalingv2.HorizontalPodAutoscaler](t,
			"spec: {metrics: ["+c.spec+"]}\nstatus: {currentMetrics: ["+c.status+"]}")
		if got := formatMetrics(a.Spec.Metrics, a.Status.CurrentMetrics); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
