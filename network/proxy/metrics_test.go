package proxy

import (
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/network/nft"
)

// TestMeters: a change of endpoints counts from its cause until the rules are written, also when
// they are refused at first. One before this process does not.
func TestMeters(t *testing.T) {
	began := time.Unix(1000, 0)
	m := newMeters(nft.IPv4, began)
	slice := func(at time.Time) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Annotations: map[string]string{
					corev1.EndpointsLastChangeTriggerTime: at.UTC().Format(time.RFC3339Nano)}}}
	}
	m.noted(slice(began.Add(-time.Hour)), began)
	m.noted(slice(began.Add(time.Second)), began.Add(2*time.Second))
	m.noted(&discoveryv1.EndpointSlice{}, began)
	m.noted(&corev1.Service{}, began.Add(3*time.Second))
	m.synced(began.Add(3*time.Second), began.Add(4*time.Second), m.waiting(), errors.New("the kernel refuses"))
	m.noted(slice(began.Add(5*time.Second)), began.Add(5*time.Second))
	m.synced(began.Add(5*time.Second), began.Add(6*time.Second), m.waiting(), nil)
	if waiting := m.waiting(); len(waiting) != 0 {
		t.Errorf("still waiting: %v", waiting)
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(m.all()...)
	registry.MustRegister(newMeters(nft.IPv6, began).all()...) // beside it
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, metric := range f.Metric {
			if metric.Label[0].GetValue() == "IPv4" {
				got[f.GetName()] = metric.GetCounter().GetValue() + metric.GetGauge().GetValue() +
					metric.GetHistogram().GetSampleSum()
			}
		}
	}
	for name, want := range map[string]float64{
		"kubeproxy_sync_proxy_rules_duration_seconds": 1, "kubeproxy_network_programming_duration_seconds": 5 + 1,
		"kubeproxy_sync_proxy_rules_last_timestamp_seconds":        1006,
		"kubeproxy_sync_proxy_rules_last_queued_timestamp_seconds": 1005,
		"kubeproxy_sync_proxy_rules_service_changes_total":         1,
		"kubeproxy_sync_proxy_rules_endpoint_changes_total":        4,
	} {
		if got[name] != want {
			t.Errorf("%s: %v, want %v", name, got[name], want)
		}
	}
}
