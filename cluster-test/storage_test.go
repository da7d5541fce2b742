package clustertest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// Pods of a StatefulSet get volumes of the default class, and find their data again; with the
// claims the directories go.
func TestPersistentVolumes(t *testing.T) {
	s := newSpace(t)
	s.Apply(`
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: db}
spec:
  serviceName: db
  replicas: 2
  selector: {matchLabels: {app: db}}
  template:
    metadata: {labels: {app: db}}
    spec:
      terminationGracePeriodSeconds: 0
      securityContext: {runAsUser: 1000, fsGroup: 2000}
      containers:
      - name: c
        image: busybox:1.36
        command: [sh, -c, "echo started >> /data/log; sleep 3600"]
        volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 10Mi}}}
`)
	s.K("rollout", "status", "statefulset/db", "--timeout=90s")
	pod := s.WaitReady("db-0")
	if got := s.K("exec", "db-0", "--", "stat", "-c", "%g", "/data/log"); strings.TrimSpace(got) != "2000" {
		t.Errorf("the file's group is %s, want the pod's fsGroup", got)
	}
	path := s.K("get", "pv", strings.TrimSpace(s.K("get", "pvc", "data-db-0", "-o", "jsonpath={.spec.volumeName}")),
		"-o", "jsonpath={.spec.local.path}")
	if _, err := os.Stat(filepath.Join(path, "log")); err != nil {
		t.Errorf("the volume on the node: %v", err)
	}

	s.K("delete", "pod", "db-0")
	again := s.WaitPod("db-0", deadline, "started again",
		func(p *corev1.Pod) bool { return p.UID != pod.UID && Ready(p) })
	if again.Spec.NodeName != pod.Spec.NodeName {
		t.Errorf("it runs on %s, its data is on %s", again.Spec.NodeName, pod.Spec.NodeName)
	}
	Eventually(t, deadline, "the second start in the log", func(context.Context) error {
		if got := s.K("exec", "db-0", "--", "cat", "/data/log"); got != "started\nstarted\n" {
			return fmt.Errorf("it says %q", got)
		}
		return nil
	})

	s.K("delete", "statefulset", "db")
	s.K("delete", "pvc", "--all")
	Eventually(t, deadline, "the directory to go", func(context.Context) error {
		if _, err := os.Stat(path); err == nil {
			return fmt.Errorf("%s is there", path)
		}
		return nil
	})
}
