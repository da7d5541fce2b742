package runtimeconfig

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func podWith(policy v1.RestartPolicy, containers ...string) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u"}}
	p.Spec.RestartPolicy = policy
	for _, name := range containers {
		p.Spec.Containers = append(p.Spec.Containers, v1.Container{Name: name, Image: "img"})
	}
	return p
}

func TestExpand(t *testing.T) {
	lookup := func(name string) (string, bool) {
		v, ok := map[string]string{"A": "1", "B": "$(A)"}[name]
		return v, ok
	}
	for in, want := range map[string]string{
		"": "", "plain": "plain", "$(A)": "1", "x$(A)y$(A)": "x1y1", "$(B)": "$(A)", "$(NO)": "$(NO)", "$$(A)": "$(A)",
		"$$$(A)": "$1",
		"$":      "$", "$A": "$A", "$(A": "$(A", "$(": "$(", "a$$": "a$",
	} {
		if got := expand(in, lookup); got != want {
			t.Errorf("expand(%q) = %q, want %q", in, got, want)
		}
	}
}

// oneConfigMap is all that a pod can refer to.
type oneConfigMap map[string]string

func (o oneConfigMap) ConfigMap(_ context.Context, _ *v1.Pod, name string) (*v1.ConfigMap, error) {
	if name != "cm" {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "configmaps"}, name)
	}
	return &v1.ConfigMap{Data: o}, nil
}

func (oneConfigMap) Secret(context.Context, *v1.Pod, string) (*v1.Secret, error) {
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, "none")
}
func (oneConfigMap) Forget(types.UID) {}

func envOf(t *testing.T, b *Builder, pod *v1.Pod) (map[string]string, error) {
	t.Helper()
	list, err := b.environment(context.Background(), pod, &pod.Spec.Containers[0], nil)
	got := map[string]string{}
	for _, kv := range list {
		if _, twice := got[kv.Key]; twice {
			t.Errorf("%s is set twice", kv.Key)
		}
		got[kv.Key] = string(kv.Value)
	}
	return got, err
}

func TestEnvironment(t *testing.T) {
	service := func(namespace, name, ip string) *v1.Service {
		return &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
			Spec: v1.ServiceSpec{ClusterIP: ip, Ports: []v1.ServicePort{{Name: "web", Port: 80}}}}
	}
	b := &Builder{Objects: oneConfigMap{"x": "from", "y": "map"}, Allocatable: func() v1.ResourceList { return nil },
		Services: func(string) []*v1.Service {
			return []*v1.Service{service("ns", "my-db", "10.43.0.9"), service("ns", "headless", "None"),
				service("default", "kubernetes", "10.43.0.1")}
		}}
	pod := podWith(v1.RestartPolicyAlways, "c")
	pod.Spec.NodeName = "n1"
	optional := true
	cm := v1.LocalObjectReference{Name: "cm"}
	pod.Spec.Containers[0].EnvFrom = []v1.EnvFromSource{
		{ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: cm}},
		{SecretRef: &v1.SecretEnvSource{LocalObjectReference: v1.LocalObjectReference{Name: "no"},
			Optional: &optional}}}
	pod.Spec.Containers[0].Env = []v1.EnvVar{
		{Name: "y", Value: "own"},
		{Name: "BOTH", Value: "$(x)-$(y) at $(MY_DB_SERVICE_HOST)"},
		{Name: "NODE", ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "spec.nodeName"}}},
		{Name: "NOT",
			ValueFrom: &v1.EnvVarSource{
				ConfigMapKeyRef: &v1.ConfigMapKeySelector{LocalObjectReference: cm, Key: "no", Optional: &optional}}},
	}
	got, err := envOf(t, b, pod)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"x": "from", "y": "own", "BOTH": "from-own at 10.43.0.9", "NODE": "n1",
		"MY_DB_SERVICE_PORT_WEB": "80", "MY_DB_PORT_80_TCP_ADDR": "10.43.0.9", "MY_DB_PORT": "tcp://10.43.0.9:80",
		"KUBERNETES_SERVICE_HOST": "10.43.0.1"} {
		if got[name] != want {
			t.Errorf("%s is %q, want %q", name, got[name], want)
		}
	}
	for _, name := range []string{"NOT", "HEADLESS_SERVICE_HOST"} {
		if _, ok := got[name]; ok {
			t.Errorf("%s is set", name)
		}
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "c.env"), []byte("KEY='from a file'\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	inFile := func(key string, optional bool) *v1.EnvVarSource {
		return &v1.EnvVarSource{
			FileKeyRef: &v1.FileKeySelector{VolumeName: "v", Path: "c.env", Key: key, Optional: &optional}}
	}
	pod.Spec.Containers[0].Env = []v1.EnvVar{{Name: "F", ValueFrom: inFile("KEY", false)},
		{Name: "G", ValueFrom: inFile("NONE", true)}}
	list, err := b.environment(t.Context(), pod, &pod.Spec.Containers[0], map[string]string{"v": dir})
	if found := slices.IndexFunc(list,
		func(kv *runtimeapi.KeyValue) bool { return kv.Key == "F" && string(kv.Value) == "from a file" }); err != nil ||
		found < 0 ||
		slices.ContainsFunc(list, func(kv *runtimeapi.KeyValue) bool { return kv.Key == "G" }) {
		t.Errorf("from a file: %v, %v", list, err)
	}
	pod.Spec.Containers[0].Env = []v1.EnvVar{{Name: "F", ValueFrom: inFile("NONE", false)}}
	var lacking *ConfigError
	if _, err := b.environment(t.Context(), pod, &pod.Spec.Containers[0], map[string]string{"v": dir}); !errors.As(err,
		&lacking) {
		t.Errorf("a key that the file lacks: %v", err)
	}
	off := false
	pod.Spec.Containers[0].Env, pod.Spec.EnableServiceLinks = nil, &off
	if got, _ = envOf(t, b, pod); got["MY_DB_SERVICE_HOST"] != "" || got["KUBERNETES_SERVICE_HOST"] == "" {
		t.Errorf("without service links: %v", got)
	}
	pod.Spec.Containers[0].Env = []v1.EnvVar{
		{Name: "Z",
			ValueFrom: &v1.EnvVarSource{
				ConfigMapKeyRef: &v1.ConfigMapKeySelector{LocalObjectReference: cm, Key: "no"}}}}
	var bad *ConfigError
	if _, err = envOf(t, b, pod); !errors.As(err, &bad) {
		t.Errorf("a missing key: %v", err)
	}
}

func TestDNS(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(path, []byte("# c\nnameserver 192.0.2.53\nsearch lan. .\noptions ndots:1 rotate\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	b := &Builder{ClusterDNS: []string{"10.43.0.10"}, ClusterDomain: "cluster.local", ResolvConf: path}
	two := "2"
	for _, c := range []struct {
		name     string
		change   func(*v1.PodSpec)
		servers  []string
		searches []string
		options  []string
	}{
		{"cluster first", func(s *v1.PodSpec) { s.DNSPolicy = v1.DNSClusterFirst }, []string{"10.43.0.10"},
			[]string{"ns.svc.cluster.local", "svc.cluster.local", "cluster.local", "lan"}, []string{"ndots:5"}},
		{"the host's network has the host's names",
			func(s *v1.PodSpec) { s.DNSPolicy, s.HostNetwork = v1.DNSClusterFirst, true },
			[]string{"192.0.2.53"}, []string{"lan"}, []string{"ndots:1", "rotate"}},
		{"unless told otherwise",
			func(s *v1.PodSpec) { s.DNSPolicy, s.HostNetwork = v1.DNSClusterFirstWithHostNet, true },
			[]string{"10.43.0.10"}, []string{"ns.svc.cluster.local", "svc.cluster.local", "cluster.local", "lan"},
			[]string{"ndots:5"}},
		{"all its own", func(s *v1.PodSpec) {
			s.DNSPolicy = v1.DNSNone
			s.DNSConfig = &v1.PodDNSConfig{Nameservers: []string{"1.1.1.1"}, Searches: []string{"x"},
				Options: []v1.PodDNSConfigOption{{Name: "ndots", Value: &two}}}
		}, []string{"1.1.1.1"}, []string{"x"}, []string{"ndots:2"}},
		{"added to the cluster's", func(s *v1.PodSpec) {
			s.DNSConfig = &v1.PodDNSConfig{Nameservers: []string{"1.1.1.1", "10.43.0.10"},
				Options: []v1.PodDNSConfigOption{{Name: "ndots", Value: &two}, {Name: "edns0"}}}
		}, []string{"10.43.0.10", "1.1.1.1"},
			[]string{"ns.svc.cluster.local", "svc.cluster.local", "cluster.local", "lan"},
			[]string{"ndots:2", "edns0"}},
	} {
		pod := podWith(v1.RestartPolicyAlways, "c")
		c.change(&pod.Spec)
		got, err := b.dnsConfig(pod)
		if err != nil || !slices.Equal(got.Servers, c.servers) || !slices.Equal(got.Searches, c.searches) ||
			!slices.Equal(got.Options, c.options) {
			t.Errorf("%s: %v %v", c.name, got, err)
		}
		if notes := b.DNSWarnings(pod); len(notes) != 0 {
			t.Errorf("%s: %v", c.name, notes)
		}
	}
}

// TestDNSLimits: a configuration beyond the resolvers' limits is cut, with a warning
// in upstream's words.
func TestDNSLimits(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resolv.conf")
	if err := os.WriteFile(path, []byte("nameserver 192.0.2.1\nsearch lan\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cluster := []string{"ns.svc.cluster.local", "svc.cluster.local", "cluster.local", "lan"}
	numbered := func(n, length int) (list []string) {
		for i := range n {
			name := fmt.Sprintf("s%d.", i)
			list = append(list, name+strings.Repeat("x", length-len(name)))
		}
		return list
	}
	const servers, searches = "Nameserver limits were exceeded, some nameservers have been omitted, the applied nameserver line is: ",
		"Search Line limits were exceeded, some search paths have been omitted, the applied search line is: "
	for _, c := range []struct {
		name     string
		own      v1.PodDNSConfig
		servers  []string
		searches []string
		notes    []string
	}{
		{"three servers", v1.PodDNSConfig{Nameservers: []string{"1.1.1.1", "1.1.1.2", "1.1.1.1"}},
			[]string{"10.43.0.10", "1.1.1.1", "1.1.1.2"}, cluster, nil},
		{"four servers", v1.PodDNSConfig{Nameservers: []string{"1.1.1.1", "1.1.1.2", "1.1.1.3"}},
			[]string{"10.43.0.10", "1.1.1.1", "1.1.1.2"}, cluster, []string{servers + "10.43.0.10 1.1.1.1 1.1.1.2"}},
		{"32 search paths", v1.PodDNSConfig{Searches: numbered(28, 10)}, []string{"10.43.0.10"},
			slices.Concat(cluster, numbered(28, 10)), nil},
		{"33 search paths", v1.PodDNSConfig{Searches: numbered(29, 10)}, []string{"10.43.0.10"},
			slices.Concat(cluster, numbered(28, 10)),
			[]string{searches + strings.Join(slices.Concat(cluster, numbered(28, 10)), " ")}},
		// With the cluster's 56 characters: 56 + 8 × 249 = 2048.
		{"2048 characters", v1.PodDNSConfig{Searches: numbered(8, 248)}, []string{"10.43.0.10"},
			slices.Concat(cluster, numbered(8, 248)), nil},
		{"2049 characters", v1.PodDNSConfig{Searches: append(numbered(7, 248), strings.Repeat("y", 249))},
			[]string{"10.43.0.10"}, slices.Concat(cluster, numbered(7, 248)),
			[]string{searches + strings.Join(slices.Concat(cluster, numbered(7, 248)), " ")}},
		{"a path that no resolver takes", v1.PodDNSConfig{Searches: []string{"a", strings.Repeat("y", 254), "b"}},
			[]string{"10.43.0.10"},
			append(slices.Clone(cluster), "a", "b"), []string{searches + strings.Join(cluster, " ") + " a b"}},
		{"both",
			v1.PodDNSConfig{Nameservers: []string{"1.1.1.1", "1.1.1.2", "1.1.1.3"},
				Searches: []string{strings.Repeat("y", 254)}},
			[]string{"10.43.0.10", "1.1.1.1", "1.1.1.2"}, cluster,
			[]string{servers + "10.43.0.10 1.1.1.1 1.1.1.2", searches + strings.Join(cluster, " ")}},
	} {
		b := &Builder{ClusterDNS: []string{"10.43.0.10"}, ClusterDomain: "cluster.local", ResolvConf: path}
		pod := podWith(v1.RestartPolicyAlways, "c")
		pod.Spec.DNSPolicy, pod.Spec.DNSConfig = v1.DNSClusterFirst, &c.own
		got, err := b.dnsConfig(pod)
		if err != nil || !slices.Equal(got.Servers, c.servers) || !slices.Equal(got.Searches, c.searches) {
			t.Errorf("%s: %v %v", c.name, got, err)
		}
		var notes []string
		for _, note := range b.DNSWarnings(pod) {
			if note.Reason != "DNSConfigForming" {
				t.Errorf("%s: reason %s", c.name, note.Reason)
			}
			notes = append(notes, note.Message)
		}
		if !slices.Equal(notes, c.notes) {
			t.Errorf("%s: %q, want %q", c.name, notes, c.notes)
		}
	}
	b := &Builder{ResolvConf: path}
	pod := podWith(v1.RestartPolicyAlways, "c")
	pod.Spec.DNSPolicy = v1.DNSClusterFirst
	got, err := b.dnsConfig(pod)
	if notes := b.DNSWarnings(pod); err != nil || !slices.Equal(got.Servers, []string{"192.0.2.1"}) ||
		len(notes) != 1 || notes[0].Reason != "MissingClusterDNS" {
		t.Errorf("without cluster DNS: %v %v %v", got, notes, err)
	}
}

// TestLocalResolvers: a pod that gets only resolvers on the node's loopback has an event about
// that; a pod on the node's own network reaches them.
func TestLocalResolvers(t *testing.T) {
	path := filepath.Join(t.TempDir(), "resolv.conf")
	for name, c := range map[string]struct {
		conf   string
		change func(*v1.PodSpec)
		note   bool
	}{
		"a stub alone":       {"nameserver 127.0.0.53\n", nil, true},
		"two, with IPv6":     {"nameserver 127.0.0.1\nnameserver ::1\n", nil, true},
		"another one beside": {"nameserver 127.0.0.53\nnameserver 192.0.2.1\n", nil, false},
		"none":               {"", nil, false},
		"the node's network": {"nameserver 127.0.0.53\n", func(s *v1.PodSpec) { s.HostNetwork = true }, false},
		"cluster DNS": {"nameserver 127.0.0.53\n", func(s *v1.PodSpec) { s.DNSPolicy = v1.DNSClusterFirst },
			false},
		"a server of the pod's": {"nameserver 127.0.0.53\n",
			func(s *v1.PodSpec) { s.DNSConfig = &v1.PodDNSConfig{Nameservers: []string{"192.0.2.1"}} }, false},
		"the pod's own, and only": {"nameserver 127.0.0.53\n", func(s *v1.PodSpec) {
			s.DNSPolicy, s.DNSConfig = v1.DNSNone, &v1.PodDNSConfig{Nameservers: []string{"192.0.2.1"}}
		}, false},
	} {
		if err := os.WriteFile(path, []byte(c.conf), 0o600); err != nil {
			t.Fatal(err)
		}
		pod := podWith(v1.RestartPolicyAlways, "c")
		pod.Spec.DNSPolicy = v1.DNSDefault
		if c.change != nil {
			c.change(&pod.Spec)
		}
		notes := (&Builder{ClusterDNS: []string{"10.43.0.10"}, ClusterDomain: "cluster.local",
			ResolvConf: path}).DNSWarnings(pod)
		if c.note != (len(notes) == 1 && notes[0].Reason == eventDNSForming &&
			strings.Contains(notes[0].Message, "loopback")) || len(notes) > 1 {
			t.Errorf("%s: %v", name, notes)
		}
	}
}

func TestHostnames(t *testing.T) {
	yes := true
	b := &Builder{ClusterDomain: "cluster.local", NodeHostname: "n1"}
	const full = "c.sub.ns.svc.cluster.local"
	for _, c := range []struct {
		name     string
		change   func(*v1.Pod)
		nodename string // "" for an error
		hosts    string
	}{
		{"its name", func(p *v1.Pod) { p.Name = "c" }, "c", "10.0.0.2\tc\n"},
		{"its hostname", func(p *v1.Pod) { p.Spec.Hostname = "h" }, "h", "10.0.0.2\th\n"},
		{"a subdomain", func(p *v1.Pod) { p.Spec.Hostname, p.Spec.Subdomain = "c", "sub" }, "c",
			"10.0.0.2\t" + full + "\tc\n"},
		{"its full name",
			func(p *v1.Pod) { p.Spec.Hostname, p.Spec.Subdomain, p.Spec.SetHostnameAsFQDN = "c", "sub", &yes },
			full, "10.0.0.2\t" + full + "\tc\n"},
		{"a full name without a subdomain", func(p *v1.Pod) { p.Spec.Hostname, p.Spec.SetHostnameAsFQDN = "c", &yes },
			"c", "10.0.0.2\tc\n"},
		{"a full name of 64", func(p *v1.Pod) {
			p.Spec.Hostname, p.Spec.Subdomain, p.Spec.SetHostnameAsFQDN = strings.Repeat("h", 64-len(full)+1), "sub",
				&yes
		}, strings.Repeat("h", 64-len(full)+1) + full[1:], strings.Repeat("h", 64-len(full)+1) + "\n"},
		{"a full name of 65", func(p *v1.Pod) {
			p.Spec.Hostname, p.Spec.Subdomain, p.Spec.SetHostnameAsFQDN = strings.Repeat("h", 65-len(full)+1), "sub",
				&yes
		}, "", ""},
		{"a long name", func(p *v1.Pod) { p.Name = strings.Repeat("n", 61) + "-.x" }, strings.Repeat("n", 61), "\n"},
	} {
		pod := podWith(v1.RestartPolicyAlways, "c")
		c.change(pod)
		got, err := b.nodename(pod)
		if got != c.nodename || (err == nil) != (c.nodename != "") {
			t.Errorf("%s: %q %v", c.name, got, err)
		}
		name, domain := b.hostname(pod)
		if hosts := hostsFile(pod, []string{"10.0.0.2"}, name, domain); !strings.Contains(hosts, c.hosts) {
			t.Errorf("%s: no %q in\n%s", c.name, c.hosts, hosts)
		}
	}
}

func TestHosts(t *testing.T) {
	pod := podWith(v1.RestartPolicyAlways, "c")
	pod.Spec.HostAliases = []v1.HostAlias{{IP: "1.2.3.4", Hostnames: []string{"a", "b"}}}
	got := hostsFile(pod, []string{"10.0.0.2", "fd00::2"}, "p", "sub.ns.svc.cluster.local")
	for _, want := range []string{"127.0.0.1\tlocalhost\n", "10.0.0.2\tp.sub.ns.svc.cluster.local\tp\n", "fd00::2\t",
		"1.2.3.4\ta\tb\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}

func TestSecurity(t *testing.T) {
	yes, no, user := true, false, int64(1000)
	pod := podWith(v1.RestartPolicyAlways, "c")
	pod.Spec.SecurityContext = &v1.PodSecurityContext{RunAsUser: &user, FSGroup: &user, SupplementalGroups: []int64{7},
		SeccompProfile: &v1.SeccompProfile{Type: v1.SeccompProfileTypeRuntimeDefault}}
	c := &pod.Spec.Containers[0]
	c.SecurityContext = &v1.SecurityContext{AllowPrivilegeEscalation: &no, ReadOnlyRootFilesystem: &yes,
		Capabilities: &v1.Capabilities{Add: []v1.Capability{"NET_ADMIN"}, Drop: []v1.Capability{"ALL"}}}
	sc, err := containerSecurity(pod, c, "", v1.SeccompProfileTypeUnconfined)
	if err != nil {
		t.Fatal(err)
	}
	if sc.RunAsUser.Value != 1000 || !sc.NoNewPrivs || !sc.ReadonlyRootfs ||
		!slices.Equal(sc.SupplementalGroups, []int64{7, 1000}) ||
		sc.Seccomp.ProfileType != runtimeapi.SecurityProfile_RuntimeDefault || len(sc.MaskedPaths) == 0 ||
		sc.Capabilities.DropCapabilities[0] != "ALL" {
		t.Errorf("%v", sc)
	}
	c.SecurityContext = &v1.SecurityContext{Privileged: &yes}
	if sc, err = containerSecurity(pod, c, "", v1.SeccompProfileTypeUnconfined); err != nil || !sc.Privileged ||
		len(sc.MaskedPaths) != 0 || sc.Seccomp.ProfileType != runtimeapi.SecurityProfile_Unconfined {
		t.Errorf("privileged: %v %v", sc, err)
	}

	zero := int64(0)
	c.SecurityContext = &v1.SecurityContext{RunAsNonRoot: &yes}
	for _, try := range []struct {
		user  *int64
		image *runtimeapi.Image
		ok    bool
	}{
		{&user, nil, true}, {&zero, nil, false}, {nil, &runtimeapi.Image{Uid: &runtimeapi.Int64Value{Value: 65}}, true},
		{nil, &runtimeapi.Image{Uid: &runtimeapi.Int64Value{}}, false}, {nil, &runtimeapi.Image{}, false},
		{nil, &runtimeapi.Image{Username: "www"}, false},
	} {
		pod.Spec.SecurityContext.RunAsUser = try.user
		if err := checkUser(pod, c, try.image); (err == nil) != try.ok {
			t.Errorf("user %v, image %v: %v", try.user, try.image, err)
		}
	}
}

// oneDevice is there for each container.
type oneDevice struct{}

func (oneDevice) Devices(_ *v1.Pod, c *v1.Container) []string {
	return []string{"example.com/gpu=" + c.Name}
}

func TestContainersGetDevices(t *testing.T) {
	c := &v1.Container{Name: "main"}
	if got := (&Builder{Devices: oneDevice{}}).devices(&v1.Pod{}, c); len(got) != 1 ||
		got[0].Name != "example.com/gpu=main" {
		t.Errorf("devices %v", got)
	}
	if got := (&Builder{}).devices(&v1.Pod{}, c); got != nil {
		t.Errorf("devices %v of a node that has none", got)
	}
}
