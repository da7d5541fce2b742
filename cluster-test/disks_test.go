package clustertest

import (
	"path/filepath"
	"testing"

	"github.com/barque/barque/cluster-test/disk"
	"github.com/barque/barque/internal/needs"
)

// TestDiskOfTheMachine: a disk that was mounted on the machine before a pod started, such as a USB
// stick, can be unmounted and taken away while the pod runs: neither Barque nor its processes for
// pods keep a mount of it.
func TestDiskOfTheMachine(t *testing.T) {
	needs.NoError(t, disk.Possible(), "disks that are taken away while pods run")
	s := newSpace(t)
	dir := t.TempDir()
	stick, err := disk.New(filepath.Join(dir, "image"), filepath.Join(dir, "mount"), 8)
	if err != nil {
		t.Fatal(err)
	}
	attached := true
	t.Cleanup(func() {
		if attached {
			if err := stick.Detach(); err != nil {
				t.Error(err)
			}
		}
	})
	s.Apply(`
apiVersion: v1
kind: Pod
metadata: {name: stays}
spec:
  containers: [{name: c, image: "barque.local/hello:1"}]
  terminationGracePeriodSeconds: 1
`)
	pid := ContainerPIDs(t, s.WaitReady("stays").Status.ContainerStatuses[0].ContainerID)[0]
	if err := stick.Detach(); err != nil {
		t.Fatal(err)
	}
	attached = false
	if err := stick.Attach(); err != nil { // it waits until the disk has no user any more
		t.Fatal(err)
	}
	attached = true
	if now := ContainerPIDs(t, s.Pod("stays").Status.ContainerStatuses[0].ContainerID)[0]; now != pid {
		t.Errorf("the pod ran as process %d, and now as %d", pid, now)
	}
}
