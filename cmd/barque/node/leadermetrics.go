package node

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// startMetrics tell how fast a new leader works.
type startMetrics struct{ after *prometheus.GaugeVec }

func newStartMetrics(registerer prometheus.Registerer) (*startMetrics, error) {
	m := &startMetrics{prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: "barque", Subsystem: "leader", Name: "work_start_seconds",
		Help: "How long after this server was elected last the routine knew the state of the cluster and worked.",
	}, []string{"routine"})}
	if err := registerer.Register(m.after); err != nil {
		return nil, fmt.Errorf("register the metrics of the leader's work: %w", err)
	}
	return m, nil
}

// started implements runtime.Config.OnStarted.
func (m *startMetrics) started(routine string, after time.Duration) {
	m.after.WithLabelValues(routine).Set(after.Seconds())
}
