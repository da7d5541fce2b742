package apiserver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregatorclient "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	metricsclient "k8s.io/metrics/pkg/client/clientset/versioned"
)

// measuringKubelet is a kubelet whose node uses half a core, and the pod default/busy an eighth.
func measuringKubelet(t *testing.T) (port int32, trust func(*Config)) {
	t.Helper()
	began := time.Now().Add(-time.Hour)
	kubelet := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		at := time.Now()
		used, ms := at.Sub(began).Seconds(), at.UnixMilli()
		_, _ = fmt.Fprintf(w, "node_cpu_usage_seconds_total %f %d\nnode_memory_working_set_bytes 1048576000 %d\n",
			used/2, ms, ms)
		of := `{container="c",namespace="default",pod="busy"}`
		_, _ = fmt.Fprintf(w,
			"container_cpu_usage_seconds_total%s %f %d\ncontainer_memory_working_set_bytes%s 67108864 %d\n", of, used/8,
			ms, of, ms)
	}))
	t.Cleanup(kubelet.Close)
	pool := x509.NewCertPool()
	pool.AddCert(kubelet.Certificate())
	config := &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	return int32(kubelet.Listener.Addr().(*net.TCPAddr).Port), func(c *Config) {
		c.KubeletClient, c.IsKubelet = func() *tls.Config { return config },
			func(*corev1.Node, tls.ConnectionState) error { return nil }
	}
}

// otherMetrics is another server of metrics.k8s.io, which has the metrics of one node.
func otherMetrics(t *testing.T) (port int32) {
	t.Helper()
	reply := func(w http.ResponseWriter, o any) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(o)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/apis/metrics.k8s.io/v1beta1", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, metav1.APIResourceList{
			TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: metricsVersion.String(),
			APIResources: []metav1.APIResource{
				{Name: "nodes", Kind: "NodeMetrics", Verbs: metav1.Verbs{"get", "list"}}},
		})
	})
	mux.HandleFunc("/apis/metrics.k8s.io/v1beta1/nodes", func(w http.ResponseWriter, _ *http.Request) {
		reply(w, map[string]any{"apiVersion": metricsVersion.String(), "kind": "NodeMetricsList", "items": []any{
			map[string]any{"metadata": map[string]any{"name": "theirs"}},
		}})
	})
	s := httptest.NewTLSServer(mux)
	t.Cleanup(s.Close)
	return int32(s.Listener.Addr().(*net.TCPAddr).Port)
}

// Metrics are served at once, until another metrics server is registered, and after that again.
func TestMetrics(t *testing.T) {
	ca := newCA(t)
	port, trust := measuringKubelet(t)
	c := startCluster(t, withProxyClient(t, ca), trust)
	if err := c.ensure(t.Context(), c.client); err != nil {
		t.Fatal(err)
	}
	c.leads.Store(true) // it writes whether other servers are available
	ctx := t.Context()
	node := must(
		c.admin.CoreV1().Nodes().Create(ctx,
			&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{"zone": "a"}}},
			metav1.CreateOptions{}))(t)
	node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = port
	must(c.admin.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{}))(t)
	must(
		c.admin.CoreV1().ServiceAccounts("default").Create(ctx,
			&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}))(t)
	spec := podSpec()
	spec.NodeName = "n1"
	pod := must(
		c.admin.CoreV1().Pods("default").Create(ctx,
			&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "busy", Labels: map[string]string{"app": "busy"}},
				Spec: spec}, metav1.CreateOptions{}))(t)
	pod.Status.Phase = corev1.PodRunning
	must(c.admin.CoreV1().Pods("default").UpdateStatus(ctx, pod, metav1.UpdateOptions{}))(t)

	metrics := metricsclient.NewForConfigOrDie(c.ca.client(t, c.host, admin())).MetricsV1beta1()
	await(t, "the node has metrics", func(ctx context.Context) (error, bool) {
		n, err := metrics.NodeMetricses().Get(ctx, "n1", metav1.GetOptions{})
		return err,
			err == nil && n.Usage.Cpu().MilliValue() > 450 && n.Usage.Cpu().MilliValue() < 550 &&
				n.Labels["zone"] == "a"
	})
	await(t, "the pod has metrics", func(ctx context.Context) (error, bool) {
		list, err := metrics.PodMetricses("default").List(ctx,
			metav1.ListOptions{LabelSelector: "app=busy", FieldSelector: "metadata.name=busy"})
		return err, err == nil && len(list.Items) == 1 && list.Items[0].Containers[0].Usage.Memory().String() == "64Mi"
	})
	if list := must(metrics.PodMetricses("").List(ctx, metav1.ListOptions{LabelSelector: "app=none"}))(t); len(
		list.Items) != 0 {
		t.Errorf("of no pods: %v", list.Items)
	}
	run := kubectl(t, c)
	for args, want := range map[string]string{
		"top nodes":                                "n1",
		"top pods":                                 "64Mi",
		"top pod busy --containers":                "busy   c ",
		"get --raw /apis/metrics.k8s.io":           `"preferredVersion"`,
		"get nodes.v1beta1.metrics.k8s.io":         "WINDOW",
		"api-resources --api-group=metrics.k8s.io": "PodMetrics",
		"get pods":                                 "READY", // and not those of metrics
	} {
		if out, err := run("", strings.Fields(args)...); err != nil || !strings.Contains(out, want) {
			t.Errorf("kubectl %s: %v\n%s", args, err, out)
		}
	}
	c.wantGroups(t, "as the server serves it", true)

	services := aggregatorclient.NewForConfigOrDie(c.ca.client(t, c.host, admin())).ApiregistrationV1().APIServices()
	name := metricsVersion.Version + "." + metricsVersion.Group
	if err := c.registration.Pass(ctx, c.client.Discovery().RESTClient()); err != nil {
		t.Fatal(err)
	}
	if s, err := services.Get(ctx, name, metav1.GetOptions{}); err == nil {
		t.Fatalf("an APIService is in the way of others: %+v", s)
	}
	theirs := otherMetrics(t)
	must(c.admin.CoreV1().Services("default").Create(ctx, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "theirs"},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"}},
		metav1.CreateOptions{}))(t)
	must(
		services.Create(ctx,
			&apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec: apiregistrationv1.APIServiceSpec{
					Group: metricsVersion.Group, Version: metricsVersion.Version, GroupPriorityMinimum: 100,
					VersionPriority:       100,
					InsecureSkipTLSVerify: true,
					Service: &apiregistrationv1.ServiceReference{Namespace: "default", Name: "theirs",
						Port: &theirs},
				}}, metav1.CreateOptions{}))(t)
	names := func(ctx context.Context) ([]string, error) {
		list, err := metrics.NodeMetricses().List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		var names []string
		for _, n := range list.Items {
			names = append(names, n.Name)
		}
		return names, nil
	}
	await(t, "the other server answers", func(ctx context.Context) (error, bool) {
		got, err := names(ctx)
		return err, slices.Equal(got, []string{"theirs"})
	})
	// The registration of the cluster's own groups leaves it alone.
	if err := c.registration.Pass(ctx, c.client.Discovery().RESTClient()); err != nil {
		t.Fatal(err)
	}
	if s := must(services.Get(ctx, name, metav1.GetOptions{}))(t); s.Spec.Service == nil {
		t.Errorf("the other server's registration was overwritten: %+v", s)
	}
	c.wantGroups(t, "as another server serves it", true)
	if err := services.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, "this server answers again", func(ctx context.Context) (error, bool) {
		got, err := names(ctx)
		return err, slices.Equal(got, []string{"n1"})
	})
	await(t, "discovery has it again", func(context.Context) (error, bool) {
		_, body := c.raw(t, "/apis/metrics.k8s.io/v1beta1", nil)
		return nil, strings.Contains(string(body), "PodMetrics")
	})
	c.wantGroups(t, "when the other server has gone", true)
}

// wantGroups checks that both forms of discovery list metrics.k8s.io, once and last.
func (c *cluster) wantGroups(t *testing.T, when string, want bool) {
	t.Helper()
	var legacy metav1.APIGroupList
	_, body := c.raw(t, "/apis", http.Header{"Accept": {"application/json"}})
	if err := json.Unmarshal(body, &legacy); err != nil {
		t.Fatalf("%s: %v: %.200s", when, err, body)
	}
	aggregated := struct {
		Items []struct{ Metadata metav1.ObjectMeta }
	}{}
	_, body = c.raw(t, "/apis",
		http.Header{"Accept": {"application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"}})
	if err := json.Unmarshal(body, &aggregated); err != nil {
		t.Fatalf("%s: %v: %.200s", when, err, body)
	}
	forms := map[string][]string{}
	for _, g := range legacy.Groups {
		forms["legacy"] = append(forms["legacy"], g.Name)
	}
	for _, g := range aggregated.Items {
		forms["aggregated"] = append(forms["aggregated"], g.Metadata.Name)
	}
	for form, names := range forms {
		count := 0
		for _, name := range names {
			if name == metricsVersion.Group {
				count++
			}
		}
		if has := count == 1; has != want || count > 1 || want && names[len(names)-1] != metricsVersion.Group {
			t.Errorf("%s, %s discovery lists %v", when, form, names)
		}
	}
}
