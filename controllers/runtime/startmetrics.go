package runtime

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// StartMetrics tell how fast a new leader works.
type StartMetrics struct{ after *prometheus.GaugeVec }

// NewStartMetrics registers the metrics.
func NewStartMetrics(registerer prometheus.Registerer) (*StartMetrics, error) {
	m := &StartMetrics{prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Namespace: "barque", Subsystem: "leader", Name: "work_start_seconds",
		Help: "How long after its election the routine of the leader knew the state of the cluster and worked. Other servers tell none.",
	}, []string{"routine"})}
	if err := registerer.Register(m.after); err != nil {
		return nil, fmt.Errorf("register the metrics of the leader's work: %w", err)
	}
	return m, nil
}

// Started implements Config.OnStarted.
func (m *StartMetrics) Started(routine string, after time.Duration) {
	m.after.WithLabelValues(routine).Set(after.Seconds())
}

// Ended implements Config.OnEnded. What an earlier term took would pass for this one's
// while it begins.
func (m *StartMetrics) Ended() { m.after.Reset() }
