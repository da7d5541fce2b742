package csi

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
)

// metrics are those that upstream's dashboards know.
type metrics struct {
	calls      *prometheus.HistogramVec
	operations *prometheus.HistogramVec
}

func newMetrics() *metrics {
	buckets := []float64{.1, .25, .5, 1, 2.5, 5, 10, 15, 25, 50, 120, 300, 600}
	return &metrics{
		calls: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "csi_operations_seconds", Buckets: buckets,
			Help: "Container Storage Interface operation duration with gRPC error code status total",
		}, []string{"driver_name", "method_name", "grpc_status_code", "migrated"}),
		operations: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "storage_operation_duration_seconds", Buckets: buckets, Help: "Storage operation duration",
		}, []string{"volume_plugin", "operation_name", "status", "migrated"}),
	}
}

// interceptor measures each call of a driver.
func (m *metrics) interceptor(driver string) grpc.UnaryClientInterceptor {
	return func(
		ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, call grpc.UnaryInvoker,
		opts ...grpc.CallOption,
	) error {
		began := time.Now()
		err := call(ctx, method, req, reply, cc, opts...)
		m.calls.WithLabelValues(driver, method, status.Code(err).String(), "false").Observe(time.Since(began).Seconds())
		return err
	}
}

// measure notes one operation with a volume of a driver.
func (m *metrics) measure(driver, operation string, began time.Time, err error) {
	outcome := "success"
	if err != nil {
		outcome = "fail-unknown"
	}
	m.operations.WithLabelValues(pluginName+":"+driver, operation, outcome, "false").Observe(
		time.Since(began).Seconds())
}

// Collectors are the plugin's metrics.
func (p *Plugin) Collectors() []prometheus.Collector {
	return []prometheus.Collector{p.metrics.calls, p.metrics.operations}
}
