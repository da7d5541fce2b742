package runtime_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/barque/barque/controllers/controllertest"
	"github.com/barque/barque/controllers/runtime"
)

func TestLoopWaitsForItsOwnWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := controllertest.New(t, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "x"}})
		informer := c.Informers.Core().V1().ConfigMaps().Informer()
		key := runtime.Key{Namespace: "a", Name: "x"}
		var looks atomic.Int32
		c.Start(func(ctx context.Context, _ kubernetes.Interface) error {
			var loop *runtime.Loop
			loop = runtime.NewLoop("test", 2, nil, func(context.Context, runtime.Key) (time.Duration, error) {
				if looks.Add(1) == 1 {
					loop.Writes().Wrote(key, informer, "5000") // a version that the informer has not seen
					return 0, nil
				}
				return 0, nil
			})
			runtime.Watch(loop, informer, func(_, now *corev1.ConfigMap) []runtime.Key { return []runtime.Key{key} })
			return loop.Run(ctx)
		})
		synctest.Wait()
		poke := func(version string) {
			t.Helper()
			cm, err := c.Client.CoreV1().ConfigMaps("a").Get(t.Context(), "x", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			cm.Data = map[string]string{"v": version}
			if _, err := c.Client.CoreV1().ConfigMaps("a").Update(t.Context(), cm, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
		}
		poke("old")
		if n := looks.Load(); n != 1 {
			t.Fatalf("%d looks before the write was seen, want 1", n)
		}
		c.SkipTo(5000)
		poke("new")
		if n := looks.Load(); n < 2 {
			t.Fatalf("%d looks after the write was seen, want 2 or more", n)
		}
	})
}

func TestDeletedIsSeenByGoneOrGoing(t *testing.T) {
	c := controllertest.New(t,
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p", UID: "u1"},
			Spec: corev1.PodSpec{NodeName: "n"}})
	informer := c.Informers.Core().V1().Pods().Informer()
	var looks atomic.Int32
	object := runtime.Key{Namespace: "a", Name: "p"}
	c.Start(func(ctx context.Context, client kubernetes.Interface) error {
		var loop *runtime.Loop
		loop = runtime.NewLoop("test", 1, nil, func(ctx context.Context, key runtime.Key) (time.Duration, error) {
			if looks.Add(1) == 1 {
				loop.Writes().Deleted(key, informer, object, "u1")
				return time.Nanosecond, nil
			}
			pod, err := c.Informers.Core().V1().Pods().Lister().Pods("a").Get("p")
			if err == nil && pod.DeletionTimestamp == nil {
				t.Error("looked while the pod seemed untouched")
			}
			return 0, nil
		})
		runtime.Watch(loop, informer, func(_, _ *corev1.Pod) []runtime.Key { return []runtime.Key{object} })
		return loop.Run(ctx)
	})
	controllertest.Eventually(t, "the first look", func() bool { return looks.Load() == 1 })
	if err := c.Client.CoreV1().Pods("a").Delete(t.Context(), "p", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	controllertest.Eventually(t, "the second look", func() bool { return looks.Load() >= 2 })
}

func TestLoopRetriesErrorsAndPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var looks []time.Duration
		began := time.Now()
		loop := runtime.NewLoop("test", 1, nil, func(context.Context, runtime.Key) (time.Duration, error) {
			looks = append(looks, time.Since(began))
			switch len(looks) {
			case 1:
				return 0, errors.New("no luck")
			case 2:
				panic("even less")
			case 3:
				return time.Hour, nil
			}
			return 0, nil
		})
		loop.Add(runtime.Key{Name: "k"})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- loop.Run(ctx) }()
		time.Sleep(2 * time.Hour)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if len(looks) != 4 || looks[1] < 5*time.Millisecond || looks[2] < 15*time.Millisecond || looks[3] < time.Hour {
			t.Errorf("looks at %v", looks)
		}
	})
}

// looksIn counts the looks at a key in a time, when reconcile does as it is told.
func looksIn(
	t *testing.T, d time.Duration, reconcile func(loop *runtime.Loop, key runtime.Key) (time.Duration, error),
) (looks int) {
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int32
		ctx, cancel := context.WithTimeout(t.Context(), d)
		defer cancel()
		var loop *runtime.Loop
		loop = runtime.NewLoop("test", 2, nil, func(_ context.Context, key runtime.Key) (time.Duration, error) {
			if n.Add(1) > 1e6 {
				cancel() // else time would stand still in this bubble
			}
			return reconcile(loop, key)
		})
		loop.Add(runtime.Key{Name: "a"})
		if err := loop.Run(ctx); err != nil {
			t.Error(err)
		}
		looks = int(n.Load())
	})
	return looks
}

// No reconciler can keep a core busy, whatever it asks for.
func TestNothingSpins(t *testing.T) {
	other := map[string]string{"a": "b", "b": "c", "c": "a"}
	for name, c := range map[string]struct {
		most      int // looks in ten minutes
		reconcile func(loop *runtime.Loop, key runtime.Key) (time.Duration, error)
	}{
		"an error": {100, func(*runtime.Loop, runtime.Key) (time.Duration, error) { return 0, errors.New("no luck") }},
		"a panic":  {100, func(*runtime.Loop, runtime.Key) (time.Duration, error) { panic("no luck") }},
		"a retry":  {100, func(*runtime.Loop, runtime.Key) (time.Duration, error) { return runtime.Retry, nil }},
		"a wait of no length": {100, func(*runtime.Loop, runtime.Key) (time.Duration, error) {
			return time.Microsecond, nil
		}},
		"its own key": {51 * 600, func(loop *runtime.Loop, key runtime.Key) (time.Duration, error) {
			loop.Add(key)
			return 0, nil
		}},
		"its own key, and it fails": {51 * 600, func(loop *runtime.Loop, key runtime.Key) (time.Duration, error) {
			loop.Add(key)
			return 0, errors.New("no luck")
		}},
		"keys in a circle": {3 * 51 * 600, func(loop *runtime.Loop, key runtime.Key) (time.Duration, error) {
			loop.Add(runtime.Key{Name: other[key.Name]})
			return 0, nil
		}},
	} {
		t.Run(name, func(t *testing.T) {
			if n := looksIn(t, 10*time.Minute, c.reconcile); n < 10 || n > c.most {
				t.Errorf("%d looks in ten minutes, want at most %d", n, c.most)
			}
		})
	}
}

// Short waits that end are no failures, and long ones are kept to.
func TestWaitsAreKept(t *testing.T) {
	for _, wait := range []time.Duration{100 * time.Millisecond, time.Second, time.Minute} {
		n := looksIn(t, time.Hour, func(*runtime.Loop, runtime.Key) (time.Duration, error) { return wait, nil })
		if want := int(time.Hour / wait); n < want-1 || n > want+1 {
			t.Errorf("%d looks in an hour, one each %v", n, wait)
		}
	}
	var last time.Time
	short := false
	looksIn(t, time.Minute, func(*runtime.Loop, runtime.Key) (time.Duration, error) {
		now := time.Now()
		if short && now.Sub(last) != 30*time.Millisecond {
			t.Errorf("a look after %v, want 30 ms", now.Sub(last))
		}
		last, short = now, !short
		if short {
			return 30 * time.Millisecond, nil
		}
		return time.Second, nil
	})
}

// A key that is woken again and again while it backs off is not put off further each time.
func TestEventsDoNotLengthenTheBackOff(t *testing.T) {
	var began, healed time.Time
	looksIn(t, time.Hour, func(loop *runtime.Loop, key runtime.Key) (time.Duration, error) {
		now := time.Now()
		if began.IsZero() {
			began = now
		}
		since := now.Sub(began)
		if since < 100*time.Millisecond {
			time.AfterFunc(2*time.Millisecond, func() { loop.Add(key) })
		}
		if since < 200*time.Millisecond {
			return runtime.Retry, nil
		}
		if healed.IsZero() {
			healed = now
		}
		return 0, nil
	})
	if d := healed.Sub(began); healed.IsZero() || d > time.Second {
		t.Errorf("looked again after %v", d)
	}
}

func TestRunLeavesNoHandlerBehind(t *testing.T) {
	c := controllertest.New(t)
	informer := c.Informers.Core().V1().ConfigMaps().Informer()
	var calls atomic.Int32
	stop := c.Start(func(ctx context.Context, _ kubernetes.Interface) error {
		loop := runtime.NewLoop("test", 1, nil,
			func(context.Context, runtime.Key) (time.Duration, error) { return 0, nil })
		runtime.Watch(loop, informer, func(_, _ *corev1.ConfigMap) []runtime.Key { calls.Add(1); return nil })
		return loop.Run(ctx)
	})
	make := func(name string) {
		t.Helper()
		_, err := c.Client.CoreV1().ConfigMaps("a").Create(t.Context(),
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		controllertest.Eventually(t, "the informer", func() bool {
			_, exists, _ := informer.GetIndexer().GetByKey("a/" + name)
			return exists
		})
	}
	make("one")
	controllertest.Eventually(t, "the handler's call", func() bool { return calls.Load() == 1 })
	stop()
	make("two")
	if n := calls.Load(); n != 1 {
		t.Errorf("the handler was called after the end: %d calls", n)
	}
}
