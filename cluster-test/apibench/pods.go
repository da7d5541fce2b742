package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/barque/barque/cluster-test/kubeapiserver"
)

const podsPath = "/api/v1/namespaces/" + made + "/pods"

// makeAccount makes the ServiceAccount that pods need. Upstream's servers have no controller that
// would. Where there is one, it may be as fast: so it waits until a pod can be made.
func (l *load) makeAccount(ctx context.Context) error {
	account, err := inJSON.encode(&corev1.ServiceAccount{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "ServiceAccount"},
		ObjectMeta: metav1.ObjectMeta{Namespace: made, Name: "default"},
	})
	if err != nil {
		return err
	}
	accountErr := l.clients[0].do(ctx, http.MethodPost, strings.TrimSuffix(podsPath, "pods")+"serviceaccounts", inJSON,
		account)
	for _, c := range l.clients[:len(l.Servers)] { // each server sees it when it does
		err := kubeapiserver.Retry(ctx, nil, func() error { return c.createPod(ctx, "trial", "", "?dryRun=All") })
		if err != nil {
			return errors.Join(err, accountErr)
		}
	}
	return nil
}

// createPods makes n pods, of which number i is bound to the node of that number, and returns their
// names. No scheduler takes those that have none.
func (l *load) createPods(ctx context.Context, n int, node func(i int) string) ([]string, error) {
	first := l.names.Add(int64(n)) - int64(n)
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("web-%d", first+int64(i))
	}
	return names, l.each(ctx, n, "pods", func(ctx context.Context, client, i int) error {
		return l.clients[client].createPod(ctx, names[i], node(i), "")
	})
}

func (c connection) createPod(ctx context.Context, name, node, query string) error {
	body, err := inProtobuf.encode(pod(name, node))
	if err != nil {
		return err
	}
	return c.do(ctx, http.MethodPost, podsPath+query, inProtobuf, body)
}

// updateStatus writes the status of a pod, as a kubelet does. No two clients may write one at the
// same time.
func (c connection) updateStatus(ctx context.Context, name, node string) error {
	p := pod(name, node)
	p.Status = corev1.PodStatus{
		Phase: corev1.PodPending,
		Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionTrue},
			{Type: corev1.PodReady, Status: corev1.ConditionFalse, Reason: "ContainersNotReady",
				Message: fmt.Sprintf("containers with unready status: [web proxy], %016x", rand.Uint64())},
		},
	}
	body, err := inProtobuf.encode(p)
	if err != nil {
		return err
	}
	return c.do(ctx, http.MethodPut, podsPath+"/"+name+"/status", inProtobuf, body)
}

// pod is as large as those of a Deployment with a sidecar, without an owner: a garbage collector
// would miss that.
func pod(name, node string) *corev1.Pod {
	container := func(name, image string, port int32) corev1.Container {
		c := corev1.Container{
			Name: name, Image: image, ImagePullPolicy: corev1.PullIfNotPresent,
			Ports: []corev1.ContainerPort{{Name: name, ContainerPort: port, Protocol: corev1.ProtocolTCP}},
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"),
					corev1.ResourceMemory: resource.MustParse("128Mi")},
				Limits: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("256Mi")},
			},
			ReadinessProbe: &corev1.Probe{
				ProbeHandler: corev1.ProbeHandler{
					HTTPGet: &corev1.HTTPGetAction{Path: "/ready", Port: intstr.FromInt32(port)}}, PeriodSeconds: 10},
			LivenessProbe: &corev1.Probe{
				ProbeHandler: corev1.ProbeHandler{
					HTTPGet: &corev1.HTTPGetAction{Path: "/live", Port: intstr.FromInt32(port)}}, PeriodSeconds: 20},
			VolumeMounts: []corev1.VolumeMount{{Name: "config", MountPath: "/etc/web", ReadOnly: true},
				{Name: "data", MountPath: "/var/lib/web"}},
			Env: []corev1.EnvVar{
				{Name: "POD_NAME",
					ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name"}}},
				{Name: "POD_IP",
					ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.podIP"}}},
			},
		}
		for _, setting := range []string{"LOG_LEVEL", "DATABASE_HOST", "CACHE_HOST", "REGION", "TRACE_ENDPOINT"} {
			c.Env = append(c.Env,
				corev1.EnvVar{Name: setting, Value: strings.ToLower(setting) + ".web.svc.cluster.local"})
		}
		return c
	}
	return &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: made, Name: name,
			Labels: map[string]string{
				"app.kubernetes.io/name": "web", "app.kubernetes.io/instance": "web-production",
				"app.kubernetes.io/version":   "1.24.3",
				"app.kubernetes.io/component": "frontend", "app.kubernetes.io/part-of": "shop",
				"pod-template-hash": "7c5d8bf9f7",
			},
			Annotations: map[string]string{
				"prometheus.io/scrape": "true", "prometheus.io/port": "9090",
				"checksum/config": "8f14e45fceea167a5a36dedd4bea2543cf2f8f3e4c3b1d2a1f0e9d8c7b6a5948",
			},
		},
		Spec: corev1.PodSpec{
			SchedulerName: "nobody", NodeName: node,
			Containers: []corev1.Container{container("web", "registry.example.com/shop/web:1.24.3", 8080),
				container("proxy", "registry.example.com/mesh/proxy:2.8.0", 15020)},
			Volumes: []corev1.Volume{
				{Name: "config",
					VolumeSource: corev1.VolumeSource{
						ConfigMap: &corev1.ConfigMapVolumeSource{
							LocalObjectReference: corev1.LocalObjectReference{Name: "web-config"}}}},
				{Name: "data", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
			},
		},
	}
}
