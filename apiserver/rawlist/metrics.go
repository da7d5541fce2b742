package rawlist

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

// Lists counts the answers with stored bytes, by group, resource and encoding: protobuf or json.
var Lists = metrics.NewCounterVec(&metrics.CounterOpts{
	Name:           "barque_stored_lists_total",
	Help:           "Lists that were answered with stored bytes.",
	StabilityLevel: metrics.ALPHA,
}, []string{"group", "resource", "encoding"})

// Events counts the encodings for watches from stored bytes, by group and resource. All watches
// share an encoding.
var Events = metrics.NewCounterVec(&metrics.CounterOpts{
	Name:           "barque_stored_events_total",
	Help:           "Objects that were encoded for watches from stored bytes, without being decoded.",
	StabilityLevel: metrics.ALPHA,
}, []string{"group", "resource"})

var registerMetrics = sync.OnceFunc(func() { legacyregistry.MustRegister(Lists, Events) })

// countEvent notes an object that is sent without being decoded.
func (f *Format) countEvent() { f.events.Inc() }

// count notes a List that is written without its objects.
func (l *List) count(encoding string) {
	Lists.WithLabelValues(l.format.resource.Group, l.format.resource.Resource, encoding).Inc()
}
