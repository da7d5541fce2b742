package admission

import (
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func podOf(cpu, memory string) *v1.Pod {
	list := v1.ResourceList{}
	if cpu != "" {
		list[v1.ResourceCPU] = resource.MustParse(cpu)
	}
	if memory != "" {
		list[v1.ResourceMemory] = resource.MustParse(memory)
	}
	return &v1.Pod{
		Spec: v1.PodSpec{Containers: []v1.Container{{Name: "c", Resources: v1.ResourceRequirements{Requests: list}}}}}
}

func changed(pod *v1.Pod, change func(*v1.Pod)) *v1.Pod {
	change(pod)
	return pod
}

func port(number int32, ip string, protocol v1.Protocol) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Spec.Containers[0].Ports = append(p.Spec.Containers[0].Ports,
			v1.ContainerPort{HostPort: number, HostIP: ip, Protocol: protocol})
	}
}

func sysctl(name string) func(*v1.Pod) {
	return func(p *v1.Pod) {
		p.Spec.SecurityContext = &v1.PodSecurityContext{Sysctls: []v1.Sysctl{{Name: name, Value: "1"}}}
	}
}

func TestCheck(t *testing.T) {
	node := func() *v1.Node {
		return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"zone": "a"}},
			Status: v1.NodeStatus{
				Allocatable: v1.ResourceList{v1.ResourceCPU: resource.MustParse("2"),
					v1.ResourceMemory: resource.MustParse("1Gi"),
					v1.ResourcePods:   resource.MustParse("3"), "example.com/gpu": resource.MustParse("1")}}}
	}
	extended := func(name v1.ResourceName, n string) func(*v1.Pod) {
		return func(p *v1.Pod) { p.Spec.Containers[0].Resources.Requests[name] = resource.MustParse(n) }
	}
	claimed := func(name v1.ResourceName) func(*v1.Pod) {
		return func(p *v1.Pod) {
			extended(name, "1")(p)
			p.Status.ExtendedResourceClaimStatus = &v1.PodExtendedResourceClaimStatus{ResourceClaimName: "c",
				RequestMappings: []v1.ContainerExtendedResourceRequest{
					{ContainerName: "c", ResourceName: string(name), RequestName: "r"}}}
		}
	}
	critical := func(p *v1.Pod) { n := int32(2000001000); p.Spec.Priority = &n }
	static := func(p *v1.Pod) { p.Annotations = map[string]string{"kubernetes.io/config.source": "file"} }
	confined := func(p *v1.Pod) {
		p.Spec.Containers[0].SecurityContext = &v1.SecurityContext{
			AppArmorProfile: &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeRuntimeDefault}}
	}
	for _, c := range []struct {
		name   string
		pod    *v1.Pod
		others []*v1.Pod
		in     func(*Input)
		want   string // reason: message
	}{
		{name: "it fits", pod: podOf("1", "1Gi"), others: []*v1.Pod{podOf("1", "")}},
		{name: "no CPU", pod: podOf("1500m", ""), others: []*v1.Pod{podOf("1", "")},
			want: "OutOfcpu: Node didn't have enough resource: cpu, requested: 1500, used: 1000, capacity: 2000"},
		{name: "no memory", pod: podOf("", "1Gi"), others: []*v1.Pod{podOf("", "1Mi")},
			want: "OutOfmemory: Node didn't have enough resource: memory, requested: 1073741824, used: 1048576, capacity: 1073741824"},
		{name: "who asks for nothing fits a full node", pod: podOf("", ""), others: []*v1.Pod{podOf("2", "2Gi")}},
		{name: "too many pods", pod: podOf("", ""), others: []*v1.Pod{podOf("", ""), podOf("", ""), podOf("", "")},
			want: "OutOfpods: Node didn't have enough resource: pods, requested: 1, used: 3, capacity: 3"},
		{name: "a device", pod: changed(podOf("", ""), extended("example.com/gpu", "2")),
			want: "OutOfexample.com/gpu: Node didn't have enough resource: example.com/gpu, requested: 2, used: 0, capacity: 1"},
		{name: "a resource that the node does not count",
			pod: changed(podOf("", ""), extended("example.com/other", "2"))},
		{name: "a device of a claim where the plugin has gone", pod: changed(podOf("", ""), claimed("example.com/gpu")),
			in: func(in *Input) {
				in.Node.Status.Allocatable["example.com/gpu"] = resource.MustParse("0")
			}},
		{name: "a device of a claim, by the name of its class",
			pod: changed(podOf("", ""), claimed("deviceclass.resource.kubernetes.io/gpu"))},
		{name: "a device of a class without a claim",
			pod:  changed(podOf("", ""), extended("deviceclass.resource.kubernetes.io/gpu", "1")),
			want: "OutOfdeviceclass.resource.kubernetes.io/gpu: Node didn't have enough resource: deviceclass.resource.kubernetes.io/gpu, requested: 1, used: 0, capacity: 0"},
		{name: "a claim covers no other resource",
			pod:  changed(changed(podOf("", ""), claimed("example.com/fpga")), extended("example.com/gpu", "2")),
			want: "OutOfexample.com/gpu: Node didn't have enough resource: example.com/gpu, requested: 2, used: 0, capacity: 1"},
		{name: "devices of claims are none of the plugin's",
			pod:    changed(podOf("", ""), extended("example.com/gpu", "1")),
			others: []*v1.Pod{changed(podOf("", ""), claimed("example.com/gpu"))}},
		{name: "selector",
			pod:  changed(podOf("", ""), func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"zone": "b"} }),
			want: "NodeAffinity: Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector"},
		{name: "another node", pod: changed(podOf("", ""), func(p *v1.Pod) { p.Spec.NodeName = "n2" }),
			want: "NodeName: Predicate NodeName failed: node(s) didn't match the requested node name"},
		{name: "a port is taken", pod: changed(podOf("", ""), port(80, "", "")),
			others: []*v1.Pod{changed(podOf("", ""), port(80, "127.0.0.1", v1.ProtocolTCP))},
			want: "NodePorts: " +
				"Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports"},
		{name: "ports of another protocol and address",
			pod: changed(changed(podOf("", ""), port(80, "", v1.ProtocolUDP)), port(81, "127.0.0.1", "")),
			others: []*v1.Pod{
				changed(changed(podOf("", ""), port(80, "", v1.ProtocolTCP)), port(81, "127.0.0.2", ""))}},
		{name: "a taint that ends pods", pod: podOf("", ""), in: func(in *Input) {
			in.Node.Spec.Taints = []v1.Taint{{Key: "k", Effect: v1.TaintEffectNoExecute},
				{Key: "s", Effect: v1.TaintEffectNoSchedule}}
		}, want: "TaintToleration: Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate"},
		{name: "static pods ignore taints", pod: changed(podOf("", ""), static), in: func(in *Input) {
			in.Node.Spec.Taints = []v1.Taint{{Key: "k", Effect: v1.TaintEffectNoExecute}}
		}},
		{name: "a taint that keeps pods away is the scheduler's matter", pod: podOf("", ""), in: func(in *Input) {
			in.Node.Spec.Taints = []v1.Taint{{Key: "s", Effect: v1.TaintEffectNoSchedule}}
		}},
		{name: "safe sysctl", pod: changed(podOf("", ""), sysctl("net.ipv4.tcp_syncookies"))},
		{name: "unsafe sysctl", pod: changed(podOf("", ""), sysctl("kernel.msgmax")),
			want: `SysctlForbidden: forbidden sysctl: "kernel.msgmax" not allowlisted`},
		{name: "allowed sysctl", pod: changed(podOf("", ""), sysctl("kernel.msgmax")),
			in: func(in *Input) { in.UnsafeSysctls = []string{"kernel.msg*"} }},
		{name: "allowed sysctl by slashes", pod: changed(podOf("", ""), sysctl("kernel/msgmax")),
			in: func(in *Input) { in.UnsafeSysctls = []string{"kernel.msgmax"} }},
		{name: "sysctl of the host's network",
			pod: changed(changed(podOf("", ""), sysctl("net.ipv4.tcp_syncookies")),
				func(p *v1.Pod) { p.Spec.HostNetwork = true }),
			want: `SysctlForbidden: forbidden sysctl: "net.ipv4.tcp_syncookies" not allowed with host net enabled`},
		{name: "AppArmor on a host without", pod: changed(podOf("", ""), confined),
			want: "AppArmor: Cannot enforce AppArmor: AppArmor is not enabled on the host"},
		{name: "AppArmor", pod: changed(podOf("", ""), confined), in: func(in *Input) { in.AppArmor = true }},
		{name: "little memory, and it asked for none", pod: podOf("", ""),
			in:   func(in *Input) { in.Pressure = []v1.NodeConditionType{v1.NodeMemoryPressure} },
			want: "Evicted: The node had condition: [MemoryPressure]. "},
		{name: "little memory, and it asked for some", pod: podOf("", "1Mi"),
			in: func(in *Input) { in.Pressure = []v1.NodeConditionType{v1.NodeMemoryPressure} }},
		{name: "little disk", pod: podOf("", "1Mi"),
			in:   func(in *Input) { in.Pressure = []v1.NodeConditionType{v1.NodeDiskPressure} },
			want: "Evicted: The node had condition: [DiskPressure]. "},
		{name: "little disk, and it is critical", pod: changed(podOf("", ""), critical),
			in: func(in *Input) { in.Pressure = []v1.NodeConditionType{v1.NodeDiskPressure} }},
		{name: "the machine goes down", pod: podOf("", ""), in: func(in *Input) { in.ShuttingDown = true },
			want: "NodeShutdown: Pod was rejected as the node is shutting down."},
		{name: "another system",
			pod:  changed(podOf("", ""), func(p *v1.Pod) { p.Spec.OS = &v1.PodOS{Name: v1.Windows} }),
			want: "PodOSNotSupported: Failed to admit pod as the OS field doesn't match node OS"},
	} {
		in := Input{Pod: c.pod, Others: c.others, Node: node()}
		if c.in != nil {
			c.in(&in)
		}
		got := ""
		if r := Check(in); r != nil {
			got = r.Reason + ": " + r.Message
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}

// A resize down holds the resources until the containers have released them.
func TestHeld(t *testing.T) {
	pod := podOf("1", "1Gi")
	pod.Status.ContainerStatuses = []v1.ContainerStatus{{Name: "c", Resources: &v1.ResourceRequirements{
		Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("3")}},
		AllocatedResources: v1.ResourceList{v1.ResourceCPU: resource.MustParse("1")}}}
	if got := Held(pod); got.Cpu().String() != "3" || got.Memory().String() != "1Gi" {
		t.Errorf("held: %v", got)
	}
}

func TestValidateUnsafeSysctls(t *testing.T) {
	for pattern, ok := range map[string]bool{"kernel.msg*": true, "net.core.somaxconn": true,
		"net/core/somaxconn": true, "fs.mqueue.*": true,
		"kernel.sem": true, "vm.swappiness": false, "*": false, "kernel.*": false, "net.*.x": false, "": false} {
		err := ValidateUnsafeSysctls([]string{pattern})
		if (err == nil) != ok {
			t.Errorf("%q: %v", pattern, err)
		}
		if err != nil && !strings.Contains(err.Error(), "want") {
			t.Errorf("%q: the error says not what is wanted: %v", pattern, err)
		}
	}
}

func TestVictims(t *testing.T) {
	named := func(name string, priority int32, cpu string) *v1.Pod {
		p := podOf(cpu, "")
		p.Name, p.Spec.Priority = name, &priority
		return p
	}
	node := &v1.Node{Status: v1.NodeStatus{Allocatable: v1.ResourceList{v1.ResourceCPU: resource.MustParse("10")}}}
	others := []*v1.Pod{named("important", 100, "3"), named("small", 0, "1"), named("large", 0, "3"),
		named("critical", 2000001000, "3")}
	for _, c := range []struct {
		pod  *v1.Pod
		want string
	}{
		{named("ordinary", 1000, "9"), ""},
		{named("fits", 2000000000, "0"), ""},
		{named("one", 2000000000, "1"), "small"},
		{named("two", 2000000000, "2"), "large"},
		{named("more", 2000000000, "7"), "small large important"},
		{named("never", 2000000000, "8"), ""},
	} {
		var names []string
		for _, v := range Victims(Input{Pod: c.pod, Others: others, Node: node}) {
			names = append(names, v.Name)
		}
		if got := strings.Join(names, " "); got != c.want {
			t.Errorf("%s: %q, want %q", c.pod.Name, got, c.want)
		}
	}
}
