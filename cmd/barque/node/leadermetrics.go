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
		Help: "How long after its election the routine of the leader knew the state of the cluster and worked. Other servers tell none.",
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

// ended implements runtime.Config.OnEnded. What an earlier term took would pass for this one's
// while it begins.
func (m *startMetrics) ended() { m.after.Reset() }
