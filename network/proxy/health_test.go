package proxy

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/internal/balancers"
)

func TestWhoAsksForHealth(t *testing.T) {
	balanced := func(s *corev1.Service) {
		s.Spec.Type, s.Spec.HealthCheckNodePort = corev1.ServiceTypeLoadBalancer, 31000
		externalLocal(s)
	}
	both := slice(endpoint("10.42.1.1", here, ready), endpoint("10.42.1.2", here, notReady),
		endpoint("10.42.1.3", here, ending), endpoint("10.42.2.1", "node-2", ready))
	for name, test := range map[string]struct {
		service *corev1.Service
		slices  []*discoveryv1.EndpointSlice
		want    map[uint16]HealthCheck
	}{
		"ready ones of this node": {service(balanced), []*discoveryv1.EndpointSlice{both},
			map[uint16]HealthCheck{31000: {"default", "web", 1}}},
		"none": {service(balanced), nil, map[uint16]HealthCheck{31000: {"default", "web", 0}}},
		"another policy": {
			service(balanced,
				func(s *corev1.Service) { s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster }),
			nil, map[uint16]HealthCheck{}},
		"another proxy's": {
			service(balanced, func(s *corev1.Service) { s.Labels = map[string]string{balancers.ProxyLabel: "x"} }), nil,
			map[uint16]HealthCheck{}},
		"headless by label": {
			service(balanced, func(s *corev1.Service) { s.Labels = map[string]string{corev1.IsHeadlessService: ""} }),
			nil, map[uint16]HealthCheck{}},
	} {
		if got := healthChecks(
			Snapshot{NodeName: here, Services: []*corev1.Service{test.service},
				Slices: test.slices}); !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: %+v, want %+v", name, got, test.want)
		}
	}
}

func TestHealthCheckServers(t *testing.T) {
	h := newHealth(slog.New(slog.DiscardHandler))
	free, err := net.Listen("tcp4", ":0")
	if err != nil {
		t.Fatal(err)
	}
	port := uint16(free.Addr().(*net.TCPAddr).Port)
	if err := free.Close(); err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	ask := func() (int, string, map[string]any) {
		t.Helper()
		response, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d/", port))
		if err != nil {
			return 0, "", nil
		}
		defer response.Body.Close()
		content, _ := io.ReadAll(response.Body)
		var body map[string]any
		if err := json.Unmarshal(content, &body); err != nil {
			t.Errorf("%q: %v", content, err)
		}
		return response.StatusCode, response.Header.Get("X-Load-Balancing-Endpoint-Weight"), body
	}
	check := func(local int) map[uint16]HealthCheck {
		return map[uint16]HealthCheck{port: {Namespace: "default", Name: "web", Local: local}}
	}
	body := func(local int, healthy bool) map[string]any {
		return map[string]any{"service": map[string]any{"namespace": "default", "name": "web"},
			"localEndpoints": float64(local), "serviceProxyHealthy": healthy}
	}
	expect := func(what string, code int, weight string, want map[string]any) {
		t.Helper()
		if gotCode, gotWeight, got := ask(); gotCode != code || gotWeight != weight || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %d, weight %q, %v; want %d, %q, %v", what, gotCode, gotWeight, got, code, weight, want)
		}
	}
	h.succeeded(check(2), time.Now())
	expect("two endpoints", http.StatusOK, "2", body(2, true))
	h.failed(time.Now())
	expect("a failure of a moment ago", http.StatusOK, "2", body(2, true))
	h.waiting = time.Now().Add(-2 * staleAfter)
	expect("a failure of long ago", http.StatusServiceUnavailable, "2", body(2, false))
	h.succeeded(check(0), time.Now())
	expect("no endpoints", http.StatusServiceUnavailable, "0", body(0, true))
	h.succeeded(nil, time.Now())
	expect("no such service", 0, "", nil)
	h.serving.Wait()
}

// TestAddressesOfTheNode: curl at the node gets health and mode from the ports of kube-proxy.
func TestAddressesOfTheNode(t *testing.T) {
	h := newHealth(slog.New(slog.DiscardHandler))
	h.succeeded(nil, time.Now())
	// Nobody else has an address of this process: a port that was free a moment ago need not be.
	var addresses []string
	for port := range 3 {
		addresses = append(addresses, fmt.Sprintf("127.77.%d.%d:%d", os.Getpid()>>8&0xff, os.Getpid()&0xff, 10250+port))
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { // ends with ctx
		defer close(ended)
		h.run(ctx, addresses[:2], addresses[2])
	}()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for url, want := range map[string]string{
		addresses[0] + "/healthz": "lastUpdated", addresses[1] + "/livez": "lastUpdated",
		addresses[2] + "/healthz":   "lastUpdated",
		addresses[2] + "/proxyMode": "nftables",
	} {
		await.NoError(t, url, func(context.Context) error {
			response, err := client.Get("http://" + url)
			if err != nil {
				return err
			}
			defer response.Body.Close()
			body, err := io.ReadAll(response.Body)
			if err == nil && (response.StatusCode != http.StatusOK || !strings.Contains(string(body), want)) {
				err = fmt.Errorf("%s answers %d %q, want %q", url, response.StatusCode, body, want)
			}
			return err
		})
	}
	stop()
	<-ended
	if _, err := client.Get("http://" + addresses[2] + "/proxyMode"); err == nil {
		t.Error("a server is left")
	}
}

func TestHealthOfTheNode(t *testing.T) {
	h := newHealth(slog.New(slog.DiscardHandler))
	now := time.Now()
	expect := func(what string, healthz, livez int) {
		t.Helper()
		for path, want := range map[string]int{"/healthz": healthz, "/livez": livez} {
			recorder := httptest.NewRecorder()
			h.ofNode(recorder, httptest.NewRequest(http.MethodGet, path, nil))
			if recorder.Code != want {
				t.Errorf("%s: %s answers %d, want %d", what, path, recorder.Code, want)
			}
		}
	}
	expect("before the first rules", 503, 503)
	h.succeeded(nil, now)
	expect("with rules", 200, 200)
	h.failed(now)
	expect("after a failure", 200, 200)
	h.waiting = now.Add(-2 * staleAfter)
	expect("after a long failure", 503, 503)
	h.succeeded(nil, now)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: here}}
	if !isEligible(node) {
		t.Error("an ordinary node gets no traffic")
	}
	node.Spec.Taints = []corev1.Taint{{Key: taintScaleDown}}
	h.setEligible(isEligible(node))
	expect("about to be removed", 503, 200)
}
