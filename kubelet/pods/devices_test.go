package pods_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
)

// TestDevicesComeFirstAndGoFirst: no container starts before the pod's devices are prepared, and
// the pod's end is not reported before they were taken back: another pod may get them from then on.
func TestDevicesComeFirstAndGoFirst(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		w.devices.fail(errors.New("no driver"), nil)
		pod := appPod(v1.RestartPolicyNever)
		claim := "c"
		pod.Spec.ResourceClaims = []v1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &claim}}
		w.manager.Update(pod)
		if s := w.status(pod); s.Phase != v1.PodPending {
			t.Fatalf("without its devices: %+v", s)
		}
		const want = "Warning FailedPrepareDynamicResources Failed to prepare dynamic resources: no driver"
		if !strings.Contains(w.events(), want) {
			t.Errorf("events:\n%s\nwant %q", w.events(), want)
		}
		w.devices.fail(nil, errors.New("busy"))
		time.Sleep(time.Minute)
		if s := w.status(pod); s.Phase != v1.PodRunning {
			t.Fatalf("with its devices: %+v", s)
		}
		w.runtime.End("main", 0, "Completed")
		time.Sleep(time.Minute)
		if s := w.status(pod); s.Phase != v1.PodRunning {
			t.Fatalf("while its devices are not taken back: %+v", s)
		}
		w.devices.fail(nil, nil)
		time.Sleep(time.Minute)
		if s := w.status(pod); s.Phase != v1.PodSucceeded {
			t.Fatalf("in the end: %+v", s)
		}
		synctest.Wait()
	})
}
