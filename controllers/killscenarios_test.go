package controllers_test

import (
	"cmp"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	batchv1 "k8s.io/api/batch/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	migrationv1 "k8s.io/api/storagemigration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/controllers/certificates"
	"github.com/barque/barque/controllers/controllertest"
	"github.com/barque/barque/controllers/noderole"
	"github.com/barque/barque/internal/localpv"
)

//lint:file-ignore SA1019 Endpoints are deprecated, and still written by users and by two controllers.

// on makes a pod with a container that uses CPU, on a node.
func on(node, name string, owners ...metav1.OwnerReference) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: named(name), Spec: template().Spec}
	pod.Labels, pod.OwnerReferences, pod.Spec.NodeName = labelled, owners, node
	return pod
}

func configMap(name string, owners ...metav1.OwnerReference) *corev1.ConfigMap {
	m := &corev1.ConfigMap{ObjectMeta: named(name)}
	m.OwnerReferences = owners
	return m
}

func amounts(pairs ...string) corev1.ResourceList {
	list := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		list[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return list
}

// remove deletes an object by a typed client.
func remove(t *testing.T, client interface {
	Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error
}, name string, policy ...metav1.DeletionPropagation) {
	t.Helper()
	var opts metav1.DeleteOptions
	for _, p := range policy {
		opts.PropagationPolicy = &p
	}
	if err := client.Delete(t.Context(), name, opts); err != nil {
		t.Fatal(err)
	}
}

// gone reports whether an object has gone.
func gone[T any](t *testing.T, client interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*T, error)
}, names ...string) error {
	for _, name := range names {
		if obj, err := client.Get(t.Context(), name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("%s is there, or %v: %+v", name, err, obj)
		}
	}
	return nil
}

// there reports whether objects are there.
func there[T any](t *testing.T, client interface {
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*T, error)
}, names ...string) error {
	for _, name := range names {
		if _, err := client.Get(t.Context(), name, metav1.GetOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// vanish deletes a pod without grace.
func vanish(t *testing.T, c *controllertest.Cluster, name string) {
	t.Helper()
	if err := c.Client.CoreV1().Pods("d").Delete(t.Context(), name,
		metav1.DeleteOptions{GracePeriodSeconds: pointer(int64(0))}); err != nil {
		t.Fatal(err)
	}
}

// driver says of new attachments a second later that they are done, as a driver does.
func driver(t *testing.T, c *controllertest.Cluster) {
	t.Helper()
	_, err := c.Informers.Storage().V1().VolumeAttachments().Informer().AddEventHandler(
		cache.ResourceEventHandlerFuncs{AddFunc: func(obj any) {
			name := obj.(*storagev1.VolumeAttachment).Name
			time.AfterFunc(time.Second, func() { // brief: virtual time
				a, err := c.Client.StorageV1().VolumeAttachments().Get(context.Background(), name, metav1.GetOptions{})
				if err != nil {
					return
				}
				a.Status.Attached = true
				_, _ = c.Client.StorageV1().VolumeAttachments().UpdateStatus(context.Background(), a,
					metav1.UpdateOptions{}) // a conflict is one of another end
			})
		}})
	if err != nil {
		t.Fatal(err)
	}
}

func moreWorkloadScenarios() []scenario {
	now := metav1.Now
	return []scenario{
		{
			name: "a ReplicationController grows", controllers: "replicationcontroller", takes: time.Minute,
			objects: func() []kruntime.Object {
				pods := template()
				return []kruntime.Object{
					&corev1.ReplicationController{ObjectMeta: named("rc"),
						Spec: corev1.ReplicationControllerSpec{Replicas: pointer(int32(1)), Selector: labelled,
							Template: &pods}}}
			},
			change: func(t *testing.T, c *controllertest.Cluster) {
				edit(t, c.Client.CoreV1().ReplicationControllers("d"), "rc",
					func(r *corev1.ReplicationController) { r.Spec.Replicas = pointer(int32(4)) })
			},
			check: func(
				t *testing.T, c *controllertest.Cluster, l *ledger,
			) error {
				return expectPods(t, c, l, 4, 3, 0)
			},
		},
		{
			name: "a Job's time passes", controllers: "ttlafterfinished,garbagecollector", takes: 3 * time.Minute,
			objects: func() []kruntime.Object {
				job := func(name string, kept int32) *batchv1.Job {
					return &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: name, UID: types.UID(name)},
						Spec: batchv1.JobSpec{TTLSecondsAfterFinished: &kept},
						Status: batchv1.JobStatus{CompletionTime: pointer(now()),
							Conditions: []batchv1.JobCondition{
								{Type: batchv1.JobComplete, Status: corev1.ConditionTrue, LastTransitionTime: now()}}}}
				}
				short, long := job("short", 150), job("long", 3600)
				ref := func(j *batchv1.Job) metav1.OwnerReference {
					return *metav1.NewControllerRef(j, batchv1.SchemeGroupVersion.WithKind("Job"))
				}
				return []kruntime.Object{short, long, on("n1", "a", ref(short)), on("n1", "b", ref(long))}
			},
			change: func(*testing.T, *controllertest.Cluster) {},
			check: func(t *testing.T, c *controllertest.Cluster, l *ledger) error {
				return cmp.Or(gone(t, c.Client.BatchV1().Jobs("d"), "short"), gone(t, c.Client.CoreV1().Pods("d"), "a"),
					there(t, c.Client.BatchV1().Jobs("d"), "long"), there(t, c.Client.CoreV1().Pods("d"), "b"),
					once(l.deleted, "jobs", 1), once(l.deleted, "pods", 1))
			},
		},
		{
			name: "an autoscaler follows its load", controllers: "hpa,replicaset", takes: 15 * time.Minute, load: 1600,
			objects: func() []kruntime.Object {
				pods := template()
				pods.Spec.Containers[0].Resources.Requests = corev1.ResourceList{
					corev1.ResourceCPU: *resource.NewMilliQuantity(requested, resource.DecimalSI)}
				return []kruntime.Object{
					&appsv1.ReplicaSet{ObjectMeta: named("rs"),
						Spec: appsv1.ReplicaSetSpec{Replicas: pointer(int32(2)), Selector: selects(), Template: pods}},
					&autoscalingv2.HorizontalPodAutoscaler{ObjectMeta: named("rs"),
						Spec: autoscalingv2.HorizontalPodAutoscalerSpec{
							ScaleTargetRef: autoscalingv2.CrossVersionObjectReference{APIVersion: "apps/v1",
								Kind: "ReplicaSet", Name: "rs"}, MinReplicas: pointer(int32(1)), MaxReplicas: 10,
							Metrics: []autoscalingv2.MetricSpec{
								{Type: autoscalingv2.ResourceMetricSourceType,
									Resource: &autoscalingv2.ResourceMetricSource{Name: corev1.ResourceCPU,
										Target: autoscalingv2.MetricTarget{Type: autoscalingv2.UtilizationMetricType,
											AverageUtilization: pointer(int32(50))}}}},
						}},
				}
			},
			change: func(*testing.T, *controllertest.Cluster) {},
			check: func(t *testing.T, c *controllertest.Cluster, l *ledger) error {
				a, err := c.Client.AutoscalingV2().HorizontalPodAutoscalers("d").Get(t.Context(), "rs",
					metav1.GetOptions{})
				if err != nil {
					return err
				}
				if a.Status.DesiredReplicas != 8 || a.Status.CurrentReplicas != 8 {
					return fmt.Errorf("status %+v", a.Status)
				}
				return expectPods(t, c, l, 8, 6, 0)
			},
		},
	}
}

func networkScenarios() []scenario {
	cidr := func(name, block string) *networkingv1.ServiceCIDR {
		return &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: networkingv1.ServiceCIDRSpec{CIDRs: []string{block}}}
	}
	return []scenario{
		{
			name: "a ServiceCIDR comes and another goes", controllers: "servicecidr", takes: time.Minute,
			objects: func() []kruntime.Object {
				address := &networkingv1.IPAddress{
					ObjectMeta: metav1.ObjectMeta{Name: "10.44.0.9",
						Labels: map[string]string{networkingv1.LabelManagedBy: "ipallocator.k8s.io"}}}
				return []kruntime.Object{cidr("stays", "10.43.0.0/16"), cidr("goes", "10.44.0.0/16"),
					cidr("used", "10.45.0.0/16"), address,
					&networkingv1.IPAddress{ObjectMeta: metav1.ObjectMeta{Name: "10.45.0.9", Labels: address.Labels}}}
			},
			change: func(t *testing.T, c *controllertest.Cluster) {
				cidrs := c.Client.NetworkingV1().ServiceCIDRs()
				add(t, cidrs, cidr("new", "10.46.0.0/16"))
				remove(t, cidrs, "goes")
				remove(t, cidrs, "used")
				remove(t, c.Client.NetworkingV1().IPAddresses(), "10.44.0.9")
			},
			check: func(t *testing.T, c *controllertest.Cluster, _ *ledger) error {
				cidrs := c.Client.NetworkingV1().ServiceCIDRs()
				made, err := cidrs.Get(t.Context(), "new", metav1.GetOptions{})
				if err != nil {
					return err
				}
				if len(made.Finalizers) != 1 ||
					!meta.IsStatusConditionTrue(made.Status.Conditions, networkingv1.ServiceCIDRConditionReady) {
					return fmt.Errorf("the new one: %+v", made)
				}
				used, err := cidrs.Get(t.Context(), "used", metav1.GetOptions{})
				if err != nil {
					return err
				}
				if !meta.IsStatusConditionFalse(used.Status.Conditions, networkingv1.ServiceCIDRConditionReady) {
					return fmt.Errorf("one that is used, and deleted: %+v", used)
				}
				return gone(t, cidrs, "goes")
			},
		},
		{
			name: "Endpoints are mirrored", controllers: "endpointslicemirroring", takes: time.Minute,
			objects: func() []kruntime.Object {
				return []kruntime.Object{
					&corev1.Service{ObjectMeta: named("db"), Spec: corev1.ServiceSpec{ClusterIP: "10.43.0.9"}}}
			},
			change: func(t *testing.T, c *controllertest.Cluster) {
				add(t, c.Client.CoreV1().Endpoints("d"),
					&corev1.Endpoints{ObjectMeta: named("db"), Subsets: []corev1.EndpointSubset{{
						Addresses: []corev1.EndpointAddress{{IP: "10.0.0.1"}, {IP: "fd00::1"}},
						Ports:     []corev1.EndpointPort{{Port: 5432}}}}})
			},
			check: func(t *testing.T, c *controllertest.Cluster, _ *ledger) error {
				list, err := c.Client.DiscoveryV1().EndpointSlices("d").List(t.Context(), metav1.ListOptions{})
				if err != nil || len(list.Items) != 2 {
					return fmt.Errorf("%d slices of two families, %v", len(list.Items), err)
				}
				return nil
			},
		},
		{
			name: "the API's own endpoints are deleted", controllers: "apiendpoints", takes: time.Minute, objects: none,
			change: func(t *testing.T, c *controllertest.Cluster) {
				remove(t, c.Client.CoreV1().Endpoints("default"), "kubernetes")
				list, err := c.Client.DiscoveryV1().EndpointSlices("default").List(t.Context(), metav1.ListOptions{})
				if err != nil {
					t.Fatal(err)
				}
				for _, s := range list.Items {
					remove(t, c.Client.DiscoveryV1().EndpointSlices("default"), s.Name)
				}
			},
			check: func(t *testing.T, c *controllertest.Cluster, _ *ledger) error {
				list, err := c.Client.DiscoveryV1().EndpointSlices("default").List(t.Context(), metav1.ListOptions{})
				if err != nil || len(list.Items) != 1 ||
					!slices.Equal(list.Items[0].Endpoints[0].Addresses, []string{"10.0.0.1"}) {
					return fmt.Errorf("slices %+v, %v", list.Items, err)
				}
				return there(t, c.Client.CoreV1().Endpoints("default"), "kubernetes")
			},
		},
	}
}

func nodeScenarios() []scenario {
	return []scenario{
		{
			name: "a node dies", controllers: "nodelifecycle", takes: 4 * time.Minute, dies: "n1",
			objects: func() []kruntime.Object {
				return append(nodesOf("n1", "n2", "n3"), on("n1", "a"), on("n1", "b"), on("n2", "c"))
			},
			change: func(*testing.T, *controllertest.Cluster) {},
			check: func(t *testing.T, c *controllertest.Cluster, l *ledger) error {
				node, err := c.Client.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
				if err != nil {
					return err
				}
				var taints []string
				for _, taint := range node.Spec.Taints {
					taints = append(taints, taint.ToString())
				}
				slices.Sort(taints)
				if !slices.Equal(taints,
					[]string{"node.kubernetes.io/unreachable:NoExecute",
						"node.kubernetes.io/unreachable:NoSchedule"}) ||
					node.Status.Conditions[0].Status != corev1.ConditionUnknown {
					return fmt.Errorf("taints %v, conditions %+v", taints, node.Status.Conditions)
				}
				if well, err := c.Client.CoreV1().Nodes().Get(t.Context(), "n2", metav1.GetOptions{}); err != nil ||
					len(well.Spec.Taints) > 0 {
					return fmt.Errorf("a node that lives: %+v, %v", well, err)
				}
				return expectPods(t, c, l, 1, 0, 2)
			},
		},
		{
			name: "load balancers", controllers: "servicelb", takes: time.Minute,
			objects: func() []kruntime.Object {
				return []kruntime.Object{loadBalancer("kept", "192.0.2.1"), loadBalancer("gone", "192.0.2.2")}
			},
			change: func(t *testing.T, c *controllertest.Cluster) {
				for _, name := range []string{"a", "b", "c"} {
					add(t, c.Client.CoreV1().Services("d"), loadBalancer(name))
				}
				other := loadBalancer("other")
				other.Spec.LoadBalancerClass = pointer("example.com/other")
				add(t, c.Client.CoreV1().Services("d"), other)
				remove(t, c.Client.CoreV1().Services("d"), "gone")
			},
			check: func(t *testing.T, c *controllertest.Cluster, _ *ledger) error {
				list, err := c.Client.CoreV1().Services("d").List(t.Context(), metav1.ListOptions{})
				if err != nil {
					return err
				}
				owners := map[string]string{}
				for _, s := range list.Items {
					in := s.Status.LoadBalancer.Ingress
					switch {
					case s.Name == "other" && len(in) == 0:
					case len(in) != 1 || owners[in[0].IP] != "":
						return fmt.Errorf("%s has %v, of %v", s.Name, in, owners)
					default:
						owners[in[0].IP] = s.Name
					}
				}
				if len(owners) != 4 || owners["192.0.2.1"] != "kept" {
					return fmt.Errorf("the addresses are those of %v", owners)
				}
				return nil
			},
		},
		{
			name: "servers join", controllers: "noderole", takes: time.Minute,
			objects: func() []kruntime.Object { return nodesOf("n1") },
			change: func(t *testing.T, c *controllertest.Cluster) {
				for _, name := range []string{"server-1", "server-2", "n2"} {
					add(t, c.Client.CoreV1().Nodes(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})
				}
			},
			check: func(t *testing.T, c *controllertest.Cluster, _ *ledger) error {
				list, err := c.Client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
				if err != nil {
					return err
				}
				for _, n := range list.Items {
					if _, is := n.Labels[noderole.Label]; is != strings.HasPrefix(n.Name, "server-") {
						return fmt.Errorf("node %s is marked as a server: %t", n.Name, is)
					}
				}
				return nil
			},
		},
		{
			name: "a Node is deleted", controllers: "podgc", takes: 2 * time.Minute,
			objects: func() []kruntime.Object {
				return append(nodesOf("n1", "n2"), on("n2", "a"), on("n2", "b"), on("n1", "c"))
			},
			change: func(t *testing.T, c *controllertest.Cluster) { remove(t, c.Client.CoreV1().Nodes(), "n2") },
			check: func(t *testing.T, c *controllertest.Cluster, l *ledger) error {
				return cmp.Or(expectPods(t, c, l, 1, 0, 2), once(l.deleted, "pods", 2),
					there(t, c.Client.CoreV1().Pods("d"), "c"))
			},
		},
	}
}

func clusterScenarios() []scenario {
	owner := func() *appsv1.ReplicaSet {
		return &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "d", Name: "rs", UID: "rs-uid"},
			Spec: appsv1.ReplicaSetSpec{Replicas: pointer(int32(2)), Selector: selects(), Template: template()}}
	}
	// family is an owner with two pods and a ConfigMap, which owns another one, and one without an
	// owner.
	family := func() []kruntime.Object {
		rs, first := owner(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "first", UID: "first-uid"}}
		ref := *metav1.NewControllerRef(rs, appsv1.SchemeGroupVersion.WithKind("ReplicaSet"))
		of := metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: first.Name, UID: first.UID}
		first = configMap(first.Name, ref)
		first.UID = of.UID
		return []kruntime.Object{rs, on("n1", "a", ref), on("n1", "b", ref), first, configMap("second", of),
			configMap("alone")}
	}
	delete := func(policy metav1.DeletionPropagation) func(t *testing.T, c *controllertest.Cluster) {
		return func(t *testing.T, c *controllertest.Cluster) {
			remove(t, c.Client.AppsV1().ReplicaSets("d"), "rs", policy)
		}
	}
	familyGone := func(t *testing.T, c *controllertest.Cluster, l *ledger) error {
		return cmp.Or(gone(t, c.Client.AppsV1().ReplicaSets("d"), "rs"), gone(t, c.Client.CoreV1().Pods("d"), "a", "b"),
			gone(t, c.Client.CoreV1().ConfigMaps("d"), "first", "second"),
			there(t, c.Client.CoreV1().ConfigMaps("d"), "alone"), once(l.deleted, "pods", 2),
			once(l.deleted, "configmaps", 2))
	}
	namespace := func(name string) *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.NamespaceSpec{Finalizers: []corev1.FinalizerName{corev1.FinalizerKubernetes}}}
	}
	return []scenario{
		{
			name: "an owner is deleted", controllers: "garbagecollector", takes: time.Minute,
			objects: family, change: delete(metav1.DeletePropagationBackground), check: familyGone,
		},
		{
			name: "an owner is deleted in the foreground", controllers: "garbagecollector", takes: time.Minute,
			objects: family, change: delete(metav1.DeletePropagationForeground), check: familyGone,
		},
		{
			name: "an owner leaves orphans", controllers: "garbagecollector,replicaset", takes: time.Minute,
			objects: family, change: delete(metav1.DeletePropagationOrphan),
			check: func(t *testing.T, c *controllertest.Cluster, l *ledger) error {
				pods, err := c.Client.CoreV1().Pods("d").List(t.Context(), metav1.ListOptions{})
				if err != nil {
					return err
				}
				for _, p := range pods.Items {
					if len(p.OwnerReferences) > 0 {
						return fmt.Errorf("pod %s has owners %v", p.Name, p.OwnerReferences)
					}
				}
				return cmp.Or(gone(t, c.Client.AppsV1().ReplicaSets("d"), "rs"),
					there(t, c.Client.CoreV1().ConfigMaps("d"), "first", "second", "alone"),
					expectPods(t, c, l, 2, 0, 0))
			},
		},
		{
			name: "a namespace is deleted", controllers: "namespace", takes: time.Minute,
			objects: func() []kruntime.Object {
				other := configMap("other")
				other.Namespace = "e"
				return []kruntime.Object{namespace("d"), namespace("e"), on("n1", "a"), on("n1", "b"), configMap("one"),
					configMap("two"), other}
			},
			change: func(t *testing.T, c *controllertest.Cluster) { remove(t, c.Client.CoreV1().Namespaces(), "d") },
			check: func(t *testing.T, c *controllertest.Cluster, _ *ledger) error {
				return cmp.Or(gone(t, c.Client.CoreV1().Namespaces(), "d"),
					gone(t, c.Client.CoreV1().Pods("d"), "a", "b"),
					gone(t, c.Client.CoreV1().ConfigMaps("d"), "one", "two"),
					there(t, c.Client.CoreV1().Namespaces(), "e"), there(t, c.Client.CoreV1().ConfigMaps("e"), "other"))
			},
		},
		{
			name: "a quota follows what it counts", controllers: "resourcequota,replicaset", takes: 12 * time.Minute,
			objects: func() []kruntime.Object {
				rs := owner()
				rs.Spec.Replicas = pointer(int32(5))
				return []kruntime.Object{rs,
					&corev1.ResourceQuota{ObjectMeta: named("q"),
						Spec: corev1.ResourceQuotaSpec{Hard: amounts("pods", "10", "count/configmaps", "10")}}}
			},
			change: func(t *testing.T, c *controllertest.Cluster) {
				add(t, c.Client.CoreV1().ConfigMaps("d"), configMap("one"))
				add(t, c.Client.CoreV1().ConfigMaps("d"), configMap("two"))
				edit(t, c.Client.AppsV1().ReplicaSets("d"), "rs",
					func(s *appsv1.ReplicaSet) { s.Spec.Replicas = pointer(int32(2)) })
			},
			check: func(t *testing.T, c *controllertest.Cluster, l *ledger) error {
				q, err := c.Client.CoreV1().ResourceQuotas("d").Get(t.Context(), "q", metav1.GetOptions{})
				if err != nil {
					return err
				}
				if pods, maps := q.Status.Used["pods"], q.Status.Used["count/configmaps"]; pods.Value() != 2 ||
					maps.Value() != 2 {
					return fmt.Errorf("used is %v", q.Status.Used)
				}
				return expectPods(t, c, l, 2, 0, 3)
			},
		},
		{
			name: "a ClusterRole is made of others", controllers: "clusterrole-aggregation", takes: time.Minute,
			objects: func() []kruntime.Object {
				of := &rbacv1.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{*selects()}}
				return []kruntime.Object{
					&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "one"}, AggregationRule: of},
					&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "two"}, AggregationRule: of}}
			},
			change: func(t *testing.T, c *controllertest.Cluster) {
				add(t, c.Client.RbacV1().ClusterRoles(),
					&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "part", Labels: labelled},
						Rules: []rbacv1.PolicyRule{{Verbs: []string{"get"}}}})
			},
			check: func(t *testing.T, c *controllertest.Cluster, _ *ledger) error {
				for _, name := range []string{"one", "two"} {
					if role, err := c.Client.RbacV1().ClusterRoles().Get(t.Context(), name,
						metav1.GetOptions{}); err != nil || len(role.Rules) != 1 {
						return fmt.Errorf("role %s: %+v, %v", name, role, err)
					}
				}
				return nil
			},
		},
		{
			name: "policies come", controllers: "validatingadmissionpolicy-status", takes: time.Minute, objects: none,
			change: func(t *testing.T, c *controllertest.Cluster) {
				for _, name := range []string{"one", "two"} {
					add(t, c.Client.AdmissionregistrationV1().ValidatingAdmissionPolicies(),
						&admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}})
				}
			},
			check: func(t *testing.T, c *controllertest.Cluster, _ *ledger) error {
				for _, name := range []string{"one", "two"} {
					p, err := c.Client.AdmissionregistrationV1().ValidatingAdmissionPolicies().Get(t.Context(), name,
						metav1.GetOptions{})
					if err != nil || p.Status.ObservedGeneration != p.Generation || p.Status.TypeChecking == nil {
						return fmt.Errorf("policy %s: %+v, %v", name, p, err)
					}
				}
				return nil
			},
		},
		{
			name: "objects are migrated", controllers: "storageversionmigration", takes: 2 * time.Minute,
			objects: func() []kruntime.Object { return []kruntime.Object{configMap("one"), configMap("two")} },
			change: func(t *testing.T, c *controllertest.Cluster) {
				for _, name := range []string{"one", "two"} {
					add(t, c.Client.StoragemigrationV1().StorageVersionMigrations(),
						&migrationv1.StorageVersionMigration{ObjectMeta: metav1.ObjectMeta{Name: name},
							Spec: migrationv1.StorageVersionMigrationSpec{
								Resource: metav1.GroupResource{Resource: "configmaps"}}})
				}
			},
			check: func(t *testing.T, c *controllertest.Cluster, _ *ledger) error {
				for _, name := range []string{"one", "two"} {
					m, err := c.Client.StoragemigrationV1().StorageVersionMigrations().Get(t.Context(), name,
						metav1.GetOptions{})
					if err != nil ||
						!meta.IsStatusConditionTrue(m.Status.Conditions, string(migrationv1.MigrationSucceeded)) ||
						!meta.IsStatusConditionFalse(m.Status.Conditions, string(migrationv1.MigrationRunning)) {
						return fmt.Errorf("migration %s: %+v, %v", name, m, err)
					}
				}
				return nil
			},
		},
	}
}

func storageScenarios() []scenario {
	claim := func(
		name string, class *string, changes ...func(*corev1.PersistentVolumeClaim),
	) *corev1.PersistentVolumeClaim {
		c := &corev1.PersistentVolumeClaim{ObjectMeta: named(name),
			Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: class,
				AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				Resources:   corev1.VolumeResourceRequirements{Requests: amounts("storage", "1Gi")}}}
		for _, change := range changes {
			change(c)
		}
		return c
	}
	volume := func(name string, source corev1.PersistentVolumeSource) *corev1.PersistentVolume {
		return &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: corev1.PersistentVolumeSpec{PersistentVolumeSource: source, Capacity: amounts("storage", "1Gi"),
				AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
				PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain}}
	}
	nfs := corev1.PersistentVolumeSource{NFS: &corev1.NFSVolumeSource{Server: "s", Path: "/p"}}
	using := func(pod *corev1.Pod, claim string) *corev1.Pod {
		pod.Spec.Volumes = []corev1.Volume{
			{Name: "v",
				VolumeSource: corev1.VolumeSource{
					PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}}
		return pod
	}
	bound := func(uid, volume string) func(*corev1.PersistentVolumeClaim) {
		return func(c *corev1.PersistentVolumeClaim) {
			c.UID, c.Spec.VolumeName, c.Status.Phase = types.UID(uid), volume, corev1.ClaimBound
		}
	}
	return []scenario{
		{
			name: "claims get their volumes", controllers: "persistentvolume-binder", takes: 2 * time.Minute,
			objects: func() []kruntime.Object {
				return []kruntime.Object{volume("v1", nfs), volume("v2", nfs), volume("v3", nfs)}
			},
			change: func(t *testing.T, c *controllertest.Cluster) {
				for _, name := range []string{"c1", "c2"} {
					add(t, c.Client.CoreV1().PersistentVolumeClaims("d"), claim(name, pointer("")))
				}
			},
			check: func(t *testing.T, c *controllertest.Cluster, _ *ledger) error {
				volumes, err := c.Client.CoreV1().PersistentVolumes().List(t.Context(), metav1.ListOptions{})
				if err != nil {
					return err
				}
				owners := map[string]string{}
				for _, v := range volumes.Items {
					if ref := v.Spec.ClaimRef; ref != nil {
						if v.Status.Phase != corev1.VolumeBound || owners[ref.Name] != "" {
							return fmt.Errorf("volume %s is %s for %s, which has %q", v.Name, v.Status.Phase, ref.Name,
								owners[ref.Name])
						}
						owners[ref.Name] = v.Name
					}
				}
				for _, name := range []string{"c1", "c2"} {
					is, err := c.Client.CoreV1().PersistentVolumeClaims("d").Get(t.Context(), name, metav1.GetOptions{})
					if err != nil || is.Status.Phase != corev1.ClaimBound || is.Spec.VolumeName != owners[name] {
						return fmt.Errorf("claim %s: %+v, %v; volumes %v", name, is, err, owners)
					}
				}
				return nil
			},
		},
		{
			name: "a volume follows its pod", controllers: "attachdetach", takes: 2 * time.Minute,
			objects: func() []kruntime.Object {
				v := volume("v",
					corev1.PersistentVolumeSource{
						CSI: &corev1.CSIPersistentVolumeSource{Driver: "driver", VolumeHandle: "h"}})
				v.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "d", Name: "c", UID: "claim-uid"}
				return append(nodesOf("n1", "n2"), v, claim("c", nil, bound("claim-uid", "v")),
					using(on("n1", "a"), "c"))
			},
			change: func(t *testing.T, c *controllertest.Cluster) {
				driver(t, c)
				vanish(t, c, "a")
				add(t, c.Client.CoreV1().Pods("d"), using(on("n2", "b"), "c"))
			},
			check: func(t *testing.T, c *controllertest.Cluster, l *ledger) error {
				list, err := c.Client.StorageV1().VolumeAttachments().List(t.Context(), metav1.ListOptions{})
				if err != nil || len(list.Items) != 1 || list.Items[0].Spec.NodeName != "n2" {
					return fmt.Errorf("attachments %+v, %v", list.Items, err)
				}
				for node, want := range map[string]int{"n1": 0, "n2": 1} {
					if n, err := c.Client.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{}); err != nil ||
						len(n.Status.VolumesAttached) != want {
						return fmt.Errorf("the status of node %s names %v, %v", node, n.Status.VolumesAttached, err)
					}
				}
				return cmp.Or(once(l.created, "volumeattachments", 1), once(l.deleted, "volumeattachments", 1))
			},
		},
		{
			name: "a claim is not used any more", controllers: "pvcunused", takes: time.Minute,
			objects: func() []kruntime.Object {
				return []kruntime.Object{claim("c", nil, bound("claim-uid", "v")), using(on("n1", "a"), "c")}
			},
			change: func(t *testing.T, c *controllertest.Cluster) {
				vanish(t, c, "a")
			},
			check: func(t *testing.T, c *controllertest.Cluster, _ *ledger) error {
				is, err := c.Client.CoreV1().PersistentVolumeClaims("d").Get(t.Context(), "c", metav1.GetOptions{})
				if err != nil || len(is.Status.Conditions) != 1 ||
					is.Status.Conditions[0].Type != corev1.PersistentVolumeClaimUnused ||
					is.Status.Conditions[0].Status != corev1.ConditionTrue {
					return fmt.Errorf("claim %+v, %v", is, err)
				}
				return nil
			},
		},
		{
			name: "a pod gets its ephemeral volumes", controllers: "ephemeralvolume", takes: time.Minute, objects: none,
			change: func(t *testing.T, c *controllertest.Cluster) {
				pod := on("", "a")
				for _, name := range []string{"one", "two"} {
					pod.Spec.Volumes = append(pod.Spec.Volumes,
						corev1.Volume{Name: name,
							VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{
								VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{
									Spec: claim("", nil).Spec}}}})
				}
				add(t, c.Client.CoreV1().Pods("d"), pod)
			},
			check: func(t *testing.T, c *controllertest.Cluster, l *ledger) error {
				return cmp.Or(there(t, c.Client.CoreV1().PersistentVolumeClaims("d"), "a-one", "a-two"),
					once(l.created, "persistentvolumeclaims", 2))
			},
		},
		{
			name: "storage is protected while it is used", controllers: "pvcprotection,pvprotection,vacprotection",
			takes: time.Minute,
			objects: func() []kruntime.Object {
				return []kruntime.Object{claim("used", nil), claim("free", nil), using(on("n1", "a"), "used"),
					volume("free", nfs),
					&storagev1.VolumeAttributesClass{ObjectMeta: metav1.ObjectMeta{Name: "free"}}}
			},
			change: func(t *testing.T, c *controllertest.Cluster) {
				claims, volumes, classes := c.Client.CoreV1().PersistentVolumeClaims("d"),
					c.Client.CoreV1().PersistentVolumes(), c.Client.StorageV1().VolumeAttributesClasses()
				add(t, claims, claim("new", nil))
				add(t, volumes, volume("new", nfs))
				add(t, classes, &storagev1.VolumeAttributesClass{ObjectMeta: metav1.ObjectMeta{Name: "new"}})
				remove(t, claims, "used")
				remove(t, claims, "free")
				remove(t, volumes, "free")
				remove(t, classes, "free")
			},
			check: func(t *testing.T, c *controllertest.Cluster, _ *ledger) error {
				claims, volumes, classes := c.Client.CoreV1().PersistentVolumeClaims("d"),
					c.Client.CoreV1().PersistentVolumes(), c.Client.StorageV1().VolumeAttributesClasses()
				newClaim, err1 := claims.Get(t.Context(), "new", metav1.GetOptions{})
				newVolume, err2 := volumes.Get(t.Context(), "new", metav1.GetOptions{})
				newClass, err3 := classes.Get(t.Context(), "new", metav1.GetOptions{})
				if err := cmp.Or(err1, err2, err3); err != nil || len(newClaim.Finalizers) != 1 ||
					len(newVolume.Finalizers) != 1 || len(newClass.Finalizers) != 1 {
					return fmt.Errorf("finalizers %v, %v and %v, %v", newClaim.Finalizers, newVolume.Finalizers,
						newClass.Finalizers, err)
				}
				return cmp.Or(there(t, claims, "used"), gone(t, claims, "free"), gone(t, volumes, "free"),
					gone(t, classes, "free"))
			},
		},
		{
			name: "local volumes are made", controllers: "localprovisioner", takes: time.Minute,
			objects: func() []kruntime.Object {
				node := nodesOf("n1")[0].(*corev1.Node)
				node.Labels, node.Annotations = map[string]string{corev1.LabelHostname: "n1"},
					map[string]string{localpv.RootAnnotation: "/data/volumes"}
				node.Status.Capacity = amounts("ephemeral-storage", "10Gi")
				return []kruntime.Object{node,
					&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "local"},
						Provisioner:       localpv.Provisioner,
						ReclaimPolicy:     pointer(corev1.PersistentVolumeReclaimDelete),
						VolumeBindingMode: pointer(storagev1.VolumeBindingWaitForFirstConsumer)}}
			},
			change: func(t *testing.T, c *controllertest.Cluster) {
				for _, name := range []string{"c1", "c2"} {
					add(t, c.Client.CoreV1().PersistentVolumeClaims("d"),
						claim(name, pointer("local"), func(c *corev1.PersistentVolumeClaim) {
							c.Annotations = map[string]string{
								"volume.kubernetes.io/storage-provisioner": localpv.Provisioner,
								"volume.kubernetes.io/selected-node":       "n1"}
						}))
				}
			},
			check: func(_ *testing.T, _ *controllertest.Cluster, l *ledger) error {
				return cmp.Or(once(l.created, "persistentvolumes", 2), once(l.deleted, "persistentvolumes", 0))
			},
		},
		{
			name: "a device is tainted", controllers: "devicetainteviction", takes: time.Minute,
			objects: func() []kruntime.Object {
				pod := on("n1", "a")
				pod.UID, pod.Spec.ResourceClaims = "pod-uid",
					[]corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: pointer("c")}}
				devices := &resourcev1.ResourceClaim{ObjectMeta: named("c")}
				devices.Status.ReservedFor = []resourcev1.ResourceClaimConsumerReference{
					{Resource: "pods", Name: "a", UID: "pod-uid"}}
				devices.Status.Allocation = &resourcev1.AllocationResult{
					Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{
						{Request: "r", Driver: "driver", Pool: "n1", Device: "x"}}}}
				return []kruntime.Object{pod, devices, on("n1", "b"),
					&resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "s"},
						Spec: resourcev1.ResourceSliceSpec{
							Driver:  "driver",
							Pool:    resourcev1.ResourcePool{Name: "n1", Generation: 1, ResourceSliceCount: 1},
							Devices: []resourcev1.Device{{Name: "x"}}}}}
			},
			change: func(t *testing.T, c *controllertest.Cluster) {
				add(t, c.Client.ResourceV1().DeviceTaintRules(),
					&resourcev1.DeviceTaintRule{ObjectMeta: metav1.ObjectMeta{Name: "ill"},
						Spec: resourcev1.DeviceTaintRuleSpec{
							DeviceSelector: &resourcev1.DeviceTaintSelector{Driver: pointer("driver")},
							Taint: resourcev1.DeviceTaint{Key: "ill", Effect: resourcev1.DeviceTaintEffectNoExecute,
								TimeAdded: pointer(metav1.Now())}}})
			},
			check: func(t *testing.T, c *controllertest.Cluster, l *ledger) error {
				rule, err := c.Client.ResourceV1().DeviceTaintRules().Get(t.Context(), "ill", metav1.GetOptions{})
				// The reason is Completed, or NotStarted from a leader without evictions of its
				// own, as upstream has it.
				if err != nil || len(rule.Status.Conditions) != 1 ||
					rule.Status.Conditions[0].Status != metav1.ConditionFalse {
					return fmt.Errorf("rule %+v, %v", rule, err)
				}
				return expectPods(t, c, l, 1, 0, 1)
			},
		},
	}
}

func credentialScenarios() []scenario {
	token := func(id string, life time.Duration) *corev1.Secret {
		return &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "bootstrap-token-" + id},
			Type:       corev1.SecretTypeBootstrapToken, Data: map[string][]byte{
				"token-id": []byte(id), "token-secret": []byte("0123456789abcdef"),
				"usage-bootstrap-signing": []byte("true"),
				"expiration":              []byte(time.Now().Add(life).Format(time.RFC3339))}}
	}
	info := func() *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespacePublic, Name: "cluster-info"},
			Data: map[string]string{"kubeconfig": "k"}}
	}
	request := func(t *testing.T, name string) *certificatesv1.CertificateSigningRequest {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		der, err := x509.CreateCertificateRequest(rand.Reader,
			&x509.CertificateRequest{
				Subject: pkix.Name{CommonName: "system:node:" + name, Organization: []string{"system:nodes"}}}, key)
		if err != nil {
			t.Fatal(err)
		}
		return &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: certificatesv1.CertificateSigningRequestSpec{
				SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName, Username: "system:node:" + name,
				Usages:  []certificatesv1.KeyUsage{"client auth", "digital signature"},
				Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})}}
	}
	bundle := func(name, content string) *certificatesv1.ClusterTrustBundle {
		return &certificatesv1.ClusterTrustBundle{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: certificatesv1.ClusterTrustBundleSpec{SignerName: certificates.ServingSigner, TrustBundle: content}}
	}
	return []scenario{
		{
			name: "a bootstrap token ends", controllers: "tokencleaner,bootstrapsigner", takes: 2 * time.Minute,
			objects: func() []kruntime.Object {
				return []kruntime.Object{info(), token("aaaaaa", 150*time.Second), token("bbbbbb", time.Hour)}
			},
			change: func(t *testing.T, c *controllertest.Cluster) {
				add(t, c.Client.CoreV1().Secrets(metav1.NamespaceSystem), token("cccccc", time.Hour))
			},
			check: func(t *testing.T, c *controllertest.Cluster, l *ledger) error {
				is, err := c.Client.CoreV1().ConfigMaps(metav1.NamespacePublic).Get(t.Context(), "cluster-info",
					metav1.GetOptions{})
				if err != nil || len(is.Data) != 3 || is.Data["jws-kubeconfig-bbbbbb"] == "" ||
					is.Data["jws-kubeconfig-cccccc"] == "" {
					return fmt.Errorf("signed is %v, %v", is.Data, err)
				}
				return once(l.deleted, "secrets", 1)
			},
		},
		{
			name: "kubelets ask for certificates", controllers: "csrapproving,csrsigning", takes: time.Minute,
			objects: none,
			change: func(t *testing.T, c *controllertest.Cluster) {
				c.Client.PrependReactor("create", "subjectaccessreviews",
					func(a clienttesting.Action) (bool, kruntime.Object, error) {
						object := a.(clienttesting.CreateActionImpl).Object
						review := object.(*authorizationv1.SubjectAccessReview).DeepCopy()
						review.Status.Allowed = true
						return true, review, nil
					})
				for _, name := range []string{"n1", "n2"} {
					add(t, c.Client.CertificatesV1().CertificateSigningRequests(), request(t, name))
				}
			},
			check: func(t *testing.T, c *controllertest.Cluster, _ *ledger) error {
				for _, name := range []string{"n1", "n2"} {
					r, err := c.Client.CertificatesV1().CertificateSigningRequests().Get(t.Context(), name,
						metav1.GetOptions{})
					if err != nil || len(r.Status.Conditions) != 1 ||
						r.Status.Conditions[0].Type != certificatesv1.CertificateApproved ||
						string(r.Status.Certificate) != "signed" {
						return fmt.Errorf("request %+v, %v", r, err)
					}
				}
				return nil
			},
		},
		{
			name: "requests for certificates are old", controllers: "csrcleaner,podcertificaterequestcleaner",
			takes: 2 * time.Minute,
			objects: func() []kruntime.Object {
				// The controllers run for two minutes before the change.
				ago := func(d time.Duration) metav1.Time { return metav1.NewTime(time.Now().Add(150*time.Second - d)) }
				csr := func(name string, age time.Duration) *certificatesv1.CertificateSigningRequest {
					return &certificatesv1.CertificateSigningRequest{
						ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: ago(age)}}
				}
				of := func(name string, age time.Duration) *certificatesv1.PodCertificateRequest {
					r := &certificatesv1.PodCertificateRequest{ObjectMeta: named(name)}
					r.CreationTimestamp = ago(age)
					return r
				}
				return []kruntime.Object{csr("old", 24*time.Hour), csr("older", 24*time.Hour), csr("young", time.Hour),
					of("old", 15*time.Minute), of("young", time.Minute)}
			},
			change: func(*testing.T, *controllertest.Cluster) {},
			check: func(t *testing.T, c *controllertest.Cluster, l *ledger) error {
				return cmp.Or(there(t, c.Client.CertificatesV1().CertificateSigningRequests(), "young"),
					there(t, c.Client.CertificatesV1().PodCertificateRequests("d"), "young"),
					once(l.deleted, "certificatesigningrequests", 2), once(l.deleted, "podcertificaterequests", 1))
			},
		},
		{
			name: "a trust bundle is exchanged", controllers: "trustbundle", takes: time.Minute, objects: none,
			change: func(t *testing.T, c *controllertest.Cluster) {
				bundles := c.Client.CertificatesV1().ClusterTrustBundles()
				list, err := bundles.List(t.Context(), metav1.ListOptions{})
				if err != nil || len(list.Items) != 1 {
					t.Fatalf("bundles %+v, %v", list.Items, err)
				}
				remove(t, bundles, list.Items[0].Name)
				add(t, bundles, bundle("kubernetes.io:kube-apiserver-serving:old", "an old CA"))
			},
			check: func(t *testing.T, c *controllertest.Cluster, l *ledger) error {
				list, err := c.Client.CertificatesV1().ClusterTrustBundles().List(t.Context(), metav1.ListOptions{})
				if err != nil || len(list.Items) != 1 || list.Items[0].Spec.TrustBundle == "an old CA" {
					return fmt.Errorf("bundles %+v, %v", list.Items, err)
				}
				return cmp.Or(once(l.created, "clustertrustbundles", 1), once(l.deleted, "clustertrustbundles", 1))
			},
		},
	}
}
