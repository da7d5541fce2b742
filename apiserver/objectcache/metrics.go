package objectcache

import (
	"sync"

	"k8s.io/component-base/metrics"
	"k8s.io/component-base/metrics/legacyregistry"
)

// lookups counts the questions for decoded objects: a hit was decoded before, a miss is decoded
// now.
var lookups = metrics.NewCounterVec(&metrics.CounterOpts{
	Name:           "barque_object_cache_lookups_total",
	Help:           "Reads of stored objects, by whether the object was decoded before (hit) or had to be (miss).",
	StabilityLevel: metrics.ALPHA,
}, []string{"result"})

// counted are the counters of lookups, so that no lookup has to look up its labels.
type counted struct{ hits, misses metrics.CounterMetric }

var register = sync.OnceValue(func() counted {
	legacyregistry.MustRegister(lookups)
	return counted{lookups.WithLabelValues("hit"), lookups.WithLabelValues("miss")}
})
