package quota

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	quotav1 "k8s.io/apiserver/pkg/quota/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// objects list themselves; they can be of any kind.
type objects []runtime.Object

func (o objects) lister(schema.GroupVersionResource) (cache.GenericLister, error) {
	index := cache.NewIndexer(cache.MetaNamespaceKeyFunc,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	for _, obj := range o {
		if err := index.Add(obj); err != nil {
			return nil, err
		}
	}
	return cache.NewGenericLister(index, schema.GroupResource{}), nil
}

func evaluatorOf(t *testing.T, resource string, list objects) quotav1.Evaluator {
	t.Helper()
	return evaluatorWith(t, resource, list, nil)
}

func evaluatorWith(t *testing.T, resource string, list objects, devices *Devices) quotav1.Evaluator {
	t.Helper()
	all := Evaluators(list.lister, devices, func() time.Time { return now })
	i := slices.IndexFunc(all, func(e quotav1.Evaluator) bool { return e.GroupResource().Resource == resource })
	if i < 0 {
		t.Fatalf("no evaluator of %s", resource)
	}
	return all[i]
}

func newPod(change func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}, Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{
			{Name: "i",
				Resources: corev1.ResourceRequirements{Requests: amounts("cpu", "2", "memory", "1Gi"),
					Limits: amounts("cpu", "3")}}},
		Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{
			Requests: amounts("cpu", "1", "memory", "2Gi", "ephemeral-storage", "5Gi", "hugepages-2Mi", "4Mi",
				"example.com/gpu", "2"),
			Limits: amounts("cpu", "1", "memory", "4Gi", "ephemeral-storage", "6Gi"),
		}}},
	}}
	if change != nil {
		change(p)
	}
	return p
}

func newClaim(change func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "c"},
		Spec: corev1.PersistentVolumeClaimSpec{
			Resources: corev1.VolumeResourceRequirements{Requests: amounts("storage", "10Gi")}}}
	if change != nil {
		change(c)
	}
	return c
}

// newDeviceClaim requests two GPUs, all of them, and either four GPUs, one, or three NICs.
func newDeviceClaim() *resourcev1.ResourceClaim {
	exactly := func(n int64) *resourcev1.ExactDeviceRequest {
		return &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu",
			AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: n}
	}
	either := func(class string, n int64) resourcev1.DeviceSubRequest {
		return resourcev1.DeviceSubRequest{DeviceClassName: class,
			AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: n}
	}
	return &resourcev1.ResourceClaim{
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{
			{Name: "a", Exactly: exactly(2)},
			{Name: "b",
				Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu",
					AllocationMode: resourcev1.DeviceAllocationModeAll}},
			{Name: "c",
				FirstAvailable: []resourcev1.DeviceSubRequest{either("gpu", 4), either("gpu", 1), either("nic", 3)}},
		}}}}
}

func newService(kind corev1.ServiceType, change func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"},
		Spec: corev1.ServiceSpec{Type: kind, Ports: []corev1.ServicePort{{Port: 1}, {Port: 2, NodePort: 30000}}}}
	if change != nil {
		change(s)
	}
	return s
}

func TestUsage(t *testing.T) {
	whole := amounts("count/pods", "1", "pods", "1", "cpu", "2", "requests.cpu", "2", "limits.cpu", "3", "memory",
		"2Gi", "requests.memory", "2Gi", "limits.memory", "4Gi",
		"ephemeral-storage", "5Gi", "requests.ephemeral-storage", "5Gi", "limits.ephemeral-storage", "6Gi",
		"hugepages-2Mi", "4Mi", "requests.hugepages-2Mi", "4Mi", "requests.example.com/gpu", "2")
	with := func(base corev1.ResourceList, pairs ...string) corev1.ResourceList {
		list := base.DeepCopy()
		for name, q := range amounts(pairs...) {
			list[name] = q
		}
		return list
	}
	ended := amounts("count/pods", "1")
	going := func(at time.Time) *corev1.Pod {
		return newPod(func(p *corev1.Pod) {
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds = ptr.To(metav1.NewTime(at)), ptr.To[int64](30)
		})
	}
	for _, c := range []struct {
		name     string
		resource string
		obj      runtime.Object
		want     corev1.ResourceList
	}{
		{"a pod", "pods", newPod(nil), whole},
		{"with overhead", "pods", newPod(func(p *corev1.Pod) { p.Spec.Overhead = amounts("cpu", "500m") }),
			with(whole, "cpu", "2500m", "requests.cpu", "2500m", "limits.cpu", "3500m")},
		{"as a whole", "pods", newPod(func(p *corev1.Pod) {
			p.Spec.Resources = &corev1.ResourceRequirements{Requests: amounts("cpu", "7"), Limits: amounts("cpu", "8")}
		}), with(whole, "cpu", "7", "requests.cpu", "7", "limits.cpu", "8")},
		{"smaller soon", "pods", newPod(func(p *corev1.Pod) {
			p.Spec.Resources = &corev1.ResourceRequirements{Requests: amounts("cpu", "7"), Limits: amounts("cpu", "8")}
			p.Status.AllocatedResources = amounts("cpu", "7")
			p.Status.Resources = &corev1.ResourceRequirements{Requests: amounts("cpu", "9"),
				Limits: amounts("cpu", "10")}
		}), with(whole, "cpu", "9", "requests.cpu", "9", "limits.cpu", "10")},
		{"its node has told, with overhead", "pods", newPod(func(p *corev1.Pod) {
			p.Spec.Overhead = amounts("cpu", "500m")
			p.Status.AllocatedResources = amounts("cpu", "2", "memory", "2Gi")
			p.Status.Resources = &corev1.ResourceRequirements{Requests: amounts("cpu", "2", "memory", "3Gi"),
				Limits: amounts("cpu", "3", "memory", "5Gi")}
		}),
			with(whole, "cpu", "2500m", "requests.cpu", "2500m", "limits.cpu", "3500m", "memory", "3Gi",
				"requests.memory", "3Gi", "limits.memory", "5Gi")},
		{"a wish that is infeasible before it runs", "pods", newPod(func(p *corev1.Pod) {
			p.Status.Conditions = []corev1.PodCondition{
				{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: corev1.PodReasonInfeasible}}
		}), whole},
		{"a wish that is infeasible", "pods", newPod(func(p *corev1.Pod) {
			p.Spec.Resources = &corev1.ResourceRequirements{Requests: amounts("cpu", "70"),
				Limits: amounts("cpu", "80", "memory", "90Gi")}
			p.Status.Conditions = []corev1.PodCondition{
				{Type: corev1.PodResizePending, Status: corev1.ConditionTrue, Reason: corev1.PodReasonInfeasible}}
			p.Status.AllocatedResources = amounts("cpu", "2", "memory", "2Gi", "ephemeral-storage", "5Gi",
				"hugepages-2Mi", "4Mi", "example.com/gpu", "2")
			p.Status.Resources = &corev1.ResourceRequirements{Requests: p.Status.AllocatedResources,
				Limits: amounts("cpu", "5")}
			p.Status.ContainerStatuses = []corev1.ContainerStatus{
				{Name: "c", Resources: p.Spec.Containers[0].Resources.DeepCopy()}}
		}), with(whole, "limits.cpu", "5")}, // as an earlier version reports
		{"a wish after one that was infeasible", "pods", newPod(func(p *corev1.Pod) {
			p.Generation = 3
			p.Spec.Resources = &corev1.ResourceRequirements{Requests: amounts("cpu", "70"),
				Limits: amounts("cpu", "80")}
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodResizePending, Status: corev1.ConditionTrue,
				Reason: corev1.PodReasonInfeasible, ObservedGeneration: 2}}
			p.Status.AllocatedResources = amounts("cpu", "2", "memory", "2Gi")
			p.Status.Resources = &corev1.ResourceRequirements{Requests: amounts("cpu", "2", "memory", "2Gi"),
				Limits: amounts("cpu", "3", "memory", "4Gi")}
		}), with(whole, "cpu", "70", "requests.cpu", "70", "limits.cpu", "80")},
		{"with a sidecar", "pods", newPod(func(p *corev1.Pod) {
			p.Spec.InitContainers[0].RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
		}),
			with(whole, "cpu", "3", "requests.cpu", "3", "limits.cpu", "4", "memory", "3Gi", "requests.memory", "3Gi")},
		{"succeeded", "pods", newPod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }), ended},
		{"failed", "pods", newPod(func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }), ended},
		{"being deleted", "pods", going(now.Add(-29 * time.Second)), whole},
		{"stuck", "pods", going(now.Add(-31 * time.Second)), ended},
		{"a service", "services", newService(corev1.ServiceTypeClusterIP, nil),
			amounts("count/services", "1", "services", "1", "services.nodeports", "0", "services.loadbalancers", "0")},
		{"of node ports", "services", newService(corev1.ServiceTypeNodePort, nil),
			amounts("count/services", "1", "services", "1", "services.nodeports", "2", "services.loadbalancers", "0")},
		{"with a balancer", "services", newService(corev1.ServiceTypeLoadBalancer, nil),
			amounts("count/services", "1", "services", "1", "services.nodeports", "2", "services.loadbalancers", "1")},
		{"with a balancer alone", "services",
			newService(corev1.ServiceTypeLoadBalancer,
				func(s *corev1.Service) { s.Spec.AllocateLoadBalancerNodePorts = ptr.To(false) }),
			amounts("count/services", "1", "services", "1", "services.nodeports", "1", "services.loadbalancers", "1")},
		{"a claim", "persistentvolumeclaims", newClaim(nil),
			amounts("count/persistentvolumeclaims", "1", "persistentvolumeclaims", "1", "requests.storage", "10Gi")},
		{"of a class", "persistentvolumeclaims",
			newClaim(func(c *corev1.PersistentVolumeClaim) { c.Spec.StorageClassName = ptr.To("gold") }),
			amounts("count/persistentvolumeclaims", "1", "persistentvolumeclaims", "1", "requests.storage", "10Gi",
				"gold.storageclass.storage.k8s.io/persistentvolumeclaims", "1",
				"gold.storageclass.storage.k8s.io/requests.storage", "10Gi")},
		{"growing", "persistentvolumeclaims",
			newClaim(
				func(c *corev1.PersistentVolumeClaim) { c.Status.AllocatedResources = amounts("storage", "12Gi") }),
			amounts("count/persistentvolumeclaims", "1", "persistentvolumeclaims", "1", "requests.storage", "12Gi")},
		{"part of a byte", "persistentvolumeclaims",
			newClaim(func(c *corev1.PersistentVolumeClaim) { c.Spec.Resources.Requests = amounts("storage", "1500m") }),
			amounts("count/persistentvolumeclaims", "1", "persistentvolumeclaims", "1", "requests.storage", "2")},
		{"a claim of devices", "resourceclaims", newDeviceClaim(), amounts("count/resourceclaims.resource.k8s.io", "1",
			"gpu.deviceclass.resource.k8s.io/devices", "38", "nic.deviceclass.resource.k8s.io/devices", "3")},
		{"a secret", "secrets", &corev1.Secret{}, amounts("count/secrets", "1", "secrets", "1")},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := evaluatorOf(t, c.resource, nil)
			got, err := e.Usage(c.obj)
			if err != nil || !quotav1.Equals(got, c.want) {
				t.Errorf("%v, %v, want %v", err, got, c.want)
			}
			if names := e.MatchingResources(quotav1.ResourceNames(got)); len(names) != len(got) {
				t.Errorf("of what it uses, a quota can count %v only", names)
			}
			if _, err := e.Usage(&corev1.Namespace{}); err == nil && c.resource != "secrets" {
				t.Error("another kind has a usage")
			}
		})
	}
}

// following has Devices that know these objects.
func following(t *testing.T, known ...runtime.Object) *Devices {
	t.Helper()
	factory := informers.NewSharedInformerFactory(fake.NewClientset(), 0)
	d, err := FollowDevices(factory)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := FollowDevices(factory); err != nil {
		t.Fatalf("a second one of the same informers: %v", err)
	}
	for _, obj := range known {
		switch obj := obj.(type) {
		case *resourcev1.DeviceClass:
			d.classes.(cache.ResourceEventHandler).OnAdd(obj, true)
		case *corev1.Pod:
			err = factory.Core().V1().Pods().Informer().GetIndexer().Add(obj)
		case *resourcev1.ResourceClaim:
			err = d.claims.Add(obj)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return d
}

// Claims of a class that stands for an extended resource are counted by the name of the resource,
// too. A claim that was made for a pod counts the usage that the pod does not.
func TestExtendedResources(t *testing.T) {
	class := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "gpu"},
		Spec: resourcev1.DeviceClassSpec{ExtendedResourceName: ptr.To("example.com/gpu")}}
	plain := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "nic"}}
	pod := newPod(func(p *corev1.Pod) { p.UID = "pod-uid" })
	pointing := func(claim string) *corev1.Pod {
		p := pod.DeepCopy()
		p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: claim}
		return p
	}
	claim := func(name string, age time.Duration, change func(*resourcev1.ResourceClaim)) *resourcev1.ResourceClaim {
		c := newDeviceClaim()
		c.Spec.Devices.Requests = c.Spec.Devices.Requests[:1]
		c.Spec.Devices.Requests[0].Exactly.Count = 3
		c.ObjectMeta = metav1.ObjectMeta{Namespace: "ns", Name: name, CreationTimestamp: metav1.NewTime(now.Add(-age)),
			Annotations: map[string]string{resourcev1.ExtendedResourceClaimAnnotation: "true"},
			OwnerReferences: []metav1.OwnerReference{
				{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "pod-uid", Controller: ptr.To(true)}}}
		if change != nil {
			change(c)
		}
		return c
	}
	mine := claim("mine", time.Minute, nil)
	const resource, implicit = "requests.example.com/gpu", "requests.deviceclass.resource.kubernetes.io/gpu"
	for _, c := range []struct {
		name  string
		claim *resourcev1.ResourceClaim
		known []runtime.Object
		want  []string // names, and how many
	}{
		{"of no known class", claim("c", 0, nil), nil, []string{implicit, "3"}},
		{"of a class without a resource",
			claim("c", 0,
				func(c *resourcev1.ResourceClaim) { c.Spec.Devices.Requests[0].Exactly.DeviceClassName = "nic" }),
			[]runtime.Object{class, plain},
			[]string{"nic.deviceclass.resource.k8s.io/devices", "3", "requests.deviceclass.resource.kubernetes.io/nic",
				"3"}},
		{"made by a user",
			claim("c", 0, func(c *resourcev1.ResourceClaim) { c.Annotations, c.OwnerReferences = nil, nil }),
			[]runtime.Object{class, pod}, []string{resource, "3", implicit, "3"}},
		{"made for a pod, which asks for two of three", mine, []runtime.Object{class, pod, mine},
			[]string{resource, "1", implicit, "3"}},
		{"made for a pod that says so", mine, []runtime.Object{class, pointing("mine"), mine},
			[]string{resource, "1", implicit, "3"}},
		{"made for a pod that has another one", mine, []runtime.Object{class, pointing("other"), mine},
			[]string{resource, "3", implicit, "3"}},
		{"made for a pod that is not there", mine, []runtime.Object{class, mine},
			[]string{resource, "3", implicit, "3"}},
		{"made for a pod of its name before", mine, []runtime.Object{class, newPod(nil), mine},
			[]string{resource, "3", implicit, "3"}},
		{"the older one of two", mine, []runtime.Object{class, pod, mine, claim("a", 0, nil)},
			[]string{resource, "1", implicit, "3"}},
		{"the younger one of two", mine, []runtime.Object{class, pod, mine, claim("z", time.Hour, nil)},
			[]string{resource, "3", implicit, "3"}},
		{"the second by name of two", mine, []runtime.Object{class, pod, mine, claim("a", time.Minute, nil)},
			[]string{resource, "3", implicit, "3"}},
		{"another pod's claim beside", mine,
			[]runtime.Object{class, pod, mine,
				claim("z", time.Hour, func(c *resourcev1.ResourceClaim) { c.OwnerReferences[0].UID = "other" })},
			[]string{resource, "1", implicit, "3"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			want := amounts(append(c.want, "count/resourceclaims.resource.k8s.io", "1")...)
			if _, other := want["nic.deviceclass.resource.k8s.io/devices"]; !other {
				want["gpu.deviceclass.resource.k8s.io/devices"] = count(3)
			}
			e := evaluatorWith(t, "resourceclaims", nil, following(t, c.known...))
			if got, err := e.Usage(c.claim); err != nil || !quotav1.Equals(got, want) {
				t.Errorf("%v, %v, want %v", err, got, want)
			}
		})
	}
	names := []corev1.ResourceName{resource, implicit, "requests.deviceclass.resource.kubernetes.io/nic",
		"requests.deviceclass.resource.kubernetes.io/none", "requests.example.com/nic", "requests.cpu"}
	if got := evaluatorWith(t, "resourceclaims", nil, following(t, class, plain)).MatchingResources(
		names); !slices.Equal(got, names[:3]) {
		t.Errorf("claims are counted as %v", got)
	}
	if got := evaluatorOf(t, "resourceclaims", nil).MatchingResources(names); len(got) > 0 {
		t.Errorf("without classes claims are counted as %v", got)
	}
	// The devices of a pod and its claim are charged once.
	devices := following(t, class, pointing("mine"), mine)
	charged := quotav1.Add(must(evaluatorWith(t, "pods", nil, devices).Usage(pointing("mine")))(t),
		must(evaluatorWith(t, "resourceclaims", nil, devices).Usage(mine))(t))
	if sum := charged[resource]; sum.Value() != 3 {
		t.Errorf("a pod that asks for two and has a claim of three is charged %s", sum.String())
	}
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func TestNames(t *testing.T) {
	all := []corev1.ResourceName{"pods", "count/pods", "cpu", "limits.memory", "hugepages-1Gi",
		"requests.hugepages-1Gi", "requests.example.com/gpu", "example.com/gpu",
		"requests.deviceclass.resource.kubernetes.io/big", "services", "services.nodeports", "count/services",
		"secrets", "persistentvolumeclaims", "requests.storage",
		"gold.storageclass.storage.k8s.io/requests.storage", "gold.storageclass.storage.k8s.io/requests.cpu",
		"count/crontabs.example.com"}
	for kind, want := range map[string][]corev1.ResourceName{
		"pods": {"pods", "count/pods", "cpu", "limits.memory", "hugepages-1Gi",
			"requests.hugepages-1Gi", "requests.example.com/gpu", "requests.deviceclass.resource.kubernetes.io/big"},
		"services": {"services", "services.nodeports", "count/services"},
		"secrets":  {"secrets"},
		"persistentvolumeclaims": {"persistentvolumeclaims", "requests.storage",
			"gold.storageclass.storage.k8s.io/requests.storage"},
	} {
		got := evaluatorOf(t, kind, nil).MatchingResources(all)
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", kind, got, want)
		}
	}
}

func TestScopes(t *testing.T) {
	term := corev1.PodAffinityTerm{TopologyKey: "zone"}
	afar := corev1.PodAffinityTerm{TopologyKey: "zone", Namespaces: []string{"other"}}
	anywhere := corev1.PodAffinityTerm{TopologyKey: "zone", NamespaceSelector: &metav1.LabelSelector{}}
	near := func(t corev1.PodAffinityTerm) *corev1.Affinity {
		return &corev1.Affinity{
			PodAffinity: &corev1.PodAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{t}}}
	}
	apart := func(t corev1.PodAffinityTerm) *corev1.Affinity {
		return &corev1.Affinity{
			PodAntiAffinity: &corev1.PodAntiAffinity{
				PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{
					{PodAffinityTerm: t}}}}
	}
	exists := corev1.ScopeSelectorOpExists
	classed := newPod(func(p *corev1.Pod) { p.Spec.PriorityClassName = "high" })
	claim := newClaim(func(c *corev1.PersistentVolumeClaim) {
		c.Spec.VolumeAttributesClassName, c.Status.CurrentVolumeAttributesClassName = ptr.To("fast"), ptr.To("slow")
	})
	for _, c := range []struct {
		name     string
		scope    corev1.ResourceQuotaScope
		operator corev1.ScopeSelectorOperator
		values   []string
		obj      runtime.Object
		want     bool
	}{
		{"terminating", corev1.ResourceQuotaScopeTerminating, exists, nil,
			newPod(func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = ptr.To[int64](0) }), true},
		{"not", corev1.ResourceQuotaScopeTerminating, exists, nil, newPod(nil), false},
		{"not terminating", corev1.ResourceQuotaScopeNotTerminating, exists, nil, newPod(nil), true},
		{"best effort", corev1.ResourceQuotaScopeBestEffort, exists, nil,
			&corev1.Pod{Spec: corev1.PodSpec{Containers: make([]corev1.Container, 1)}}, true},
		{"better", corev1.ResourceQuotaScopeBestEffort, exists, nil, newPod(nil), false},
		{"not best effort", corev1.ResourceQuotaScopeNotBestEffort, exists, nil, newPod(nil), true},
		{"best effort but for the whole", corev1.ResourceQuotaScopeBestEffort, exists, nil,
			&corev1.Pod{Spec: corev1.PodSpec{
				Containers: make([]corev1.Container, 1),
				Resources:  &corev1.ResourceRequirements{Requests: amounts("cpu", "1")}}}, false},
		{"has a class", corev1.ResourceQuotaScopePriorityClass, exists, nil, classed, true},
		{"has none", corev1.ResourceQuotaScopePriorityClass, exists, nil, newPod(nil), false},
		{"has none, which is asked for", corev1.ResourceQuotaScopePriorityClass, corev1.ScopeSelectorOpDoesNotExist,
			nil, newPod(nil), true},
		{"the class", corev1.ResourceQuotaScopePriorityClass, corev1.ScopeSelectorOpIn, []string{"low", "high"},
			classed, true},
		{"another class", corev1.ResourceQuotaScopePriorityClass, corev1.ScopeSelectorOpIn, []string{"low"}, classed,
			false},
		{"not that class", corev1.ResourceQuotaScopePriorityClass, corev1.ScopeSelectorOpNotIn, []string{"low"},
			classed, true},
		{"not that class, none", corev1.ResourceQuotaScopePriorityClass, corev1.ScopeSelectorOpNotIn, []string{"low"},
			newPod(nil), true},
		{"near its own", corev1.ResourceQuotaScopeCrossNamespacePodAffinity, exists, nil,
			newPod(func(p *corev1.Pod) { p.Spec.Affinity = near(term) }), false},
		{"near others", corev1.ResourceQuotaScopeCrossNamespacePodAffinity, exists, nil,
			newPod(func(p *corev1.Pod) { p.Spec.Affinity = near(afar) }), true},
		{"apart from all", corev1.ResourceQuotaScopeCrossNamespacePodAffinity, exists, nil,
			newPod(func(p *corev1.Pod) { p.Spec.Affinity = apart(anywhere) }), true},
		{"nowhere", corev1.ResourceQuotaScopeCrossNamespacePodAffinity, exists, nil, newPod(nil), false},
		{"a class of volumes", corev1.ResourceQuotaScopeVolumeAttributesClass, corev1.ScopeSelectorOpIn,
			[]string{"slow"}, claim, true},
		{"another one", corev1.ResourceQuotaScopeVolumeAttributesClass, corev1.ScopeSelectorOpIn, []string{"gold"},
			claim, false},
		{"no class of volumes", corev1.ResourceQuotaScopeVolumeAttributesClass, exists, nil, newClaim(nil), false},
		{"pods have no volumes' class", corev1.ResourceQuotaScopeVolumeAttributesClass, exists, nil, newPod(nil),
			false},
		{"services have none", corev1.ResourceQuotaScopeNotBestEffort, exists, nil,
			newService(corev1.ServiceTypeClusterIP, nil), false},
	} {
		t.Run(c.name, func(t *testing.T) {
			kind := map[string]string{"*v1.Pod": "pods", "*v1.Service": "services",
				"*v1.PersistentVolumeClaim": "persistentvolumeclaims"}[fmt.Sprintf("%T", c.obj)]
			scopes := []corev1.ScopedResourceSelectorRequirement{
				{ScopeName: c.scope, Operator: c.operator, Values: c.values}}
			got, err := evaluatorOf(t, kind, nil).MatchingScopes(c.obj, scopes)
			if err != nil || (len(got) == 1) != c.want {
				t.Errorf("%v, %v", err, got)
			}
		})
	}
}

func TestConstraints(t *testing.T) {
	bare := newPod(func(p *corev1.Pod) {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "b"})
		p.Spec.InitContainers[0].Resources.Requests = nil
	})
	whole := bare.DeepCopy()
	whole.Spec.Resources = &corev1.ResourceRequirements{Requests: amounts("cpu", "1")}
	for _, c := range []struct {
		name     string
		pod      *corev1.Pod
		required []corev1.ResourceName
		want     string
	}{
		{"all", newPod(nil), []corev1.ResourceName{"cpu", "requests.memory"}, ""},
		{"none", bare, []corev1.ResourceName{"pods", "ephemeral-storage", "hugepages-2Mi"}, ""},
		{"one", bare, []corev1.ResourceName{"requests.cpu", "pods"}, "must specify requests.cpu for: b,i"},
		{"two", bare, []corev1.ResourceName{"memory", "limits.cpu"}, "must specify limits.cpu for: b; memory for: b,i"},
		{"as a whole", whole, []corev1.ResourceName{"requests.cpu", "cpu"}, ""},
		{"as a whole, and not its memory", whole, []corev1.ResourceName{"requests.cpu", "memory"},
			"must specify memory for: b,i"},
		{"as a whole, and not its limit", whole, []corev1.ResourceName{"limits.cpu"}, "must specify limits.cpu for: b"},
	} {
		err := evaluatorOf(t, "pods", nil).Constraints(c.required, c.pod)
		if (err == nil) != (c.want == "") || err != nil && err.Error() != c.want {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

func TestHandles(t *testing.T) {
	ending := newPod(func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = ptr.To[int64](1) })
	grown := newClaim(
		func(c *corev1.PersistentVolumeClaim) { c.Status.AllocatedResources = amounts("storage", "12Gi") })
	create, update := admission.Create, admission.Update
	for _, c := range []struct {
		name, resource, subresource string
		op                          admission.Operation
		obj, old                    runtime.Object
		want                        bool
	}{
		{"a new pod", "pods", "", create, newPod(nil), nil, true},
		{"an update", "pods", "", update, newPod(nil), newPod(nil), false},
		{"an update of its deadline", "pods", "", update, ending, newPod(nil), true},
		{"a resize", "pods", "resize", update, newPod(nil), newPod(nil), true},
		{"its status", "pods", "status", update, newPod(nil), newPod(nil), false},
		{"a binding", "pods", "binding", create, &corev1.Binding{}, nil, false},
		{"a service", "services", "", create, newService("", nil), nil, true},
		{"its update", "services", "", update, newService("", nil), newService("", nil), true},
		{"its status", "services", "status", update, newService("", nil), newService("", nil), false},
		{"a claim", "persistentvolumeclaims", "", update, newClaim(nil), newClaim(nil), true},
		{"its status", "persistentvolumeclaims", "status", update, newClaim(nil), newClaim(nil), false},
		{"a status with more", "persistentvolumeclaims", "status", update, grown, newClaim(nil), true},
		{"a secret", "secrets", "", create, &corev1.Secret{}, nil, true},
		{"its update", "secrets", "", update, &corev1.Secret{}, &corev1.Secret{}, false},
	} {
		a := admission.NewAttributesRecord(c.obj, c.old, schema.GroupVersionKind{}, "ns", "o",
			corev1.SchemeGroupVersion.WithResource(c.resource), c.subresource, c.op, nil, false, nil)
		if got := evaluatorOf(t, c.resource, nil).Handles(a); got != c.want {
			t.Errorf("%s: %t", c.name, got)
		}
	}
}

func TestSums(t *testing.T) {
	other := newPod(func(p *corev1.Pod) { p.Namespace = "elsewhere" })
	second := newPod(func(p *corev1.Pod) { p.Name, p.Spec.ActiveDeadlineSeconds = "second", ptr.To[int64](5) })
	e := evaluatorOf(t, "pods", objects{newPod(nil), other, second})
	for _, c := range []struct {
		scopes []corev1.ResourceQuotaScope
		want   string
	}{{nil, "4"}, {[]corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeTerminating}, "2"},
		{[]corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeBestEffort}, "0"}} {
		stats, err := e.UsageStats(
			quotav1.UsageStatsOptions{Namespace: "ns", Scopes: c.scopes,
				Resources: []corev1.ResourceName{"requests.cpu"}})
		if got := stats.Used["requests.cpu"]; err != nil || got.Cmp(resource.MustParse(c.want)) != 0 {
			t.Errorf("%v: %v, %s CPUs, want %s", c.scopes, err, got.String(), c.want)
		}
	}
}
