package runtime

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// What a routine took in one term is not told of the next one, in which it may never start.
func TestStartMetricsAreOfOneTerm(t *testing.T) {
	registry := prometheus.NewRegistry()
	m, err := NewStartMetrics(registry)
	if err != nil {
		t.Fatal(err)
	}
	m.Started("fast", time.Second)
	m.Started("slow", 2*time.Second)
	if n := testutil.CollectAndCount(m.after); n != 2 {
		t.Errorf("%d routines are told of, want 2", n)
	}
	m.Ended()
	if n := testutil.CollectAndCount(m.after); n != 0 {
		t.Errorf("%d routines are told of between terms", n)
	}
	m.Started("fast", 3*time.Second)
	if n, got := testutil.CollectAndCount(m.after), testutil.ToFloat64(m.after.WithLabelValues("fast")); n != 1 ||
		got != 3 {
		t.Errorf("%d routines are told of, fast after %v s", n, got)
	}
}
