package volumes

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/barque/barque/kubelet/volumes/diskusage"
)

// registry has one image, and counts pulls.
type registry struct {
	pulls   int
	present bool
	down    bool
}

func (r *registry) Ensure(
	_ context.Context, _ *v1.Pod, c *v1.Container, _ *runtimeapi.PodSandboxConfig,
) (string, error) {
	if r.down {
		return "", errors.New("no registry")
	}
	r.pulls++
	r.present = true
	return "ref of " + c.Image + " by " + string(c.ImagePullPolicy), nil
}

func (r *registry) ImageStatus(context.Context, string) (*runtimeapi.Image, error) {
	if !r.present {
		return nil, nil
	}
	return &runtimeapi.Image{}, nil
}

// TestImageVolume: an image is pulled once for a pod, also when the kubelet starts anew without its
// registry.
func TestImageVolume(t *testing.T) {
	root, images := t.TempDir(), &registry{}
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}, Spec: v1.PodSpec{Volumes: []v1.Volume{
		{Name: "v",
			VolumeSource: v1.VolumeSource{Image: &v1.ImageVolumeSource{Reference: "x:1", PullPolicy: v1.PullAlways}}}}}}
	mount := func() (string, error) {
		m := newManager(t, root, claimsOf{}, nil)
		m.kinds = []Plugin{imageVolumes{images}}
		paths, _, err := m.Mount(t.Context(), pod)
		return paths["v"], err
	}
	for range 2 {
		if ref, err := mount(); err != nil || ref != "ref of x:1 by Always" {
			t.Fatalf("%q %v", ref, err)
		}
		images.down = true
	}
	if images.pulls != 1 {
		t.Errorf("%d pulls", images.pulls)
	}
	images.down, images.present = false, false // it was removed
	if _, err := mount(); err != nil || images.pulls != 2 {
		t.Errorf("%d pulls, %v", images.pulls, err)
	}
}

// slow is a plugin whose volumes take long to measure.
type slow struct {
	emptyDirs
	release chan struct{}
}

func (s slow) Usage(context.Context, *Volume, string) (*diskusage.Usage, error) {
	<-s.release
	return &diskusage.Usage{Used: 7}, nil
}

// TestStats: callers do not wait for long for a measurement, and there is one at a
// time, each minute.
func TestStats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newManager(t, t.TempDir(), claimsOf{}, nil)
		plugin := slow{emptyDirs{m.mounts, func() v1.ResourceList { return nil }}, make(chan struct{})}
		m.kinds = []Plugin{plugin}
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}, Spec: v1.PodSpec{Volumes: []v1.Volume{
			{Name: "v", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}}}
		if got := m.Stats(t.Context(), pod); got != nil {
			t.Errorf("before it has volumes: %v", got)
		}
		if _, _, err := m.Mount(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if got := m.Stats(t.Context(), pod); got != nil {
				t.Errorf("before it is measured: %v", got)
			}
		}
		plugin.release <- struct{}{} // the one that runs
		synctest.Wait()
		known := func(when string) {
			t.Helper()
			began := time.Now()
			if got := m.Stats(t.Context(), pod); len(got) != 1 || got[0].Name != "v" || got[0].Used != 7 {
				t.Errorf("%s: %v", when, got)
			}
			if took := time.Since(began); took != 0 {
				t.Errorf("%s: it took %s of virtual time", when, took)
			}
		}
		known("measured")
		known("measured, again")
		time.Sleep(time.Minute) // virtual, as below
		known("while the next measurement runs")
		time.Sleep(time.Hour)
		known("while it takes long")
		plugin.release <- struct{}{}
		synctest.Wait()
		time.Sleep(time.Hour - time.Second)
		known("after a long one")
		select {
		case plugin.release <- struct{}{}:
			t.Error("more than half of the time is spent on measuring")
		default:
		}
		time.Sleep(time.Minute)
		known("when the next one is due")
		synctest.Wait()
		if err := m.Unmount("u"); err != nil {
			t.Fatal(err)
		}
		plugin.release <- struct{}{}
	})
}
