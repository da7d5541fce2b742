package credentials

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/barque/barque/pki"
	"github.com/barque/barque/pki/identity"
)

// failures counts renewals that failed.
type failures struct{ atomic.Int64 }

func (f *failures) counting(renew func(context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		err := renew(ctx)
		if err != nil && ctx.Err() == nil {
			f.Add(1)
		}
		return err
	}
}

// Collectors are the metrics of the node's certificates, under the names of every kubelet. All of
// an agent's are renewed together.
func (ids *Agent) Collectors() []prometheus.Collector {
	return certificateMetrics(ids.Client, &ids.failed)
}

// Collectors are the metrics of the node's certificates, under the names of every kubelet. The
// kubelet of a server is in the API server's process, and needs no client certificate.
func (ids *Server) Collectors() []prometheus.Collector { return certificateMetrics(nil, &ids.failed) }

func certificateMetrics(client *identity.Identity, failed *failures) []prometheus.Collector {
	count := func() float64 { return float64(failed.Load()) }
	return []prometheus.Collector{
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "kubelet_certificate_manager_client_ttl_seconds",
			Help: "Time until the client certificate ends, in seconds; +Inf without one."},
			func() float64 {
				if client == nil {
					return math.Inf(1)
				}
				return time.Until(client.Term().NotAfter).Seconds()
			}),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "kubelet_certificate_manager_client_expiration_renew_errors",
			Help: "Renewals of the client certificate that failed."}, count),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "kubelet_server_expiration_renew_errors", Help: "Renewals of the server's certificate that failed."},
			count),
	}
}

// RegisterCA registers the metric of the end of the CA.
func (ids *Server) RegisterCA(registerer prometheus.Registerer) error {
	err := registerer.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "barque_ca_not_after_timestamp_seconds",
		Help: "When the first of the CAs that issue ends, in Unix time. No certificate of that CA lasts longer."},
		func() float64 {
			first := ids.Trust.Issuer().Certificate().NotAfter
			for _, purpose := range pki.Purposes() {
				if ends := ids.Trust.CAsFor(purpose)[0].Certificate().NotAfter; ends.Before(first) {
					first = ends
				}
			}
			return float64(first.Unix())
		}))
	if err != nil {
		return fmt.Errorf("register the metric of the CA: %w", err)
	}
	return nil
}
