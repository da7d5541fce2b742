package lastevents

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
)

// sink takes some time for each event, and counts the written events.
type sink struct {
	takes time.Duration
	fails error
	gone  chan struct{} // closed when it takes no more

	mu      sync.Mutex
	written int
}

func (s *sink) Create(e *v1.Event) (*v1.Event, error) {
	select {
	case <-time.After(s.takes): // brief: in virtual time
	case <-s.gone:
		return nil, errors.New("gone")
	}
	if s.fails != nil {
		return nil, s.fails
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.written++
	return e, nil
}

func (s *sink) Update(e *v1.Event) (*v1.Event, error)          { return s.Create(e) }
func (s *sink) Patch(e *v1.Event, _ []byte) (*v1.Event, error) { return s.Create(e) }

// TestLastEvents: events that wait at a stop are written, and a stop is bounded.
func TestLastEvents(t *testing.T) {
	for name, c := range map[string]struct {
		sink    *sink
		written int
		takes   time.Duration
	}{
		"a quick API server": {&sink{takes: 10 * time.Millisecond}, 20, 200 * time.Millisecond},
		"a slow one":         {&sink{takes: 300 * time.Millisecond}, 6, Patience},
		"one that hangs":     {&sink{takes: time.Hour}, 0, Patience},
		"none": {&sink{takes: 10 * time.Millisecond, fails: errors.New("connection refused")}, 0,
			10 * time.Millisecond},
		"one that refuses": {&sink{takes: 10 * time.Millisecond, fails: apierrors.NewBadRequest("no")}, 0,
			200 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c.sink.gone = make(chan struct{})
				b := record.NewBroadcaster()
				recorder := b.NewRecorder(scheme.Scheme, v1.EventSource{Component: "tester"})
				stop := Start(b, c.sink)
				began := time.Now() // the bubble's
				for i := range 20 {
					recorder.Event(&v1.ObjectReference{Kind: "Pod", Namespace: "ns", Name: fmt.Sprint("p", i)},
						v1.EventTypeNormal, "Seen", "it was seen")
				}
				stop()
				took := time.Since(began)
				c.sink.mu.Lock()
				written := c.sink.written
				c.sink.mu.Unlock()
				if written != c.written || took != c.takes {
					t.Errorf("%d events are written in %s, want %d in %s", written, took, c.written, c.takes)
				}
				close(c.sink.gone)
				<-time.After(time.Hour) // between attempts client-go waits
			})
		})
	}
}

// TestStopsAtOnce: a stop waits for nothing where nothing can be written, or nothing waits.
func TestStopsAtOnce(t *testing.T) {
	for name, fails := range map[string]error{"nothing waits": nil, "no API server": errors.New("connection refused")} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := record.NewBroadcaster()
				stop := Start(b, &sink{fails: fails})
				b.NewRecorder(scheme.Scheme, v1.EventSource{Component: "tester"}).
					Event(&v1.ObjectReference{Kind: "Pod", Namespace: "ns", Name: "p"}, v1.EventTypeNormal, "Seen",
						"it was seen")
				synctest.Wait()
				began := time.Now()
				stop()
				if took := time.Since(began); took != 0 {
					t.Errorf("it takes %s", took)
				}
				<-time.After(time.Hour)
			})
		})
	}
}
