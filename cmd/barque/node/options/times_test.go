package options

import (
	"reflect"
	"testing"
	"time"
)

// Each flag's value reaches its field of the node controller.
func TestSettingsOfTheNodeController(t *testing.T) {
	times := DefaultTimes()
	times.MonitorPeriod, times.MonitorGrace, times.StartupGrace, times.GoodbyeGrace = time.Second, 2*time.Second,
		3*time.Second, 4*time.Second
	s := times.ForNodes()
	if got := []time.Duration{s.Period, s.Grace, s.StartupGrace, s.GoodbyeGrace}; !reflect.DeepEqual(got,
		[]time.Duration{time.Second, 2 * time.Second, 3 * time.Second, 4 * time.Second}) {
		t.Errorf("period, grace, at start, after a good-bye: %v", got)
	}
}
