package apps

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"

	"github.com/barque/barque/apiserver/groups/grouptest"
	"github.com/barque/barque/apiserver/resource"
)

const claims = "volumeClaimTemplates: [{metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}]"

func statefulSet(t *testing.T, text string) *appsv1.StatefulSet {
	t.Helper()
	s := grouptest.Parse[appsv1.StatefulSet](t, text)
	defaultStatefulSet(s)
	return s
}

func TestStatefulSetDefaults(t *testing.T) {
	want := grouptest.Parse[appsv1.StatefulSet](t, meta+`
spec:
  replicas: 1
  revisionHistoryLimit: 10
  podManagementPolicy: OrderedReady
  updateStrategy: {type: RollingUpdate, rollingUpdate: {partition: 0, maxUnavailable: 1}}
  persistentVolumeClaimRetentionPolicy: {whenDeleted: Retain, whenScaled: Retain}
  selector: {matchLabels: {app: a}}
  volumeClaimTemplates:
  - apiVersion: v1
    kind: PersistentVolumeClaim
    metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}, volumeMode: Filesystem}
    status: {phase: Pending}
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
	if diff := cmp.Diff(want, statefulSet(t, meta+"spec: {"+selector+", "+claims+", "+template+"}")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestStatefulSetDefaultsKeepWhatIsSet(t *testing.T) {
	for text, want := range map[string]appsv1.StatefulSetUpdateStrategy{
		"{type: OnDelete}":      {Type: appsv1.OnDeleteStatefulSetStrategyType},
		"{type: RollingUpdate}": {Type: appsv1.RollingUpdateStatefulSetStrategyType},
	} {
		got := statefulSet(t,
			meta+
				"spec: {replicas: 0, revisionHistoryLimit: 0, podManagementPolicy: Parallel, persistentVolumeClaimRetentionPolicy: {whenScaled: Delete}, updateStrategy: "+text+"}").Spec
		if diff := cmp.Diff(want, got.UpdateStrategy); diff != "" {
			t.Errorf("%s (-want +got):\n%s", text, diff)
		}
		if *got.Replicas != 0 || *got.RevisionHistoryLimit != 0 ||
			got.PodManagementPolicy != appsv1.ParallelPodManagement ||
			got.PersistentVolumeClaimRetentionPolicy.WhenScaled != "Delete" ||
			got.PersistentVolumeClaimRetentionPolicy.WhenDeleted != "Retain" {
			t.Errorf("defaults replaced what was set: %+v", got)
		}
	}
}

func TestValidateStatefulSet(t *testing.T) {
	rolling := func(text string) string {
		return selector + ", updateStrategy: {type: RollingUpdate, rollingUpdate: " + text + "}, " + template
	}
	pod := func(spec string) string {
		return selector + ", template: {metadata: {labels: {app: a}}, spec: {" + spec + "}}"
	}
	const (
		maxUnavailable = "spec.updateStrategy.rollingUpdate.maxUnavailable"
		claim          = "spec.volumeClaimTemplates[0].spec."
	)
	for name, c := range map[string]struct {
		spec string
		want []string
	}{
		"good":      {selector + ", serviceName: web, " + claims + ", " + template, nil},
		"on delete": {selector + ", updateStrategy: {type: OnDelete}, " + template, nil},
		"history":   {selector + ", revisionHistoryLimit: -1, " + template, nil},
		"claim is mounted": {
			claims + ", " + pod("containers: [{name: a, image: i, volumeMounts: [{name: data, mountPath: /data}]}]"),
			nil},
		"claim hides volume": {
			claims + ", " + pod("containers: [{name: a, image: i}], volumes: [{name: data, hostPath: {path: ''}}]"),
			nil},
		"names are given": {pod("hostname: A_b, subdomain: A_b, containers: [{name: a, image: i}]"), nil},
		"no such claim": {pod("containers: [{name: a, image: i, volumeMounts: [{name: data, mountPath: /data}]}]"),
			[]string{grouptest.NotFound + "spec.template.spec.containers[0].volumeMounts[0].name"}},
		"no selector": {template,
			[]string{grouptest.Missing + "spec.selector", grouptest.Invalid + "spec.template.metadata.labels"}},
		"empty selector": {"selector: {}, " + template, []string{grouptest.Invalid + "spec.selector"}},
		"other labels": {"selector: {matchLabels: {app: b}}, " + template,
			[]string{grouptest.Invalid + "spec.template.metadata.labels"}},
		"bad selector": {"selector: {matchExpressions: [{key: a, operator: Is}]}, " + template,
			[]string{grouptest.Invalid + "spec.selector.matchExpressions[0].operator",
				grouptest.Invalid + "spec.selector"}},
		"numbers": {selector + ", replicas: -1, minReadySeconds: -1, ordinals: {start: -1}, " + template,
			[]string{grouptest.Invalid + "spec.replicas", grouptest.Invalid + "spec.minReadySeconds",
				grouptest.Invalid + "spec.ordinals.start"}},
		"management": {selector + ", podManagementPolicy: Hope, " + template,
			[]string{grouptest.Invalid + "spec.podManagementPolicy"}},
		"strategy": {selector + ", updateStrategy: {type: Hope}, " + template,
			[]string{grouptest.Invalid + "spec.updateStrategy"}},
		"recreate is alpha": {selector + ", updateStrategy: {type: Recreate}, " + template,
			[]string{grouptest.Invalid + "spec.updateStrategy"}},
		"on delete, rolling": {selector + ", updateStrategy: {type: OnDelete, rollingUpdate: {}}, " + template,
			[]string{grouptest.Invalid + "spec.updateStrategy.rollingUpdate"}},
		"partition": {rolling("{partition: -1}"),
			[]string{grouptest.Invalid + "spec.updateStrategy.rollingUpdate.partition"}},
		"percent":          {rolling("{maxUnavailable: 50%}"), nil},
		"none unavailable": {rolling("{maxUnavailable: 0}"), []string{grouptest.Invalid + maxUnavailable}},
		"0%":               {rolling("{maxUnavailable: 0%}"), []string{grouptest.Invalid + maxUnavailable}},
		"less than none":   {rolling("{maxUnavailable: -1}"), []string{grouptest.Invalid + maxUnavailable}},
		"more than all":    {rolling("{maxUnavailable: 101%}"), []string{grouptest.Invalid + maxUnavailable}},
		"no number": {rolling("{maxUnavailable: x}"),
			[]string{grouptest.Invalid + maxUnavailable, grouptest.Invalid + maxUnavailable}},
		"retention when scaled": {selector + ", persistentVolumeClaimRetentionPolicy: {whenScaled: Keep}, " + template,
			[]string{grouptest.Unknown + "spec.persistentVolumeClaimRetentionPolicy.whenScaled"}},
		"retention of deleted": {selector + ", persistentVolumeClaimRetentionPolicy: {whenDeleted: Keep}, " + template,
			[]string{grouptest.Unknown + "spec.persistentVolumeClaimRetentionPolicy.whenDeleted"}},
		"service name": {selector + ", serviceName: a.b, " + template,
			[]string{grouptest.Invalid + "spec.serviceName"}},
		"claims": {
			selector + ", volumeClaimTemplates: [{metadata: {name: data}, spec: {accessModes: [Some]}}], " + template,
			[]string{grouptest.Unknown + claim + "accessModes", grouptest.Missing + claim + "resources[storage]"}},
		"claim's name": {
			selector +
				", volumeClaimTemplates: [{metadata: {name: A_b}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1}}}}], " + template, []string{grouptest.Invalid + "spec.template.spec.volumes[0].name"}},
		"restart policy": {pod("restartPolicy: Never, activeDeadlineSeconds: 5, containers: [{name: a, image: i}]"),
			[]string{grouptest.Unknown + "spec.template.spec.restartPolicy",
				grouptest.Forbidden + "spec.template.spec.activeDeadlineSeconds"}},
		"containers": {pod("containers: [{name: A}]"),
			[]string{grouptest.Invalid + "spec.template.spec.containers[0].name",
				grouptest.Missing + "spec.template.spec.containers[0].image"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := statefulSet(t, meta+"spec: {"+c.spec+"}")
			grouptest.WantErrors(t, validateStatefulSet(context.Background(), s, nil), c.want...)
		})
	}
	for name, want := range map[string][]string{"a.b": {grouptest.Invalid + "metadata.name"},
		strings.Repeat("a", 64): {grouptest.Invalid + "metadata.name"}} {
		s := statefulSet(t, smallest)
		s.Name = name
		grouptest.WantErrors(t, validateStatefulSet(context.Background(), s, nil), want...)
	}
}

func TestValidateStatefulSetUpdate(t *testing.T) {
	old := statefulSet(t, meta+"spec: {"+selector+", serviceName: web, "+claims+", "+template+"}")
	for name, c := range map[string]struct {
		change func(*appsv1.StatefulSetSpec)
		want   []string
	}{
		"nothing": {func(*appsv1.StatefulSetSpec) {}, nil},
		"what may change": {func(s *appsv1.StatefulSetSpec) {
			*s.Replicas, *s.RevisionHistoryLimit, s.MinReadySeconds = 3, 1, 5
			s.Ordinals = &appsv1.StatefulSetOrdinals{Start: 1}
			s.UpdateStrategy = appsv1.StatefulSetUpdateStrategy{Type: appsv1.OnDeleteStatefulSetStrategyType}
			s.PersistentVolumeClaimRetentionPolicy.WhenScaled = appsv1.DeletePersistentVolumeClaimRetentionPolicyType
			s.Template.Spec.Containers[0].Image = "nginx:1.22"
		}, nil},
		"selector": {func(s *appsv1.StatefulSetSpec) {
			s.Selector.MatchLabels["tier"], s.Template.Labels["tier"] = "x", "x"
		}, []string{grouptest.Invalid + "spec.selector"}},
		"claims": {func(s *appsv1.StatefulSetSpec) { s.VolumeClaimTemplates = nil },
			[]string{grouptest.Invalid + "spec.volumeClaimTemplates"}},
		"service": {func(s *appsv1.StatefulSetSpec) { s.ServiceName = "other" },
			[]string{grouptest.Invalid + "spec.serviceName"}},
		"management": {func(s *appsv1.StatefulSetSpec) { s.PodManagementPolicy = "Parallel" },
			[]string{grouptest.Invalid + "spec.podManagementPolicy"}},
		"template": {func(s *appsv1.StatefulSetSpec) { s.Template.Spec.Containers[0].Image = "" },
			[]string{grouptest.Missing + "spec.template.spec.containers[0].image"}},
	} {
		t.Run(name, func(t *testing.T) {
			s := old.DeepCopy()
			c.change(&s.Spec)
			errs := validateStatefulSet(context.Background(), s, old)
			grouptest.WantErrors(t, errs, c.want...)
			for _, err := range errs {
				if strings.HasPrefix(c.want[0], grouptest.Invalid) && err.Detail != "field is immutable" {
					t.Errorf("detail %q", err.Detail)
				}
			}
		})
	}
	t.Run("scale an invalid one", func(t *testing.T) {
		old := old.DeepCopy()
		old.Spec.ServiceName = "a.b"
		old.Spec.Template.Spec.Containers[0].Image = ""
		s := old.DeepCopy()
		*s.Spec.Replicas = 0
		grouptest.WantErrors(t, validateStatefulSet(context.Background(), s, old))
	})
}

func TestValidateStatefulSetStatus(t *testing.T) {
	for text, want := range map[string][]string{
		"{replicas: 3, readyReplicas: 2, currentReplicas: 1, updatedReplicas: 2, availableReplicas: 2, observedGeneration: 1, collisionCount: 2}": nil,
		"{collisionCount: 1}": {grouptest.Invalid + "status.collisionCount"},
		"{collisionCount: 2, replicas: -1}": {grouptest.Invalid + "status.replicas",
			grouptest.Invalid + "status.readyReplicas", grouptest.Invalid + "status.currentReplicas",
			grouptest.Invalid + "status.updatedReplicas", grouptest.Invalid + "status.availableReplicas"},
		"{collisionCount: 2, readyReplicas: 1}":                  {grouptest.Invalid + "status.readyReplicas"},
		"{collisionCount: 2, currentReplicas: 1}":                {grouptest.Invalid + "status.currentReplicas"},
		"{collisionCount: 2, updatedReplicas: 1}":                {grouptest.Invalid + "status.updatedReplicas"},
		"{collisionCount: 2, replicas: 1, availableReplicas: 1}": {grouptest.Invalid + "status.availableReplicas"},
		"{collisionCount: 2, currentReplicas: -1}":               {grouptest.Invalid + "status.currentReplicas"},
		"{collisionCount: 2, observedGeneration: -1}":            {grouptest.Invalid + "status.observedGeneration"},
		"{collisionCount: -1}": {grouptest.Invalid + "status.collisionCount",
			grouptest.Invalid + "status.collisionCount"},
		"{collisionCount: 2, replicas: 1, availableReplicas: null}": nil,
	} {
		old := statefulSet(t, "status: {collisionCount: 2}")
		s := statefulSet(t, "status: "+text)
		t.Run(text, func(t *testing.T) {
			grouptest.WantErrors(t, validateStatefulSetStatus(context.Background(), s, old), want...)
		})
	}
}

func TestStatefulSetRowAndScale(t *testing.T) {
	s := statefulSet(t, meta+`
spec: {replicas: 3, selector: {matchLabels: {app: a, b: c}}, template: {spec: {containers: [{name: web, image: "nginx:1.21.6"}, {name: log, image: "log:2"}]}}}
status: {replicas: 4, readyReplicas: 2}
`)
	s.CreationTimestamp = grouptest.Ago(3 * time.Minute)
	grouptest.WantRow(t, statefulSets(), s, "d", "2/3", "3m", "web,log", "nginx:1.21.6,log:2")

	scale := statefulSets().(*resource.Kind[appsv1.StatefulSet]).Scale
	query, err := scale.Selector(s)
	if err != nil || query != "app=a,b=c" || *scale.Replicas(s) != 3 || scale.Observed(s) != 4 {
		t.Errorf("scale: selector %q (%v), %d desired, %d observed", query, err, *scale.Replicas(s), scale.Observed(s))
	}
}

func TestStatefulSetWarnings(t *testing.T) {
	old := statefulSet(t, smallest)
	s := statefulSet(t,
		meta+"spec: {revisionHistoryLimit: -1, "+selector+
			", template: {metadata: {labels: {app: a}}, spec: {imagePullSecrets: [{name: ''}], containers: [{name: a, image: i}]}},"+
			"volumeClaimTemplates: [{metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 100m}}}}]}")
	history := "spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended"
	size := `spec.volumeClaimTemplates[0].spec.resources.requests[storage]: fractional byte value "100m" is invalid, must be an integer`
	secret := `spec.template.spec.imagePullSecrets[0].name: invalid empty name ""`
	if diff := cmp.Diff([]string{secret, size, history},
		statefulSetWarnings(context.Background(), s, nil)); diff != "" {
		t.Errorf("create (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{size, history}, statefulSetWarnings(context.Background(), s, old)); diff != "" {
		t.Errorf("the generation stays (-want +got):\n%s", diff)
	}
	s.Generation = old.Generation + 1
	if diff := cmp.Diff([]string{secret, size, history},
		statefulSetWarnings(context.Background(), s, old)); diff != "" {
		t.Errorf("update (-want +got):\n%s", diff)
	}
}
