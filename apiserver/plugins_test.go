package apiserver

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	nodev1 "k8s.io/api/node/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// newNamespace makes a namespace in which pods can be created.
func newNamespace(t *testing.T, c *cluster, name string) {
	t.Helper()
	must(
		c.admin.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}},
			metav1.CreateOptions{}))(t)
	must(
		c.admin.CoreV1().ServiceAccounts(name).Create(t.Context(),
			&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}))(t)
}

func testLimits(t *testing.T, c *cluster) {
	ctx := t.Context()
	newNamespace(t, c, "limits")
	must(
		c.admin.CoreV1().LimitRanges("limits").Create(ctx,
			&corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Name: "l"},
				Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{{
					Type: corev1.LimitTypeContainer, Max: corev1.ResourceList{"cpu": resource.MustParse("1")},
					DefaultRequest: corev1.ResourceList{"cpu": resource.MustParse("100m")},
				}}}}, metav1.CreateOptions{}))(t)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: podSpec()}
	made := must(c.admin.CoreV1().Pods("limits").Create(ctx, pod, metav1.CreateOptions{}))(t)
	r := made.Spec.Containers[0].Resources
	if r.Requests.Cpu().String() != "100m" || r.Limits.Cpu().String() != "1" ||
		!strings.HasPrefix(made.Annotations["kubernetes.io/limit-ranger"],
			"LimitRanger plugin set: cpu request for container ") {
		t.Errorf("got %v, %v", r, made.Annotations)
	}
	pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{"cpu": resource.MustParse("2")}
	if _, err := c.admin.CoreV1().Pods("limits").Create(ctx, pod,
		metav1.CreateOptions{}); !apierrors.IsForbidden(err) ||
		!strings.Contains(err.Error(), "maximum cpu usage per Container is 1, but limit is 2") {
		t.Errorf("above the maximum: %v", err)
	}
}

func testQuota(t *testing.T, c *cluster) {
	ctx, maps, quotas := t.Context(), c.admin.CoreV1().ConfigMaps("quota"), c.admin.CoreV1().ResourceQuotas("quota")
	newNamespace(t, c, "quota")
	hard := corev1.ResourceList{"count/configmaps": resource.MustParse("5")}
	q := must(
		quotas.Create(ctx,
			&corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: "q"}, Spec: corev1.ResourceQuotaSpec{Hard: hard}},
			metav1.CreateOptions{}))(t)
	q.Status = corev1.ResourceQuotaStatus{Hard: hard,
		Used: corev1.ResourceList{"count/configmaps": resource.MustParse("0")}}
	must(quotas.UpdateStatus(ctx, q, metav1.UpdateOptions{}))(t)
	eventually(t, "the server has heard of the quota", func(ctx context.Context) error {
		_, err := maps.Create(ctx, configMap("first", nil), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			return err
		}
		known, err := c.informers.Core().V1().ResourceQuotas().Lister().ResourceQuotas("quota").Get("q")
		if err == nil && known.Status.Hard == nil {
			err = fmt.Errorf("without its status")
		}
		return err
	})
	var all sync.WaitGroup
	var mu sync.Mutex
	made := 0
	for i := range 20 {
		all.Go(func() {
			_, err := maps.Create(ctx, configMap(fmt.Sprintf("m%d", i), nil), metav1.CreateOptions{})
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				made++
			} else if !apierrors.IsForbidden(err) ||
				!strings.Contains(err.Error(),
					"exceeded quota: q, requested: count/configmaps=1, used: count/configmaps=5, limited: count/configmaps=5") {
				t.Errorf("refused by %v", err)
			}
		})
	}
	all.Wait()
	charged := must(quotas.Get(ctx, "q", metav1.GetOptions{}))(t)
	if used := charged.Status.Used["count/configmaps"]; made != 5 || used.Value() != 5 {
		t.Errorf("%d are there, charged are %s", made, used.String())
	}
}

// testDefaults checks the effects of the default plugins on objects.
func testDefaults(t *testing.T, c *cluster) {
	ctx := t.Context()
	newNamespace(t, c, "defaults")
	marked := map[string]string{networkingv1.AnnotationIsDefaultIngressClass: "true",
		"storageclass.kubernetes.io/is-default-class": "true"}
	must(
		c.admin.NetworkingV1().IngressClasses().Create(ctx,
			&networkingv1.IngressClass{ObjectMeta: metav1.ObjectMeta{Name: "i", Annotations: marked},
				Spec: networkingv1.IngressClassSpec{Controller: "example.com/i"}}, metav1.CreateOptions{}))(t)
	must(
		c.admin.StorageV1().StorageClasses().Create(ctx,
			&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "s", Annotations: marked},
				Provisioner: "example.com/s"}, metav1.CreateOptions{}))(t)
	must(
		c.admin.NodeV1().RuntimeClasses().Create(ctx,
			&nodev1.RuntimeClass{ObjectMeta: metav1.ObjectMeta{Name: "r"}, Handler: "r",
				Overhead: &nodev1.Overhead{PodFixed: corev1.ResourceList{"cpu": resource.MustParse("10m")}}},
			metav1.CreateOptions{}))(t)
	backend := &networkingv1.IngressBackend{
		Service: &networkingv1.IngressServiceBackend{Name: "s", Port: networkingv1.ServiceBackendPort{Number: 80}}}
	eventually(t, "ingresses get the class", func(ctx context.Context) error {
		made, err := c.admin.NetworkingV1().Ingresses("defaults").Create(ctx,
			&networkingv1.Ingress{ObjectMeta: metav1.ObjectMeta{GenerateName: "i"},
				Spec: networkingv1.IngressSpec{DefaultBackend: backend}}, metav1.CreateOptions{})
		if err == nil && ptr.Deref(made.Spec.IngressClassName, "") != "i" {
			err = fmt.Errorf("class %v", made.Spec.IngressClassName)
		}
		return err
	})
	eventually(t, "claims get the class", func(ctx context.Context) error {
		made, err := c.admin.CoreV1().PersistentVolumeClaims("defaults").Create(ctx,
			&corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{GenerateName: "c"},
				Spec: corev1.PersistentVolumeClaimSpec{
					AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
					Resources: corev1.VolumeResourceRequirements{
						Requests: corev1.ResourceList{"storage": resource.MustParse("1Gi")}},
				}}, metav1.CreateOptions{})
		if err == nil && ptr.Deref(made.Spec.StorageClassName, "") != "s" {
			err = fmt.Errorf("class %v", made.Spec.StorageClassName)
		}
		return err
	})
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: podSpec()}
	pod.Spec.RuntimeClassName = ptr.To("r")
	made := must(c.admin.CoreV1().Pods("defaults").Create(ctx, pod, metav1.CreateOptions{}))(t)
	if made.Spec.Overhead.Cpu().String() != "10m" {
		t.Errorf("overhead %v", made.Spec.Overhead)
	}
	node := must(
		c.admin.CoreV1().Nodes().Create(ctx,
			&corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: "zoned", Labels: map[string]string{corev1.LabelTopologyZone: "z"}}},
			metav1.CreateOptions{}))(t)
	if len(node.Spec.Taints) != 1 ||
		node.Spec.Taints[0] != (corev1.Taint{Key: "node.kubernetes.io/not-ready",
			Effect: corev1.TaintEffectNoSchedule}) {
		t.Errorf("taints of a new node: %v", node.Spec.Taints)
	}
	eventually(t, "the server has heard of the node", func(context.Context) error {
		_, err := c.informers.Core().V1().Nodes().Lister().Get("zoned")
		return err
	})
	if err := c.admin.CoreV1().Pods("defaults").Bind(ctx,
		&corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: "p"},
			Target: corev1.ObjectReference{Kind: "Node", Name: "zoned"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if bound := must(c.admin.CoreV1().Pods("defaults").Get(ctx, "p", metav1.GetOptions{}))(
		t); bound.Labels[corev1.LabelTopologyZone] != "z" {
		t.Errorf("labels of a bound pod: %v", bound.Labels)
	}
}
