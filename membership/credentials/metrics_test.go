package credentials

import (
	"context"
	"errors"
	"math"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

// TestCertificateMetrics: a renewal that failed counts, and not one that the end of the process cut
// off. Without a client certificate its life is infinite.
func TestCertificateMetrics(t *testing.T) {
	ids := &Server{}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(ids.Collectors()...)
	broken := errors.New("broken")
	renew := ids.failed.counting(func(context.Context) error { return broken })
	ended, end := context.WithCancel(t.Context())
	end()
	for _, ctx := range []context.Context{t.Context(), t.Context(), ended} {
		if err := renew(ctx); !errors.Is(err, broken) {
			t.Error(err)
		}
	}
	if err := ids.failed.counting(func(context.Context) error { return nil })(t.Context()); err != nil {
		t.Error(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		got[f.GetName()] = f.Metric[0].GetGauge().GetValue() + f.Metric[0].GetCounter().GetValue()
	}
	for name, want := range map[string]float64{
		"kubelet_certificate_manager_client_ttl_seconds":             math.Inf(1),
		"kubelet_certificate_manager_client_expiration_renew_errors": 2, "kubelet_server_expiration_renew_errors": 2,
	} {
		if got[name] != want {
			t.Errorf("%s: %v, want %v", name, got[name], want)
		}
	}
}
