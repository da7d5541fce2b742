package hpa

import (
	"bytes"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/rest"
)

// server answers requests by path and query, and keeps the objects that are put.
type server struct {
	mu    sync.Mutex
	pages map[string]string
	put   string
}

func (s *server) RoundTrip(r *http.Request) (*http.Response, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, query := r.URL.Path, r.URL.Query()
	query.Del("timeout") // every request has one
	if len(query) > 0 {
		at += "?" + query.Encode()
	}
	body, ok := s.pages[at]
	code := http.StatusOK
	if !ok {
		code, body = http.StatusNotFound,
			`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"NotFound","code":404,"message":"nothing at `+at+`"}`
	}
	if r.Method == http.MethodPut {
		sent, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		s.put, body = string(sent), string(sent)
	}
	return &http.Response{StatusCode: code, Request: r, Body: io.NopCloser(bytes.NewBufferString(body)),
		Header: http.Header{"Content-Type": {"application/json"}}}, nil
}

func (s *server) set(at, page string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pages[at] = page
}

const (
	thingsList = `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"example.com/v1","resources":[
		{"name":"things","kind":"Thing","namespaced":true},
		{"name":"things/scale","kind":"Scale","group":"autoscaling","version":"v1","namespaced":true},
		{"name":"plains","kind":"Plain","namespaced":true}]}`
	thing = `{"kind":"Scale","apiVersion":"autoscaling/v1","metadata":{"name":"a","namespace":"ns","resourceVersion":"7"},
		"spec":{"replicas":4},"status":{"replicas":3,"selector":"app=web"}}`
)

func newServer() *server {
	return &server{pages: map[string]string{
		"/api": `{"kind":"APIVersions","versions":["v1"]}`,
		"/api/v1": `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"v1","resources":[
			{"name":"pods","kind":"Pod","namespaced":true},{"name":"services","kind":"Service","namespaced":true},{"name":"namespaces","kind":"Namespace"}]}`,
		"/apis": `{"kind":"APIGroupList","apiVersion":"v1","groups":[]}`,
	}}
}

func group(names ...string) string {
	var groups []string
	for _, gv := range names {
		name, version, _ := strings.Cut(gv, "/")
		groups = append(groups,
			`{"name":"`+name+`","versions":[{"groupVersion":"`+gv+`","version":"`+version+
				`"}],"preferredVersion":{"groupVersion":"`+gv+`","version":"`+version+`"}}`)
	}
	return `{"kind":"APIGroupList","apiVersion":"v1","groups":[` + strings.Join(groups, ",") + `]}`
}

func sourcesOf(t *testing.T, s *server) (*targets, *clients) {
	t.Helper()
	ts, ms, err := newSources(&rest.Config{Host: "http://server", Transport: s, QPS: -1,
		ContentConfig: rest.ContentConfig{ContentType: "application/vnd.kubernetes.protobuf",
			AcceptContentTypes: "application/vnd.kubernetes.protobuf,application/json"}})
	if err != nil {
		t.Fatal(err)
	}
	return ts.(*targets), ms.(*clients)
}

// Any kind with a scale subresource is scaled, also one that has been defined since.
func TestTargets(t *testing.T) {
	s := newServer()
	targets, _ := sourcesOf(t, s)
	ref := autoscalingv2.CrossVersionObjectReference{APIVersion: "example.com/v1", Kind: "Thing", Name: "a"}
	if _, _, err := targets.get(t.Context(), "ns", ref); err == nil ||
		!strings.Contains(err.Error(), `no matches for kind "Thing"`) {
		t.Errorf("of a kind that is not there: %v", err)
	}
	s.set("/apis", group("example.com/v1"))
	s.set("/apis/example.com/v1", thingsList)
	s.set("/apis/example.com/v1/namespaces/ns/things/a/scale", thing)
	targets.kinds.reset = time.Now().Add(-discoverAgain)
	scale, of, err := targets.get(t.Context(), "ns", ref)
	if err != nil {
		t.Fatal(err)
	}
	if scale.Spec.Replicas != 4 || scale.Status.Selector != "app=web" || of.String() != "things.example.com" {
		t.Errorf("%+v of %s", scale, of)
	}
	scale.Spec.Replicas = 6
	if err := targets.put(t.Context(), of, scale); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(s.put, `"replicas":6`) || !strings.Contains(s.put, `"resourceVersion":"7"`) {
		t.Errorf("written: %s", s.put)
	}
	for _, wrong := range []autoscalingv2.CrossVersionObjectReference{
		{APIVersion: "example.com/v1", Kind: "Plain", Name: "a"},
		{APIVersion: "example.com/v1", Kind: "Thing", Name: "none"}, {APIVersion: "a/b/c", Kind: "Thing", Name: "a"},
	} {
		if _, _, err := targets.get(t.Context(), "ns", wrong); err == nil {
			t.Errorf("%+v has a scale", wrong)
		}
	}
}

// Each type of metric is read where it is served.
func TestReadings(t *testing.T) {
	s := newServer()
	_, clients := sourcesOf(t, s)
	web := labels.SelectorFromSet(labels.Set{"app": "web"})
	read := func(m autoscalingv2.MetricSpec) reading { return clients.read(t.Context(), "ns", web, &m) }
	perPod := autoscalingv2.MetricSpec{Type: autoscalingv2.PodsMetricSourceType,
		Pods: &autoscalingv2.PodsMetricSource{Metric: autoscalingv2.MetricIdentifier{Name: "qps"}}}
	if r := read(perPod); r.err == nil ||
		!strings.Contains(r.err.Error(), "unable to fetch metrics from custom metrics API") {
		t.Errorf("without an adapter: %v", r.err)
	}

	s.set("/apis/metrics.k8s.io/v1beta1/namespaces/ns/pods?labelSelector=app%3Dweb",
		`{"kind":"PodMetricsList","apiVersion":"metrics.k8s.io/v1beta1","items":[
		{"metadata":{"name":"a"},"timestamp":"2026-01-01T12:00:00Z","window":"15s","containers":[
			{"name":"c","usage":{"cpu":"250m","memory":"1Mi"}},{"name":"d","usage":{"cpu":"1","memory":"2Mi"}}]},
		{"metadata":{"name":"b"},"timestamp":"2026-01-01T12:00:00Z","window":"15s","containers":[
			{"name":"c","usage":{"cpu":"100m","memory":"1Mi"}},{"name":"d","usage":{"memory":"2Mi"}}]}]}`)
	s.set("/apis", group("custom.metrics.k8s.io/v1beta2", "external.metrics.k8s.io/v1beta1"))
	s.set("/apis/custom.metrics.k8s.io/v1beta2",
		`{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"custom.metrics.k8s.io/v1beta2","resources":[]}`)
	s.set("/apis/external.metrics.k8s.io/v1beta1",
		`{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"external.metrics.k8s.io/v1beta1","resources":[]}`)
	values := func(items string) string {
		return `{"kind":"MetricValueList","apiVersion":"custom.metrics.k8s.io/v1beta2","items":[` + items + `]}`
	}
	value := func(kind, name, v string) string {
		return `{"describedObject":{"kind":"` + kind + `","name":"` + name +
			`"},"metric":{"name":"qps"},"timestamp":"2026-01-01T12:00:00Z","value":"` + v + `"}`
	}
	const custom = "/apis/custom.metrics.k8s.io/v1beta2/namespaces/"
	s.set(custom+"ns/pods/*/qps?labelSelector=app%3Dweb", values(value("Pod", "a", "12")+","+value("Pod", "b", "500m")))
	s.set(custom+"ns/services/web/qps", values(value("Service", "web", "40")))
	s.set(custom+"ns/metrics/qps", values(value("Namespace", "ns", "7")))
	s.set("/apis/external.metrics.k8s.io/v1beta1/namespaces/ns/queue?labelSelector=of%3Dmail",
		`{"kind":"ExternalMetricValueList","apiVersion":"external.metrics.k8s.io/v1beta1",
		"items":[{"metricName":"queue","timestamp":"2026-01-01T12:00:00Z","value":"3"},{"metricName":"queue","timestamp":"2026-01-01T12:00:00Z","value":"4500m"}]}`)
	s.set("/apis/external.metrics.k8s.io/v1beta1/namespaces/ns/empty",
		`{"kind":"ExternalMetricValueList","apiVersion":"external.metrics.k8s.io/v1beta1","items":[]}`)
	clients.kinds.reset = time.Now().Add(-discoverAgain)

	at := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	wantSamples := func(what string, r reading, want map[string]int64, window time.Duration) {
		t.Helper()
		if r.err != nil || len(r.samples) != len(want) {
			t.Errorf("%s: %v, %v", what, r.samples, r.err)
		}
		for pod, v := range want {
			if got := r.samples[pod]; got.value != v || !got.at.Equal(at) || got.window != window {
				t.Errorf("%s: %s is %+v, want %d", what, pod, got, v)
			}
		}
	}
	container := autoscalingv2.MetricSpec{Type: autoscalingv2.ContainerResourceMetricSourceType,
		ContainerResource: &autoscalingv2.ContainerResourceMetricSource{Name: corev1.ResourceCPU, Container: "c"}}
	wantSamples("whole pods", read(cpu(50)), map[string]int64{"a": 1250}, 15*time.Second)
	wantSamples("one container", read(container), map[string]int64{"a": 250, "b": 100}, 15*time.Second)
	wantSamples("a metric of pods", read(perPod), map[string]int64{"a": 12000, "b": 500}, defaultWindow)

	object := func(kind, name string) autoscalingv2.MetricSpec {
		return autoscalingv2.MetricSpec{Type: autoscalingv2.ObjectMetricSourceType,
			Object: &autoscalingv2.ObjectMetricSource{
				DescribedObject: autoscalingv2.CrossVersionObjectReference{APIVersion: "v1", Kind: kind, Name: name},
				Metric:          autoscalingv2.MetricIdentifier{Name: "qps"}}}
	}
	external := func(name string, selector *metav1.LabelSelector) autoscalingv2.MetricSpec {
		return autoscalingv2.MetricSpec{Type: autoscalingv2.ExternalMetricSourceType,
			External: &autoscalingv2.ExternalMetricSource{
				Metric: autoscalingv2.MetricIdentifier{Name: name, Selector: selector}}}
	}
	for _, test := range []struct {
		what string
		m    autoscalingv2.MetricSpec
		want int64
		err  string
	}{
		{"a Service", object("Service", "web"), 40000, ""},
		{"the namespace, whatever it is called there", object("Namespace", "kube-system"), 7000, ""},
		{"an object without the metric", object("Service", "none"), 0,
			"unable to get metric qps on Service ns/none: unable to fetch metrics from custom metrics API"},
		{"an external one", external("queue", &metav1.LabelSelector{MatchLabels: map[string]string{"of": "mail"}}),
			7500, ""},
		{"an external one without values", external("empty", nil), 0, "no metrics returned from external metrics API"},
	} {
		r := read(test.m)
		if total(r.values) != test.want || (r.err != nil) != (test.err != "") ||
			r.err != nil && !strings.Contains(r.err.Error(), test.err) {
			t.Errorf("%s: %v, %v; want %d, %q", test.what, r.values, r.err, test.want, test.err)
		}
	}
}
