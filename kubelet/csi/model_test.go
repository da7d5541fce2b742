package csi

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/barque/barque/cluster-test/csidriver"
	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/kubelet/plugins"
)

func pluginAt(socket string) plugins.Plugin {
	return plugins.Plugin{Name: driverName, Endpoint: socket, Versions: []string{"1.0.0"}}
}

// TestRandomHistories: pods get volumes and lose them while calls of the driver hang, are refused,
// fail and lose their answers, and while the kubelet and the driver start again. The driver, which
// judges, is never misused; a pod that is said to have its volumes has them; in the end nothing is
// left.
func TestRandomHistories(t *testing.T) {
	histories, steps := 12, 40
	if testing.Short() {
		histories = 3
	}
	for seed := range histories {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { history(t, rand.New(rand.NewPCG(uint64(seed), 16)), steps) })
	}
}

func history(t *testing.T, rng *rand.Rand, steps int) {
	names := []string{"files", "more", "device"}
	var objects []runtime.Object
	for _, name := range names {
		objects = append(objects, volume(name, func(pv *v1.PersistentVolume) {
			if name == "device" {
				pv.Spec.VolumeMode = new(v1.PersistentVolumeBlock)
			}
		})...)
	}
	m := newMachine(t, csidriver.Config{}, objects...)
	for _, name := range names {
		if err := m.driver.Add("handle-of-"+name, name == "device"); err != nil {
			t.Fatal(err)
		}
	}
	m.timeout = 50 * time.Millisecond // hanging calls are to time out
	m.restartKubelet()
	pods := []types.UID{"a", "b", "c"}
	faults := rand.New(rand.NewPCG(rng.Uint64(), 1))
	misbehave := func() {
		m.driver.Misbehave(func(method string) csidriver.Fault { // called under the driver's lock
			if method == "NodeGetInfo" || faults.IntN(3) > 0 {
				return csidriver.None
			}
			return csidriver.Fault(1 + faults.IntN(4))
		})
	}
	misbehave()
	var log []string
	ending := map[types.UID]bool{} // pods that began to end get nothing any more
	check := func() {
		t.Helper()
		if wrong := m.driver.Violations(); len(wrong) > 0 {
			t.Fatalf("the driver was misused: %q after %q", wrong, log)
		}
	}
	for range steps {
		uid := pods[rng.IntN(len(pods))]
		switch rng.IntN(9) {
		case 0, 1, 2, 3:
			if ending[uid] {
				break
			}
			pod := podOf(uid, names[:1+rng.IntN(len(names))]...)
			ctx, cancel := t.Context(), func() {}
			if rng.IntN(4) == 0 {
				// brief: the pod ends in the middle
				ctx, cancel = context.WithTimeoutCause(ctx, time.Duration(rng.IntN(20))*time.Millisecond,
					errors.New("the pod ends"))
			}
			_, _, err := m.files.Mount(ctx, pod)
			cancel()
			log = append(log, fmt.Sprintf("mount %s %v: %v", uid, len(pod.Spec.Volumes), err))
			if err != nil {
				break
			}
			left := m.driver.Left()
			for _, v := range pod.Spec.Volumes {
				want := fmt.Sprintf("handle-of-%s shown at ", v.Name)
				if !slices.ContainsFunc(left,
					func(have string) bool { return len(have) > len(want) && have[:len(want)] == want }) {
					t.Fatalf("pod %s does not have volume %s: %q after %q", uid, v.Name, left, log)
				}
			}
		case 4, 5, 6:
			err := m.files.Unmount(uid)
			ending[uid] = err != nil
			log = append(log, fmt.Sprintf("unmount %s: %v", uid, err))
		case 7:
			log = append(log, "the kubelet starts again")
			m.restartKubelet()
		case 8:
			log = append(log, "the driver starts again")
			m.stopDriver()
			check()
			m.startDriver()
			misbehave()
		}
		check()
	}
	m.driver.Misbehave(nil)
	m.timeout = 0
	m.restartKubelet()
	for _, uid := range pods {
		await.NoError(t, "the pod is rid of its volumes", func(context.Context) error { return m.files.Unmount(uid) })
	}
	check()
	m.clean()
}
