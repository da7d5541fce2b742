package podparts

import (
	"fmt"
	"reflect"
	"runtime"
	"testing"
	"time"
	"unsafe"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	resourcehelper "k8s.io/component-helpers/resource"
)

// pod is a pod of a ReplicaSet, as it is read from the API.
func pod(t testing.TB, n int) *corev1.Pod {
	t.Helper()
	token := fmt.Sprintf("kube-api-access-%05d", n)
	container := func(name string) corev1.Container {
		return corev1.Container{
			Name: name, Image: "registry.example.com/" + name + ":1", Command: []string{"/bin/" + name, "--serve"},
			Ports: []corev1.ContainerPort{{ContainerPort: 8080}},
			Env: []corev1.EnvVar{
				{Name: "MODE", Value: "production"}, {Name: "LEVEL", Value: "info"},
				{Name: "NODE",
					ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "spec.nodeName"}}},
			},
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"),
					corev1.ResourceMemory: resource.MustParse("64Mi")}},
			ReadinessProbe: &corev1.Probe{
				ProbeHandler: corev1.ProbeHandler{
					HTTPGet: &corev1.HTTPGetAction{Path: "/ready", Port: intstr.FromInt32(8080)}}},
			VolumeMounts: []corev1.VolumeMount{
				{Name: token, MountPath: "/var/run/secrets/kubernetes.io/serviceaccount", ReadOnly: true}},
		}
	}
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", GenerateName: "web-7c5d-", Name: fmt.Sprintf("web-7c5d-%05d", n),
			ResourceVersion: fmt.Sprint(1000 + n),
			Labels:          map[string]string{"app": "web", "pod-template-hash": "7c5d"},
			Annotations:     map[string]string{"checksum/config": "8f14e45fceea167a"},
			OwnerReferences: []metav1.OwnerReference{
				{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-7c5d", UID: "a"}},
		},
		Spec: corev1.PodSpec{
			NodeName: fmt.Sprint("node-", n%10), ServiceAccountName: "web",
			InitContainers: []corev1.Container{container("migrate")},
			Containers:     []corev1.Container{container("web"), container("proxy")},
			Volumes: []corev1.Volume{
				{Name: token, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
					Sources: []corev1.VolumeProjection{
						{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token"}}},
				}}}},
			Affinity: &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
					{TopologyKey: "kubernetes.io/hostname"}},
			}},
			Tolerations: []corev1.Toleration{
				{Key: "node.kubernetes.io/not-ready", Operator: corev1.TolerationOpExists,
					Effect: corev1.TaintEffectNoExecute}},
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, QOSClass: corev1.PodQOSBurstable,
			HostIP: fmt.Sprint("10.1.0.", n%10), HostIPs: []corev1.HostIP{{IP: fmt.Sprint("10.1.0.", n%10)}},
			PodIP: fmt.Sprint("10.0.0.", n%250), PodIPs: []corev1.PodIP{{IP: fmt.Sprint("10.0.0.", n%250)}},
			StartTime:             &metav1.Time{Time: time.Unix(int64(n), 0)},
			InitContainerStatuses: []corev1.ContainerStatus{ended("migrate", token)},
			ContainerStatuses:     []corev1.ContainerStatus{running("web", token, n), running("proxy", token, n)},
		},
	}
	for _, is := range []corev1.PodConditionType{corev1.PodReadyToStartContainers, corev1.PodInitialized,
		corev1.PodReady, corev1.ContainersReady, corev1.PodScheduled} {
		p.Status.Conditions = append(p.Status.Conditions,
			corev1.PodCondition{Type: is, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Unix(int64(n), 0)})
	}
	data, err := p.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	read := new(corev1.Pod)
	if err := read.Unmarshal(data); err != nil {
		t.Fatal(err)
	}
	return read
}

func running(name, token string, n int) corev1.ContainerStatus {
	resources := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"),
		corev1.ResourceMemory: resource.MustParse("64Mi")}
	return corev1.ContainerStatus{
		Name: name, Image: "registry.example.com/" + name + ":1",
		ImageID:     "registry.example.com/" + name + "@sha256:0123456789abcdef",
		ContainerID: fmt.Sprintf("containerd://%032d", n), Ready: true, Started: new(true),
		State: corev1.ContainerState{
			Running: &corev1.ContainerStateRunning{StartedAt: metav1.Unix(int64(n), 0)}},
		AllocatedResources: resources, Resources: &corev1.ResourceRequirements{Requests: resources},
		VolumeMounts: []corev1.VolumeMountStatus{
			{Name: token, MountPath: "/var/run/secrets/kubernetes.io/serviceaccount", ReadOnly: true}},
		User: &corev1.ContainerUser{Linux: &corev1.LinuxContainerUser{UID: 1000}},
	}
}

func ended(name, token string) corev1.ContainerStatus {
	s := running(name, token, 0)
	s.Started, s.State = new(false),
		corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: 0, Reason: "Completed"}}
	return s
}

func TestPodsOfOneTemplateShare(t *testing.T) {
	s := New(1 << 20)
	first, second := pod(t, 1), pod(t, 11) // of one node
	s.Share(first)
	s.Share(second)
	for n, p := range map[int]*corev1.Pod{1: first, 11: second} {
		if want := pod(t, n); !equality.Semantic.DeepEqual(p, want) {
			t.Errorf("pod %d was changed: %+v, want %+v", n, p, want)
		}
	}
	a, b := &first.Spec, &second.Spec
	for what, shared := range map[string]bool{
		"labels":           reflect.ValueOf(first.Labels).Pointer() == reflect.ValueOf(second.Labels).Pointer(),
		"owners":           &first.OwnerReferences[0] == &second.OwnerReferences[0],
		"environment":      &a.Containers[1].Env[0] == &b.Containers[1].Env[0],
		"probe":            a.Containers[0].ReadinessProbe == b.Containers[0].ReadinessProbe,
		"init containers'": &a.InitContainers[0].Command[0] == &b.InitContainers[0].Command[0],
		"volume":           a.Volumes[0].Projected == b.Volumes[0].Projected,
		"tolerations":      &a.Tolerations[0] == &b.Tolerations[0],
		"affinity":         a.Affinity == b.Affinity,
		"path of a mount":  same(a.Containers[0].VolumeMounts[0].MountPath, b.Containers[1].VolumeMounts[0].MountPath),
		"node":             same(a.NodeName, b.NodeName),
		"node's address":   &first.Status.HostIPs[0] == &second.Status.HostIPs[0],
		"image":            same(first.Status.ContainerStatuses[0].ImageID, second.Status.ContainerStatuses[0].ImageID),
		"resources":        first.Status.ContainerStatuses[0].Resources == second.Status.ContainerStatuses[0].Resources,
		"condition":        same(string(first.Status.Conditions[0].Type), string(second.Status.Conditions[0].Type)),
	} {
		if !shared {
			t.Errorf("each has a copy of its %s", what)
		}
	}
	if token := second.Spec.Volumes[0].Name; !same(token, b.Containers[0].VolumeMounts[0].Name) ||
		!same(token, second.Status.ContainerStatuses[1].VolumeMounts[0].Name) {
		t.Error("a pod has the name of its volume more than once")
	}
	if a.Containers[0].ReadinessProbe == a.Containers[1].ReadinessProbe {
		t.Error("containers with different names share a probe: how were they found equal?")
	}
}

// same reports whether two texts are one in memory.
func same(a, b string) bool { return a == b && unsafe.StringData(a) == unsafe.StringData(b) }

// TestAnotherTemplateSharesNothing changes one field deep in a part, and fields of which a pod has
// its own.
func TestAnotherTemplateSharesNothing(t *testing.T) {
	s := New(1 << 20)
	s.Share(pod(t, 1))
	for what, change := range map[string]func(p *corev1.Pod){
		"a variable":   func(p *corev1.Pod) { p.Spec.Containers[1].Env[1].Value = "debug" },
		"an image":     func(p *corev1.Pod) { p.Spec.InitContainers[0].Image = "other" },
		"a label":      func(p *corev1.Pod) { p.Labels["app"] = "api" },
		"a toleration": func(p *corev1.Pod) { p.Spec.Tolerations[0].Key = "other" },
		"the affinity": func(p *corev1.Pod) { p.Spec.Affinity.PodAntiAffinity = nil },
		"the node":     func(p *corev1.Pod) { p.Spec.NodeName = "other" },
		"the hostname": func(p *corev1.Pod) { p.Spec.Hostname = "web-0" },
		"a volume": func(
			p *corev1.Pod,
		) {
			p.Spec.Volumes[0].Projected.Sources[0].ServiceAccountToken.Path = "other"
		},
		"a mount": func(p *corev1.Pod) { p.Spec.Containers[0].VolumeMounts[0].MountPath = "/other" },
		"a debugger": func(p *corev1.Pod) {
			p.Spec.EphemeralContainers = []corev1.EphemeralContainer{
				{EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: "debug"}}}
		},
		"a condition": func(p *corev1.Pod) { p.Status.Conditions[2].Status = corev1.ConditionFalse },
		"its time":    func(p *corev1.Pod) { p.Status.Conditions[2].LastTransitionTime = metav1.Unix(1, 0) },
		"the phase":   func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed },
		"the message": func(p *corev1.Pod) { p.Status.Message = "lost" },
		"restarts":    func(p *corev1.Pod) { p.Status.ContainerStatuses[0].RestartCount = 7 },
		"a start":     func(p *corev1.Pod) { p.Status.ContainerStatuses[0].Started = new(false) },
		"an end": func(p *corev1.Pod) {
			p.Status.ContainerStatuses[0].State = corev1.ContainerState{
				Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
		},
		"what it got":   func(p *corev1.Pod) { p.Status.ContainerStatuses[1].Resources = nil },
		"no labels":     func(p *corev1.Pod) { p.Labels = nil },
		"no containers": func(p *corev1.Pod) { p.Spec.Containers = nil },
		"nothing":       func(p *corev1.Pod) { *p = corev1.Pod{} },
	} {
		got, want := pod(t, 2), pod(t, 2)
		change(got)
		change(want)
		if s.Share(got); !equality.Semantic.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", what, got, want)
		}
	}
	last := pod(t, 1)
	if s.Share(last); !equality.Semantic.DeepEqual(last, pod(t, 1)) {
		t.Errorf("a part was changed by others: %+v", last)
	}
}

// TestALibraryChangesNoOtherPod: PodRequests adds an overhead in place to resources of a pod that
// have no int64.
func TestALibraryChangesNoOtherPod(t *testing.T) {
	s := New(1 << 20)
	large := func(n int) *corev1.Pod {
		p := pod(t, n)
		p.Spec.Resources = &corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("100Ti")}}
		p.Spec.Overhead = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("1Gi")}
		s.Share(p)
		return p
	}
	first, second := large(1), large(2)
	for range 3 {
		resourcehelper.PodRequests(first, resourcehelper.PodResourcesOptions{})
	}
	if got := second.Spec.Resources.Requests.Memory(); got.Cmp(resource.MustParse("100Ti")) != 0 {
		t.Errorf("the other pod wants %v", got)
	}
}

// takes returns the bytes of all parts, computed from their contents.
func takes(s *Sharer) (total int) {
	for _, p := range s.parts.All() {
		total += partCost + len(p.encoding)
		if p.value != nil {
			total += int(reflect.TypeOf(p.value).Elem().Size()) + decodedFactor*(len(p.encoding)-1)
		}
	}
	return total
}

// TestWhatIsFoundStays: pods have the same text, however many others come between them.
func TestWhatIsFoundStays(t *testing.T) {
	s := New(64 << 10)
	first := s.text("node-1")
	for n := range 10_000 {
		if again := s.text("node-1"); unsafe.StringData(again) != unsafe.StringData(first) {
			t.Fatalf("after %d others there is a second text", n)
		}
		s.text(fmt.Sprint("other-", n))
	}
}

func TestItIsBounded(t *testing.T) {
	const room = 64 << 10
	s := New(room)
	for n := range 1000 {
		p := pod(t, n)
		p.Spec.Containers[0].Image = fmt.Sprint("image", n)
		s.Share(p)
		if cost := takes(s); cost > room || n > 500 && cost < room/4 {
			t.Fatalf("after %d pods there are parts of %d bytes", n, cost)
		}
	}
	for n := range 1000 {
		if s.text(fmt.Sprintf("%0500d", n)); takes(s) > room {
			t.Fatalf("after %d texts there are parts of %d bytes", n, takes(s))
		}
	}
	first, second := pod(t, 1), pod(t, 2)
	s.Share(first)
	s.Share(second)
	if first.Spec.Containers[1].ReadinessProbe != second.Spec.Containers[1].ReadinessProbe {
		t.Error("nothing is shared any more")
	}
	large := pod(t, 3)
	large.Annotations = map[string]string{"large": string(make([]byte, room))}
	if s.Share(large); takes(s) > room {
		t.Error("a part that is larger than the room is kept")
	}
}

// TestAHashIsNoProof: a part with only the hash of another one is not taken for it, and
// replaces it.
func TestAHashIsNoProof(t *testing.T) {
	s := New(1 << 20)
	s.buffer = append(s.buffer, byte(textPart), 'b')
	hash, _ := s.look()
	s.parts.Put(hash, part{encoding: string(rune(textPart)) + "a"}, 1)
	for range 2 {
		if got := s.text("b"); got != "b" {
			t.Errorf("b has become %q", got)
		}
	}
	if kept, _ := s.parts.Peek(hash); kept.encoding[1:] != "b" {
		t.Errorf("%q is kept", kept.encoding)
	}
}

// BenchmarkShare shares pods that are decoded from stored bytes, and measures the memory of a pod.
func BenchmarkShare(b *testing.B) {
	data, err := pod(b, 1).Marshal()
	if err != nil {
		b.Fatal(err)
	}
	for what, share := range map[string]func(*corev1.Pod){"alone": func(*corev1.Pod) {}, "shared": New(4 << 20).Share} {
		b.Run(what, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				p := new(corev1.Pod)
				if err := p.Unmarshal(data); err != nil {
					b.Fatal(err)
				}
				share(p)
			}
			b.StopTimer()
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			kept := make([]*corev1.Pod, 10000)
			for i := range kept {
				kept[i] = new(corev1.Pod)
				if err := kept[i].Unmarshal(data); err != nil {
					b.Fatal(err)
				}
				share(kept[i])
			}
			runtime.GC()
			runtime.ReadMemStats(&after)
			b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(len(kept)), "bytes/pod")
			b.ReportMetric(float64(after.HeapObjects-before.HeapObjects)/float64(len(kept)), "objects/pod")
			runtime.KeepAlive(kept)
		})
	}
}
