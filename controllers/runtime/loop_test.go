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
	c := controllertest.New(t, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p", UID: "u1"}, Spec: corev1.PodSpec{NodeName: "n"}})
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

func TestRunLeavesNoHandlerBehind(t *testing.T) {
	c := controllertest.New(t)
	informer := c.Informers.Core().V1().ConfigMaps().Informer()
	var calls atomic.Int32
	stop := c.Start(func(ctx context.Context, _ kubernetes.Interface) error {
		loop := runtime.NewLoop("test", 1, nil, func(context.Context, runtime.Key) (time.Duration, error) { return 0, nil })
		runtime.Watch(loop, informer, func(_, _ *corev1.ConfigMap) []runtime.Key { calls.Add(1); return nil })
		return loop.Run(ctx)
	})
	make := func(name string) {
		t.Helper()
		_, err := c.Client.CoreV1().ConfigMaps("a").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
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
