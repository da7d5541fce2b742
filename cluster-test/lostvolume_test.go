package clustertest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// claimedVolume is a pod with a claim of the default class, on the agent.
const claimedVolume = `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Mi}}}
---
apiVersion: v1
kind: Pod
metadata: {name: first}
spec:
  nodeSelector: {kubernetes.io/hostname: a1}
  terminationGracePeriodSeconds: 0
  containers: [{name: hello, image: "barque.local/hello:1", volumeMounts: [{name: data, mountPath: /data}]}]
  volumes: [{name: data, persistentVolumeClaim: {claimName: data}}]
`

// A machine comes back without the disk of its volumes. Kubelet, API and status together keep a pod
// from getting an empty directory in place of its data: it waits, and both give the reason. The
// wait ends when the data is put back.
func TestALostVolume(t *testing.T) {
	t.Parallel()
	images, err := testRegistry()
	if err != nil {
		t.Fatal(err)
	}
	c := Start(t, Options{Servers: 1, Agents: 1, Registry: images})
	s := NewSpace(t, c)
	Eventually(t, deadline, "a whole cluster", c.Healthy)
	s.Apply(claimedVolume)
	s.WaitReady("first")
	claim, err := c.Client.CoreV1().PersistentVolumeClaims(s.Namespace).Get(t.Context(), "data", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	volumes := filepath.Join(c.DataDir("a1"), "volumes")
	dir := filepath.Join(volumes, claim.Spec.VolumeName)
	if err := os.WriteFile(filepath.Join(dir, "row"), []byte("1"), 0o600); err != nil {
		t.Fatal(err)
	}

	c.Dev(t, "kill", "--machine", "a1")
	kept := volumes + "-kept"
	t.Cleanup(func() { _ = os.RemoveAll(kept) })
	if err := os.Rename(volumes, kept); err != nil {
		t.Fatal(err)
	}
	c.Dev(t, "start", "a1")
	c.WaitNode(t, "a1", corev1.ConditionTrue, deadline)
	s.Apply(strings.Replace(claimedVolume, "metadata: {name: first}", "metadata: {name: second}", 1))
	s.WaitEvent("second", "FailedMount", "its directory "+dir+" was made before, and is gone")
	lost := func(ctx context.Context) error {
		if r := c.BarqueResult(ctx, "cluster", "status"); !contains(r.Out, "CRITICAL",
			"the data of volume "+claim.Spec.VolumeName, "claim "+s.Namespace+"/data is not on node a1 any more") {
			return fmt.Errorf("%s%s", r.Out, r.Err)
		}
		return nil
	}
	Eventually(t, deadline, "a status that names the volume", lost)
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("the pod has an empty directory in place of its data: %v", err)
	}
	if p := s.Pod("second"); p.Status.Phase != corev1.PodPending {
		t.Errorf("the pod without its data is %s", p.Status.Phase)
	}

	if err := os.Rename(filepath.Join(kept, claim.Spec.VolumeName), dir); err != nil {
		t.Fatal(err)
	}
	s.WaitReady("second")
	Eventually(t, deadline, "a status without the volume", func(ctx context.Context) error {
		if lost(ctx) == nil {
			return fmt.Errorf("volume %s is named still", claim.Spec.VolumeName)
		}
		return nil
	})
}
