package pods_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// TestHealthy: a kubelet is unhealthy when it cannot look at the runtime's pods for five minutes,
// whether each look fails or one does not end. It is healthy again after the next one.
func TestHealthy(t *testing.T) {
	for name, c := range map[string]struct {
		fails func() func(call, name string) error
		says  string
	}{
		"each look fails": {func() func(string, string) error {
			return func(call, _ string) error {
				if call == "ListPodSandboxes" {
					return errors.New("no such socket")
				}
				return nil
			}
		}, "no such socket"},
		"one does not end": {func() func(string, string) error {
			ends := time.After(20 * time.Minute)
			return func(call, _ string) error {
				if call == "ListPodSandboxes" {
					<-ends
				}
				return nil
			}
		}, "has not ended"},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(t *testing.T, w *world) {
				pass := func(d time.Duration) {
					<-time.After(d)
					synctest.Wait()
				}
				pass(time.Hour)
				if err := w.manager.Healthy(); err != nil {
					t.Fatal(err)
				}
				w.runtime.Fail(c.fails())
				pass(4*time.Minute + 45*time.Second)
				if err := w.manager.Healthy(); err != nil {
					t.Errorf("it does not wait for the runtime: %v", err)
				}
				pass(30 * time.Second)
				if err := w.manager.Healthy(); err == nil || !strings.Contains(err.Error(), c.says) {
					t.Errorf("got %v, want %q", err, c.says)
				}
				w.runtime.Fail(nil)
				pass(20 * time.Minute)
				if err := w.manager.Healthy(); err != nil {
					t.Errorf("the runtime is back: %v", err)
				}
			})
		})
	}
}

// TestHealthyBesideAHangingDriver: the driver of devices that a pod left does not answer. The
// kubelet looks at the runtime's pods meanwhile, so it is well. One call is under way.
func TestHealthyBesideAHangingDriver(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.stop()
		w.devices.hanging = []types.UID{"gone"}
		w.start()
		<-time.After(time.Hour)
		synctest.Wait()
		if n := w.devices.asked.Load(); n != 1 {
			t.Errorf("%d calls of the driver hang, want 1", n)
		}
		if err := w.manager.Healthy(); err != nil {
			t.Error(err)
		}
	})
}
