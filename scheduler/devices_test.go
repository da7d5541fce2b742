package scheduler_test

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/barque/barque/scheduler"
)

const gpuDriver = "gpu.example.com"

// withClaims makes the fake API set the fields that a server sets in claims.
func (s *apiServer) withClaims() {
	version := 1000
	stamp := func(a clienttesting.Action) (bool, runtime.Object, error) {
		o, ok := a.(clienttesting.UpdateAction) // creations have the same method
		if !ok {
			return false, nil, nil
		}
		c := o.GetObject().(*resourcev1.ResourceClaim)
		s.mu.Lock()
		defer s.mu.Unlock()
		version++
		c.ResourceVersion = strconv.Itoa(version)
		if c.Name == "" {
			c.Name = c.GenerateName + strconv.Itoa(version)
			c.UID = types.UID("uid-" + c.Name)
		}
		return false, nil, nil
	}
	s.client.PrependReactor("create", "resourceclaims", stamp)
	s.client.PrependReactor("update", "resourceclaims", stamp)
}

// slice offers devices of a node.
func slice(node string, devices ...resourcev1.Device) *resourcev1.ResourceSlice {
	s := &resourcev1.ResourceSlice{Spec: resourcev1.ResourceSliceSpec{
		Driver: gpuDriver, NodeName: &node, Devices: devices,
		Pool: resourcev1.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1},
	}}
	s.Name = node + "-gpus"
	return s
}

func gpu(name, model string, change ...func(*resourcev1.Device)) resourcev1.Device {
	d := resourcev1.Device{Name: name,
		Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"model": {StringValue: &model}}}
	for _, c := range change {
		c(&d)
	}
	return d
}

func gpuClass(name string, change ...func(*resourcev1.DeviceClass)) *resourcev1.DeviceClass {
	c := &resourcev1.DeviceClass{Spec: resourcev1.DeviceClassSpec{Selectors: []resourcev1.DeviceSelector{{
		CEL: &resourcev1.CELDeviceSelector{Expression: fmt.Sprintf("device.driver == %q", gpuDriver)},
	}}}}
	c.Name = name
	for _, f := range change {
		f(c)
	}
	return c
}

// gpuClaim asks for one device of the class "gpu".
func gpuClaim(name string, change ...func(*resourcev1.ResourceClaim)) *resourcev1.ResourceClaim {
	c := &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name),
			ResourceVersion: "1"},
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{
			Name: "r",
			Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "gpu",
				AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1},
		}}}},
	}
	for _, f := range change {
		f(c)
	}
	return c
}

func usesClaim(name string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Spec.ResourceClaims = append(p.Spec.ResourceClaims,
			v1.PodResourceClaim{Name: "gpu", ResourceClaimName: &name})
	}
}

func (s *apiServer) claim(name string) *resourcev1.ResourceClaim {
	s.tb.Helper()
	c, err := s.client.ResourceV1().ResourceClaims("default").Get(s.tb.Context(), name, metav1.GetOptions{})
	if err != nil {
		s.tb.Fatal(err)
	}
	return c
}

// devicesOf returns a claim's devices as pool/device.
func devicesOf(c *resourcev1.ResourceClaim) (out []string) {
	if c.Status.Allocation != nil {
		for _, r := range c.Status.Allocation.Devices.Results {
			out = append(out, r.Pool+"/"+r.Device)
		}
	}
	return out
}

// TestDevicesAreGivenOnce: three devices for four pods; the fourth pod gets the first device that
// is free.
func TestDevicesAreGivenOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		objects := []runtime.Object{
			node("a", "64", "64Gi"), node("b", "64", "64Gi"), node("c", "64", "64Gi"), gpuClass("gpu"),
			slice("a", gpu("x", "m1"), gpu("y", "m1")), slice("b", gpu("x", "m1")),
		}
		for i := range 4 {
			objects = append(objects, gpuClaim(fmt.Sprint("c", i)))
		}
		s := newAPIServer(t, objects...)
		s.withClaims()
		s.lead(s.start(scheduler.Config{Seed: 1}))
		for i := range 4 {
			s.put(pod(fmt.Sprint("p", i), "1", "1Gi", usesClaim(fmt.Sprint("c", i))))
		}
		waiting := -1
		s.eventually("three are bound", func(pods map[string]*v1.Pod) bool {
			bound := 0
			for i := range 4 {
				if pods[fmt.Sprint("default/p", i)].Spec.NodeName != "" {
					bound++
				} else {
					waiting = i
				}
			}
			return bound == 3
		})
		time.Sleep(time.Minute)
		var taken []string
		for i := range 4 {
			p, c := s.get("default", fmt.Sprint("p", i)), s.claim(fmt.Sprint("c", i))
			if i == waiting {
				if p.Spec.NodeName != "" || c.Status.Allocation != nil {
					t.Errorf("%s is on %q with %v", p.Name, p.Spec.NodeName, devicesOf(c))
				}
				continue
			}
			has := devicesOf(c)
			if len(has) != 1 || has[0][:1] != p.Spec.NodeName {
				t.Errorf("%s on %s has %v", p.Name, p.Spec.NodeName, has)
			}
			if len(c.Status.ReservedFor) != 1 || c.Status.ReservedFor[0].UID != p.UID ||
				!slices.Contains(c.Finalizers, resourcev1.Finalizer) {
				t.Errorf("claim of %s: %+v", p.Name, c)
			}
			taken = append(taken, has...)
		}
		slices.Sort(taken)
		if !slices.Equal(taken, []string{"a/x", "a/y", "b/x"}) {
			t.Errorf("taken: %v", taken)
		}
		s.eventuallyEvent(fmt.Sprint("p", waiting), "FailedScheduling",
			"0/3 nodes are available: 3 cannot allocate all claims")

		// Like the controller after the end of the pod.
		free := (waiting + 1) % 4
		s.remove("default", fmt.Sprint("p", free))
		c := s.claim(fmt.Sprint("c", free)).DeepCopy()
		c.Status = resourcev1.ResourceClaimStatus{}
		if _, err := s.client.ResourceV1().ResourceClaims("default").UpdateStatus(t.Context(), c,
			metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		s.eventually("the fourth is bound", s.bound(fmt.Sprint("p", waiting)))
	})
}

// TestDevicesOfAClaimFromATemplate: the pod waits for the claim, and for its class.
func TestDevicesOfAClaimFromATemplate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t, node("a", "4", "8Gi"), node("b", "4", "8Gi"), slice("a", gpu("x", "small")),
			slice("b", gpu("x", "large")))
		s.withClaims()
		s.lead(s.start(scheduler.Config{}))
		template := "t"
		p := pod("p", "1", "1Gi", func(p *v1.Pod) {
			p.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: &template}}
		})
		s.put(p)
		time.Sleep(time.Minute)
		if s.get("default", "p").Status.Conditions != nil {
			t.Error("a pod whose claim was not made was tried")
		}
		controller := true
		made := gpuClaim("made", func(c *resourcev1.ResourceClaim) {
			c.OwnerReferences = []metav1.OwnerReference{
				{APIVersion: "v1", Kind: "Pod", Name: "p", UID: p.UID, Controller: &controller}}
			c.Spec.Devices.Requests[0].Exactly.Selectors = []resourcev1.DeviceSelector{
				{CEL: &resourcev1.CELDeviceSelector{
					Expression: fmt.Sprintf("device.attributes[%q].model == 'large'", gpuDriver),
				}}}
		})
		if _, err := s.client.ResourceV1().ResourceClaims("default").Create(t.Context(), made,
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		p = s.get("default", "p")
		p.Status.ResourceClaimStatuses = []v1.PodResourceClaimStatus{{Name: "gpu", ResourceClaimName: &made.Name}}
		s.put(p)
		s.eventuallyEvent("p", "FailedScheduling",
			"0/2 nodes are available: request r: device class gpu does not exist.")
		if _, err := s.client.ResourceV1().DeviceClasses().Create(t.Context(), gpuClass("gpu"),
			metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		s.eventually("bound", s.bound("p"))
		if got := s.get("default", "p").Spec.NodeName; got != "b" {
			t.Errorf("on %q, want b, which has the large one", got)
		}
	})
}

// TestDevicesWithTaints: neither a driver's taint nor a rule's is overlooked, and a toleration
// helps.
func TestDevicesWithTaints(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		taint := resourcev1.DeviceTaint{Key: "ill", Effect: resourcev1.DeviceTaintEffectNoSchedule}
		rule := &resourcev1.DeviceTaintRule{}
		rule.Name = "maintenance"
		rule.Spec.Taint, rule.Spec.DeviceSelector = taint, &resourcev1.DeviceTaintSelector{Pool: new("b")}
		s := newAPIServer(t, node("a", "4", "8Gi"), node("b", "4", "8Gi"), gpuClass("gpu"), rule, gpuClaim("c1"),
			gpuClaim("c2", func(c *resourcev1.ResourceClaim) {
				c.Spec.Devices.Requests[0].Exactly.Tolerations = []resourcev1.DeviceToleration{
					{Key: "ill", Operator: resourcev1.DeviceTolerationOpExists}}
			}),
			slice("a", gpu("x", "m", func(d *resourcev1.Device) { d.Taints = []resourcev1.DeviceTaint{taint} })),
			slice("b", gpu("x", "m")))
		s.withClaims()
		s.lead(s.start(scheduler.Config{}))
		s.put(pod("careful", "1", "1Gi", usesClaim("c1")))
		s.eventuallyEvent("careful", "FailedScheduling", "0/2 nodes are available")
		s.put(
			pod("brave", "1", "1Gi", usesClaim("c2"),
				func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{v1.LabelHostname: "a"} }))
		s.eventually("the brave one is bound", s.bound("brave"))
		if err := s.client.ResourceV1().DeviceTaintRules().Delete(t.Context(), rule.Name,
			metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		s.eventually("the careful one is bound", s.bound("careful"))
	})
}

// TestDevicesOfExtendedResources: a class stands for a resource, for which the pod gets a claim.
func TestDevicesOfExtendedResources(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		name := "example.com/gpu"
		s := newAPIServer(t, node("a", "4", "8Gi"), node("b", "4", "8Gi"),
			slice("b", gpu("x", "m"), gpu("y", "m"), gpu("z", "m")),
			gpuClass("gpu", func(c *resourcev1.DeviceClass) { c.Spec.ExtendedResourceName = &name }))
		s.withClaims()
		s.lead(s.start(scheduler.Config{}))
		wants := func(n string) func(*v1.Pod) {
			return func(p *v1.Pod) {
				p.Spec.Containers[0].Resources.Requests[v1.ResourceName(name)] = resource.MustParse(n)
			}
		}
		s.put(pod("p", "1", "1Gi", wants("2")))
		s.eventually("bound", s.bound("p"))
		p := s.get("default", "p")
		status := p.Status.ExtendedResourceClaimStatus
		if p.Spec.NodeName != "b" || status == nil || len(status.RequestMappings) != 1 ||
			status.RequestMappings[0].ContainerName != "c" ||
			status.RequestMappings[0].ResourceName != name {
			t.Fatalf("on %q with %+v", p.Spec.NodeName, status)
		}
		c := s.claim(status.ResourceClaimName)
		if got := devicesOf(c); len(got) != 2 || got[0] == got[1] {
			t.Errorf("devices %v, want 2", got)
		}
		if c.Annotations[resourcev1.ExtendedResourceClaimAnnotation] != "true" || !metav1.IsControlledBy(c, p) ||
			c.Spec.Devices.Requests[0].Name != status.RequestMappings[0].RequestName {
			t.Errorf("claim %+v", c)
		}
		s.put(pod("q", "1", "1Gi", wants("2")))
		s.eventuallyEvent("q", "FailedScheduling", "0/2 nodes are available")
	})
}

// TestDevicesAreGivenBack: after a failed binding the pod is no user of the claim, and the devices
// are free.
func TestDevicesAreGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t, node("a", "4", "8Gi"), gpuClass("gpu"), gpuClaim("c1"), slice("a", gpu("x", "m")))
		s.withClaims()
		failures := 0
		s.onBind = func(_ *v1.Binding, apply func() error) error {
			if failures++; failures <= 3 {
				return errors.New("not now")
			}
			return apply()
		}
		s.lead(s.start(scheduler.Config{}))
		s.put(pod("p", "1", "1Gi", usesClaim("c1")))
		s.eventually("bound", s.bound("p"))
		if c := s.claim("c1"); len(c.Status.ReservedFor) != 1 || !slices.Equal(devicesOf(c), []string{"a/x"}) {
			t.Errorf("claim %+v", c.Status)
		}
	})
}

// TestDevicesThatAreAttachedLate: the pod is bound when the driver has attached the device, and no
// other pod waits meanwhile.
func TestDevicesThatAreAttachedLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		late := func(d *resourcev1.Device) {
			bindsToNode := true
			d.BindsToNode, d.BindingConditions, d.BindingFailureConditions = &bindsToNode, []string{"Attached"},
				[]string{"Broken"}
		}
		s := newAPIServer(t, node("a", "4", "8Gi"), gpuClass("gpu"), gpuClaim("c1"), slice("a", gpu("x", "m", late)))
		s.withClaims()
		s.lead(s.start(scheduler.Config{Writes: 1}))
		s.put(pod("p", "1", "1Gi", usesClaim("c1")))
		s.eventuallyEvent("p", "BindingConditionsPending", "waiting for binding conditions for device on node a")
		s.put(pod("other", "1", "1Gi"))
		s.eventually("another pod is bound meanwhile", s.bound("other"))
		time.Sleep(time.Minute)
		if got := s.get("default", "p").Spec.NodeName; got != "" {
			t.Fatalf("bound to %q before the device was attached", got)
		}
		c := s.claim("c1").DeepCopy()
		c.Status.Devices = []resourcev1.AllocatedDeviceStatus{{Driver: gpuDriver, Pool: "a", Device: "x",
			Conditions: []metav1.Condition{{Type: "Attached", Status: metav1.ConditionTrue}}}}
		if _, err := s.client.ResourceV1().ResourceClaims("default").UpdateStatus(t.Context(), c,
			metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		s.eventually("bound", s.bound("p"))
	})
}

// TestDevicesOfTheWrongNode: an allocated claim without a user keeps a pod from the only node that
// has room. The allocation is removed and made on that node.
func TestDevicesOfTheWrongNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t, node("a", "1", "8Gi"), node("b", "4", "8Gi"), gpuClass("gpu"), slice("a", gpu("x", "m")),
			slice("b", gpu("x", "m")),
			gpuClaim("c1", func(c *resourcev1.ResourceClaim) {
				c.Finalizers = []string{resourcev1.Finalizer}
				c.Status.Allocation = &resourcev1.AllocationResult{
					Devices: resourcev1.DeviceAllocationResult{
						Results: []resourcev1.DeviceRequestAllocationResult{
							{Request: "r", Driver: gpuDriver, Pool: "a", Device: "x"}}},
					NodeSelector: &v1.NodeSelector{NodeSelectorTerms: []v1.NodeSelectorTerm{{
						MatchFields: []v1.NodeSelectorRequirement{
							{Key: "metadata.name", Operator: v1.NodeSelectorOpIn, Values: []string{"a"}}},
					}}},
				}
			}))
		s.withClaims()
		s.lead(s.start(scheduler.Config{}))
		s.put(pod("p", "2", "1Gi", usesClaim("c1")))
		s.eventually("bound", s.bound("p"))
		if got := devicesOf(s.claim("c1")); !slices.Equal(got, []string{"b/x"}) {
			t.Errorf("devices %v, want b/x", got)
		}
	})
}

// TestANewLeaderKnowsWhatIsTaken: the informer of claims is behind, and shows a device as free that
// the last leader has allocated.
func TestANewLeaderKnowsWhatIsTaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newAPIServer(t, node("a", "4", "8Gi"), gpuClass("gpu"), slice("a", gpu("x", "m")), gpuClaim("c1"),
			gpuClaim("c2"))
		taken := gpuClaim("c1", func(c *resourcev1.ResourceClaim) {
			c.ResourceVersion = "7"
			c.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{
				Results: []resourcev1.DeviceRequestAllocationResult{
					{Request: "r", Driver: gpuDriver, Pool: "a", Device: "x"}}}}
		})
		sched := s.start(scheduler.Config{})
		// From now on the API server knows more than the informers.
		s.client.PrependReactor("list", "resourceclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
			return true, &resourcev1.ResourceClaimList{Items: []resourcev1.ResourceClaim{*taken, *gpuClaim("c2")}}, nil
		})
		s.put(pod("p", "1", "1Gi", usesClaim("c2")))
		s.lead(sched)
		time.Sleep(time.Minute)
		if c := s.claim("c2"); c.Status.Allocation != nil {
			t.Fatalf("c2 has %v, which c1 has", devicesOf(c))
		}
		if _, err := s.client.ResourceV1().ResourceClaims("default").UpdateStatus(t.Context(), taken,
			metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		s.eventuallyEvent("p", "FailedScheduling", "0/1 nodes are available: 1 cannot allocate all claims")
	})
}
