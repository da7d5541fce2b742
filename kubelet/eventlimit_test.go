package kubelet

import (
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/kubelet/config"
)

// countedEvents counts the sent events.
type countedEvents struct{ sent int }

func (c *countedEvents) Create(e *v1.Event) (*v1.Event, error)          { c.sent++; return e, nil }
func (c *countedEvents) Update(e *v1.Event) (*v1.Event, error)          { c.sent++; return e, nil }
func (c *countedEvents) Patch(e *v1.Event, _ []byte) (*v1.Event, error) { c.sent++; return e, nil }

// TestEventRate: eventRecordQPS and eventBurst bound the events of a node; 0 is no bound.
func TestEventRate(t *testing.T) {
	for name, c := range map[string]struct {
		qps   *int32
		burst int32
		want  time.Duration // of 110 events
	}{
		"a rate":    {ptr.To[int32](5), 10, 20 * time.Second},
		"no limit":  {ptr.To[int32](0), 10, 0},
		"defaults":  {config.Default().EventRecordQPS, config.Default().EventBurst, 200 * time.Millisecond},
		"not given": {nil, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				counted := new(countedEvents)
				sink := limitedEvents(counted, &config.Configuration{EventRecordQPS: c.qps, EventBurst: c.burst})
				began := time.Now() // the bubble's
				for i := range 110 {
					send := sink.Create
					if i%2 == 1 {
						send = sink.Update
					}
					if _, err := send(&v1.Event{}); err != nil {
						t.Fatal(err)
					}
				}
				if took := time.Since(began).Round(10 * time.Millisecond); took != c.want || counted.sent != 110 {
					t.Errorf("%d events in %s, want %s", counted.sent, took, c.want)
				}
			})
		})
	}
}
