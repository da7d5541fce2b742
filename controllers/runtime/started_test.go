package runtime_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/controllers/controllertest"
	"github.com/barque/barque/controllers/runtime"
)

// starts is what OnStarted was told.
type starts struct {
	mu    sync.Mutex
	after map[string][]time.Duration
}

func (s *starts) note(routine string, after time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.after == nil {
		s.after = map[string][]time.Duration{}
	}
	s.after[routine] = append(s.after[routine], after)
}

func (s *starts) take() map[string][]time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer func() { s.after = nil }()
	return maps.Clone(s.after)
}

// A new leader whose informers are warm works at the moment of its election: it waits for nothing,
// and looks at all that there is at once. One whose informers are not there yet says so when they
// are.
func TestANewLeaderWorksAtOnceWithWarmInformers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var objects []kruntime.Object
		const count = 300
		for i := range count {
			objects = append(objects,
				&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: fmt.Sprint(i)}})
		}
		c := controllertest.New(t, objects...)
		warm := c.Informers.Core().V1().ConfigMaps().Informer()
		cold := c.Informers.Core().V1().Secrets().Informer()
		ctx, cancel := context.WithCancel(t.Context())
		var informers sync.WaitGroup
		informers.Go(func() { warm.RunWithContext(ctx) })
		synctest.Wait()

		var looked sync.Map
		loops := func(name string, informers ...cache.SharedIndexInformer) runtime.Routine {
			return runtime.Routine{Name: name, Run: func(ctx context.Context, _ kubernetes.Interface) error {
				loop := runtime.NewLoop(name, 2, nil,
					func(ctx context.Context, key runtime.Key) (time.Duration, error) {
						looked.Store(fmt.Sprint(runtime.TermFrom(ctx), name, key), true)
						return 0, nil
					})
				for _, informer := range informers {
					runtime.Watch(loop, informer,
						func(_, now *corev1.ConfigMap) []runtime.Key { return []runtime.Key{runtime.KeyOf(now)} })
				}
				return loop.Run(ctx)
			}}
		}
		fed := runtime.Routine{Name: "fed", Run: func(ctx context.Context, _ kubernetes.Interface) error {
			loop := runtime.NewLoop("fed", 1, nil,
				func(context.Context, runtime.Key) (time.Duration, error) { return 0, nil })
			var feeder sync.WaitGroup
			defer feeder.Wait()
			feeder.Go(func() {
				select {
				case <-time.After(2 * time.Second):
					runtime.Started(ctx)
				case <-ctx.Done():
				}
			})
			return loop.Run(ctx)
		}}
		var told starts
		var ended atomic.Int64
		e := newElections()
		r, stop := startWith(t,
			runtime.Config{Leadership: e, OnStarted: told.note, OnEnded: func() { ended.Add(1) },
				Routines: []runtime.Routine{loops("warm", warm), loops("cold", warm, cold), fed}})

		lose := e.win(1)
		synctest.Wait()
		if got := told.take(); len(got) != 1 || !slices.Equal(got["warm"], []time.Duration{0}) {
			t.Errorf("at the election these have started: %v, want only warm, after 0 s", got)
		}
		for i := range count {
			if _, ok := looked.Load(fmt.Sprint(1, "warm", runtime.Key{Namespace: "a", Name: fmt.Sprint(i)})); !ok {
				t.Fatalf("object %d was not looked at in the moment of the election", i)
			}
		}
		time.Sleep(3 * time.Second)
		informers.Go(func() { cold.RunWithContext(ctx) })
		time.Sleep(time.Second)
		got := told.take()
		if !slices.Equal(got["fed"], []time.Duration{2 * time.Second}) {
			t.Errorf("fed has started after %v, want 2 s", got["fed"])
		}
		if len(got["cold"]) != 1 || got["cold"][0] < 3*time.Second {
			t.Errorf("cold has started after %v, want once, not before its informer", got["cold"])
		}
		if s := r.Status(); s.Routines[2].StartedAfter != 2*time.Second {
			t.Errorf("the status of fed: %+v", s.Routines[2])
		}

		// Every term is measured by itself.
		if n := ended.Load(); n != 0 {
			t.Errorf("told of %d ends in the first term", n)
		}
		lose()
		synctest.Wait()
		if n := ended.Load(); n != 1 {
			t.Errorf("told of %d ends after the first term", n)
		}
		lose = e.win(2)
		synctest.Wait()
		if got := told.take(); !slices.Equal(got["warm"], []time.Duration{0}) ||
			!slices.Equal(got["cold"], []time.Duration{0}) {
			t.Errorf("in the second term they have started after %v", got)
		}
		lose()
		stop()
		cancel()
		informers.Wait()
	})
}

// What restarts after a failure did not wait for an election.
func TestOnlyTheFirstRunOfATermIsMeasured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var told starts
		e := newElections()
		_, stop := startWith(t,
			runtime.Config{Leadership: e, OnStarted: told.note,
				Routines: []runtime.Routine{{Name: "r", Run: func(ctx context.Context, _ kubernetes.Interface) error {
					runtime.Started(ctx)
					select {
					case <-time.After(time.Second):
						return errors.New("no luck")
					case <-ctx.Done():
						return nil
					}
				}}}})
		lose := e.win(1)
		time.Sleep(time.Minute)
		if got := told.take(); !slices.Equal(got["r"], []time.Duration{0}) {
			t.Errorf("told %v, want once", got)
		}
		lose()
		stop()
	})
}
