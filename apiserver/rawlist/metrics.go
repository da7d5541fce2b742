package rawlist

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

// Lists counts what was answered with stored bytes, by group, resource and encoding: protobuf or
// json.
var Lists = metrics.NewCounterVec(&metrics.CounterOpts{
	Name:           "barque_stored_lists_total",
	Help:           "Lists that were answered with stored bytes.",
	StabilityLevel: metrics.ALPHA,
}, []string{"group", "resource", "encoding"})

var registerMetrics = sync.OnceFunc(func() { legacyregistry.MustRegister(Lists) })

// count notes a List that is written without its objects.
func (l *List) count(encoding string) {
	Lists.WithLabelValues(l.format.resource.Group, l.format.resource.Resource, encoding).Inc()
}
