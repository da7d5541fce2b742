package nodeproxy

import (
	"io"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
)

func echo(name string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		w.Header().Set("Content-Type", "text/plain")
		_, _ = io.WriteString(w, name+" "+r.Method+" "+r.URL.RequestURI()+" "+string(body))
	}
}

// newWorld has a pod with two ports, one without, services over them, and targets that must not
// be reached.
func newWorld(t *testing.T) (*cluster, *Proxy) {
	t.Helper()
	c := newCluster()
	pod := func(name, ip string, ports ...int32) {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
			Status: corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: ip}}}}
		container := corev1.Container{Name: "main"}
		for _, port := range ports {
			container.Ports = append(container.Ports, corev1.ContainerPort{ContainerPort: port})
		}
		p.Spec.Containers = []corev1.Container{container}
		c.pods[name] = p
	}
	pod("web", "10.42.0.5", 8080, 9090)
	pod("local", "127.0.0.1", 8080)
	pod("metadata", "169.254.169.254", 80)
	c.serve(t, "10.42.0.5:8080", echo("web"))
	c.serve(t, "10.42.0.5:9090", echo("metrics"))
	c.serve(t, nodeAddress+":9100", echo("exporter"))
	c.serve(t, "127.0.0.1:8080", echo("the API server's own machine"))

	service := func(name string, ports ...corev1.ServicePort) {
		c.services[name] = &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
			Spec: corev1.ServiceSpec{Ports: ports}}
	}
	service("one", corev1.ServicePort{Port: 80})
	service("two", corev1.ServicePort{Name: "http", Port: 80}, corev1.ServicePort{Name: "metrics", Port: 81})
	return c, newProxy(t, c, echo("kubelet"))
}

// endpoints makes a slice of one port with endpoints, each a pod at an address.
func endpoints(portName string, port int32, pods ...[2]string) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: &portName, Port: &port}},
	}
	for _, pod := range pods {
		endpoint := discoveryv1.Endpoint{Addresses: []string{pod[1]}}
		if pod[0] != "" {
			endpoint.TargetRef = &corev1.ObjectReference{Kind: "Pod", Namespace: "ns", Name: pod[0]}
		}
		slice.Endpoints = append(slice.Endpoints, endpoint)
	}
	return slice
}

func TestHTTPProxies(t *testing.T) {
	c, proxy := newWorld(t)
	c.names["node.example"] = []netip.Addr{netip.MustParseAddr("127.0.0.1")}
	c.nodes["sly"] = &corev1.Node{
		Status: corev1.NodeStatus{
			Addresses: []corev1.NodeAddress{{Type: corev1.NodeHostName, Address: "node.example"}}}}
	c.slices = []*discoveryv1.EndpointSlice{
		endpoints("", 8080, [2]string{"web", "10.42.0.5"}),
		endpoints("http", 8080, [2]string{"", "10.42.0.5"}, [2]string{"web", "10.42.0.6"},
			[2]string{"web", "10.42.0.5"}),
		endpoints("metrics", 9090, [2]string{"web", "10.42.0.5"}),
	}
	podPath := func(r *http.Request) runtime.Object { return &corev1.PodProxyOptions{Path: r.URL.Path} }
	servicePath := func(r *http.Request) runtime.Object { return &corev1.ServiceProxyOptions{Path: r.URL.Path} }
	nodePath := func(r *http.Request) runtime.Object { return &corev1.NodeProxyOptions{Path: r.URL.Path} }
	tests := []struct {
		name    string
		storage rest.Storage
		options func(*http.Request) runtime.Object
		id      string
		code    int
		want    string
	}{
		{"pod's first port", proxy.PodProxy(), podPath, "web", 200, "web POST /a/b/?q=1 body"},
		{"pod's other port", proxy.PodProxy(), podPath, "web:9090", 200, "metrics POST /a/b/?q=1 body"},
		{"pod with scheme", proxy.PodProxy(), podPath, "http:web:9090", 200, "metrics POST"},
		{"pod that does not listen", proxy.PodProxy(), podPath, "web:7070", 503, "no route"},
		{"pod without an address", proxy.PodProxy(), podPath, "pod", 503, "no address"},
		{"pod that claims to be this machine", proxy.PodProxy(), podPath, "local", 400, "not allowed for proxying"},
		{"pod that claims to be a metadata service", proxy.PodProxy(), podPath, "metadata", 400,
			"not allowed for proxying"},
		{"no such pod", proxy.PodProxy(), podPath, "none", 404, "not found"},
		{"not an id", proxy.PodProxy(), podPath, "ftp:web:x:y", 400, "invalid pod request"},

		{"service's only port", proxy.ServiceProxy(), servicePath, "one", 200, "web POST /a/b/?q=1 body"},
		{"service's port by name", proxy.ServiceProxy(), servicePath, "two:metrics", 200, "metrics POST"},
		{"service's port by number", proxy.ServiceProxy(), servicePath, "two:80", 200, "web POST"},
		{"service's port not said", proxy.ServiceProxy(), servicePath, "two", 503, "no service port"},
		{"no such service", proxy.ServiceProxy(), servicePath, "none", 404, "not found"},

		{"node's kubelet", proxy.NodeProxy(), nodePath, "node", 200, "kubelet POST /a/b/?q=1 body"},
		{"node's kubelet by port", proxy.NodeProxy(), nodePath, "node:10250", 200, "kubelet POST"},
		{"node's other port", proxy.NodeProxy(), nodePath, "node:9100", 200, "exporter POST"},
		{"node whose name is this machine", proxy.NodeProxy(), nodePath, "sly:8080", 503, "not allowed for proxying"},
		{"no such node", proxy.NodeProxy(), nodePath, "none", 404, "not found"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			server := front(t, tt.storage, tt.id, tt.options)
			response, err := http.Post(server.URL+"/a/b/?q=1", "text/plain", strings.NewReader("body"))
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			body, err := io.ReadAll(response.Body)
			if err != nil {
				t.Fatal(err)
			}
			if response.StatusCode != tt.code || !strings.Contains(string(body), tt.want) {
				t.Errorf("answered %d %q, want %d %q", response.StatusCode, body, tt.code, tt.want)
			}
		})
	}
}

// TestServiceProxyTakesOnlyPods: endpoints that are no pods of the namespace at their own
// addresses are not ways into the network.
func TestServiceProxyTakesOnlyPods(t *testing.T) {
	c, proxy := newWorld(t)
	notReady := endpoints("", 8080, [2]string{"web", "10.42.0.5"})
	notReady.Endpoints[0].Conditions.Ready = new(bool)
	elsewhere := endpoints("", 8080, [2]string{"web", "10.42.0.5"})
	elsewhere.Endpoints[0].TargetRef.Namespace = "other"
	for name, slice := range map[string]*discoveryv1.EndpointSlice{
		"no pod":            endpoints("", 8080, [2]string{"", "10.42.0.5"}),
		"unknown pod":       endpoints("", 8080, [2]string{"none", "10.42.0.5"}),
		"another's address": endpoints("", 9100, [2]string{"web", nodeAddress}),
		"other namespace":   elsewhere,
		"not ready":         notReady,
	} {
		c.slices = []*discoveryv1.EndpointSlice{slice}
		_, err := proxy.ServiceProxy().(rest.Connecter).Connect(inNamespace(t.Context()), "one",
			&corev1.ServiceProxyOptions{}, nil)
		if !contains(err, "no endpoints available") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestClientCertificateStaysWithKubelets: a port of a node that is not its kubelet's does not see
// the API server's certificate.
func TestClientCertificateStaysWithKubelets(t *testing.T) {
	c, proxy := newWorld(t)
	if len(proxy.toKubelet.verified(c.nodes["node"]).TLSClientConfig.Certificates) == 0 {
		t.Error("kubelets do not get to see the client certificate")
	}
	if config := proxy.target.TLSClientConfig; len(config.Certificates) > 0 || config.GetClientCertificate != nil {
		t.Error("targets of proxies get to see the client certificate")
	}
}
