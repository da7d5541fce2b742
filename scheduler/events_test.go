package scheduler

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	typedv1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/utils/clock"

	"github.com/barque/barque/internal/lastevents"
)

// eventTaker is an API server that accepts events, each after a while.
type eventTaker struct {
	takes time.Duration
	fails func(e *v1.Event) error

	mu      sync.Mutex
	tried   int
	written []string // their reasons
}

type (
	takerClient struct {
		kubernetes.Interface
		*eventTaker
	}
	takerCore struct {
		typedv1.CoreV1Interface
		*eventTaker
	}
	takerEvents struct {
		typedv1.EventInterface
		*eventTaker
	}
)

func (c takerClient) CoreV1() typedv1.CoreV1Interface    { return takerCore{nil, c.eventTaker} }
func (c takerCore) Events(string) typedv1.EventInterface { return takerEvents{nil, c.eventTaker} }

func (c takerEvents) Create(ctx context.Context, e *v1.Event, _ metav1.CreateOptions) (*v1.Event, error) {
	c.mu.Lock()
	c.tried++
	c.mu.Unlock()
	select {
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-time.After(c.takes):
	}
	if c.fails != nil {
		if err := c.fails(e); err != nil {
			return nil, err
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.written = append(c.written, e.Reason)
	return e, nil
}

// TestLastEventsOfATerm: the events that are queued or being written at a term's end are written,
// and those of its last writes. One refused event does not stop the others, and the wait is
// bounded.
func TestLastEventsOfATerm(t *testing.T) {
	const before, late = 5, 5 // the end of the term's context
	for name, c := range map[string]struct {
		takes   time.Duration
		fails   func(e *v1.Event) error
		written int
		tried   int
		waits   time.Duration // after the context's end
	}{
		"all are taken": {10 * time.Millisecond, nil, 10, 10, 100 * time.Millisecond},
		"some are refused": {10 * time.Millisecond, func(e *v1.Event) error {
			if e.Reason == "E2" || e.Reason == "E5" {
				return apierrors.NewBadRequest("no")
			}
			return nil
		}, 8, 10, 100 * time.Millisecond},
		// The event being written, and the first of the last ones.
		"no API server": {10 * time.Millisecond, func(*v1.Event) error { return errors.New("connection refused") }, 0,
			2, 20 * time.Millisecond},
		"one that hangs": {time.Hour, nil, 0, 2, lastevents.Patience},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				taker := &eventTaker{takes: c.takes, fails: c.fails}
				ctx, end := context.WithCancel(t.Context())
				defer end()
				r := newRecorder(ctx, &Config{Logger: slog.New(slog.DiscardHandler), Clock: clock.RealClock{}},
					takerClient{nil, taker})
				pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u"}}
				tell := func(i int) { r.event(pod, v1.EventTypeNormal, fmt.Sprint("E", i), "Binding", "it was told") }
				for i := range before {
					tell(i)
				}
				synctest.Wait()
				end()
				synctest.Wait()
				for i := range late {
					tell(before + i)
				}
				began := time.Now() // the bubble's
				r.wait()
				took := time.Since(began)
				taker.mu.Lock()
				defer taker.mu.Unlock()
				if len(taker.written) != c.written || taker.tried != c.tried || took != c.waits {
					t.Errorf("%v are written of %d tried, within %s; want %d of %d within %s", taker.written,
						taker.tried, took, c.written, c.tried, c.waits)
				}
			})
		})
	}
}
