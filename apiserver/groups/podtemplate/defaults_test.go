package podtemplate

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/groups/grouptest"
)

// parse reads a pod spec as a user writes it.
func parse(t *testing.T, text string) *corev1.PodSpec {
	t.Helper()
	return grouptest.Parse[corev1.PodSpec](t, text)
}

func TestDefaultSpec(t *testing.T) {
	for name, c := range map[string]struct{ in, want string }{
		"smallest": {
			in: `
containers: [{name: a, image: nginx}]
`,
			want: `
containers:
- {name: a, image: nginx, imagePullPolicy: Always, terminationMessagePath: /dev/termination-log, terminationMessagePolicy: File, resources: {}}
dnsPolicy: ClusterFirst
restartPolicy: Always
schedulerName: default-scheduler
securityContext: {}
terminationGracePeriodSeconds: 30
`,
		},
		"what is set stays": {
			in: `
containers: [{name: a, image: "nginx:1.21.6", imagePullPolicy: Never, terminationMessagePath: /x, terminationMessagePolicy: FallbackToLogsOnError}]
dnsPolicy: Default
restartPolicy: Never
schedulerName: mine
securityContext: {runAsUser: 5}
terminationGracePeriodSeconds: 0
serviceAccount: old-name
`,
			want: `
containers:
- {name: a, image: "nginx:1.21.6", imagePullPolicy: Never, terminationMessagePath: /x, terminationMessagePolicy: FallbackToLogsOnError, resources: {}}
dnsPolicy: Default
restartPolicy: Never
schedulerName: mine
securityContext: {runAsUser: 5}
terminationGracePeriodSeconds: 0
serviceAccount: old-name
serviceAccountName: old-name
`,
		},
		"inside of containers and volumes": {
			in: `
initContainers: [{name: i, image: "busybox:1"}]
containers:
- name: a
  image: "nginx:1"
  ports: [{containerPort: 80}]
  env: [{name: E, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
  livenessProbe: {httpGet: {port: 80}}
  readinessProbe: {grpc: {port: 81}, periodSeconds: 2}
  lifecycle: {preStop: {httpGet: {port: web}}}
volumes:
- {name: empty}
- {name: host, hostPath: {path: /h}}
- {name: secret, secret: {secretName: s}}
- {name: cm, configMap: {name: c}}
- {name: down, downwardAPI: {items: [{path: p, fieldRef: {fieldPath: metadata.labels}}]}}
- {name: projected, projected: {sources: [{serviceAccountToken: {path: token}}, {downwardAPI: {items: [{path: p, fieldRef: {fieldPath: metadata.name}}]}}]}}
- {name: image, image: {reference: "r/i:2"}}
`,
			want: `
initContainers:
- {name: i, image: "busybox:1", imagePullPolicy: IfNotPresent, terminationMessagePath: /dev/termination-log, terminationMessagePolicy: File, resources: {}}
containers:
- name: a
  image: "nginx:1"
  imagePullPolicy: IfNotPresent
  terminationMessagePath: /dev/termination-log
  terminationMessagePolicy: File
  resources: {}
  ports: [{containerPort: 80, protocol: TCP}]
  env: [{name: E, valueFrom: {fieldRef: {apiVersion: v1, fieldPath: metadata.name}}}]
  livenessProbe: {httpGet: {port: 80, path: /, scheme: HTTP}, timeoutSeconds: 1, periodSeconds: 10, successThreshold: 1, failureThreshold: 3}
  readinessProbe: {grpc: {port: 81, service: ""}, timeoutSeconds: 1, periodSeconds: 2, successThreshold: 1, failureThreshold: 3}
  lifecycle: {preStop: {httpGet: {port: web, path: /, scheme: HTTP}}}
volumes:
- {name: empty, emptyDir: {}}
- {name: host, hostPath: {path: /h, type: ""}}
- {name: secret, secret: {secretName: s, defaultMode: 420}}
- {name: cm, configMap: {name: c, defaultMode: 420}}
- {name: down, downwardAPI: {defaultMode: 420, items: [{path: p, fieldRef: {apiVersion: v1, fieldPath: metadata.labels}}]}}
- {name: projected, projected: {defaultMode: 420, sources: [{serviceAccountToken: {path: token, expirationSeconds: 3600}}, {downwardAPI: {items: [{path: p, fieldRef: {apiVersion: v1, fieldPath: metadata.name}}]}}]}}
- {name: image, image: {reference: "r/i:2", pullPolicy: IfNotPresent}}
dnsPolicy: ClusterFirst
restartPolicy: Always
schedulerName: default-scheduler
securityContext: {}
terminationGracePeriodSeconds: 30
`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := parse(t, c.in)
			DefaultSpec(got)
			want := parse(t, c.want)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("defaults differ (-want +got):\n%s", diff)
			}
			DefaultSpec(got)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("defaulting twice differs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDefaultPodSpec(t *testing.T) {
	spec := parse(t, `
hostNetwork: true
containers:
- name: a
  image: nginx:1
  ports: [{containerPort: 80}, {containerPort: 81, hostPort: 81}]
  resources: {limits: {cpu: "1", memory: 1Gi}, requests: {cpu: 500m}}
`)
	DefaultPodSpec(spec)
	if !ptr.Deref(spec.EnableServiceLinks, false) {
		t.Error("enableServiceLinks is not true")
	}
	if got := spec.Containers[0].Ports[0].HostPort; got != 80 {
		t.Errorf("hostPort on the host network is %d, want 80", got)
	}
	requests := spec.Containers[0].Resources.Requests
	if got := requests[corev1.ResourceMemory]; got.Cmp(resource.MustParse("1Gi")) != 0 {
		t.Errorf("memory request is %s, want the limit", got.String())
	}
	if got := requests[corev1.ResourceCPU]; got.Cmp(resource.MustParse("500m")) != 0 {
		t.Errorf("cpu request is %s, want what was asked for", got.String())
	}
}

func TestPullPolicy(t *testing.T) {
	const digest = "@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
	for image, want := range map[string]corev1.PullPolicy{
		"nginx":                            corev1.PullAlways,
		"nginx:latest":                     corev1.PullAlways,
		"registry:5000/nginx":              corev1.PullAlways,
		"nginx:latest" + digest:            corev1.PullAlways,
		"nginx:1.21.6":                     corev1.PullIfNotPresent,
		"UPPER CASE":                       corev1.PullIfNotPresent,
		"":                                 corev1.PullIfNotPresent,
		"registry:5000/a/nginx:1":          corev1.PullIfNotPresent,
		"nginx" + digest:                   corev1.PullIfNotPresent,
		"registry:5000/a/nginx:1" + digest: corev1.PullIfNotPresent,
	} {
		if got := PullPolicy(image); got != want {
			t.Errorf("%s: %s, want %s", image, got, want)
		}
	}
}

func TestQOSClass(t *testing.T) {
	for name, c := range map[string]struct {
		spec string
		want corev1.PodQOSClass
	}{
		"nothing": {`containers: [{name: a}]`, corev1.PodQOSBestEffort},
		"other resources": {`containers: [{name: a, resources: {limits: {ephemeral-storage: 1Gi}}}]`,
			corev1.PodQOSBestEffort},
		"request": {`containers: [{name: a, resources: {requests: {cpu: 1}}}]`, corev1.PodQOSBurstable},
		"limits of both": {`containers: [{name: a, resources: {limits: {cpu: 1, memory: 1Gi}}}]`,
			corev1.PodQOSGuaranteed},
		"limits and requests": {
			`containers: [{name: a, resources: {limits: {cpu: 1, memory: 1Gi}, requests: {cpu: 1, memory: 1Gi}}}]`,
			corev1.PodQOSGuaranteed},
		"lower request": {
			`containers: [{name: a, resources: {limits: {cpu: 1, memory: 1Gi}, requests: {cpu: 1, memory: 1Mi}}}]`,
			corev1.PodQOSBurstable},
		"memory not limited": {`containers: [{name: a, resources: {limits: {cpu: 1}}}]`, corev1.PodQOSBurstable},
		"one of two containers": {`containers: [{name: a, resources: {limits: {cpu: 1, memory: 1Gi}}}, {name: b}]`,
			corev1.PodQOSBurstable},
		"init container without": {
			`{initContainers: [{name: i}], containers: [{name: a, resources: {limits: {cpu: 1, memory: 1Gi}}}]}`,
			corev1.PodQOSBurstable},
		"pod level": {`{resources: {limits: {cpu: 1, memory: 1Gi}}, containers: [{name: a}]}`,
			corev1.PodQOSGuaranteed},
	} {
		if got := QOSClass(parse(t, c.spec)); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}
