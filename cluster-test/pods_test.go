package clustertest

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// The life of a pod, as the kubelet leads it.

func TestProbes(t *testing.T) {
	s := newSpace(t)
	s.Apply(`
apiVersion: v1
kind: Pod
metadata: {name: ready}
spec:
  containers:
  - name: c
    image: busybox:1.36
    command: [sh, -c, "touch /tmp/live; sleep 3600"]
    readinessProbe: {exec: {command: [test, -e, /tmp/ready]}, periodSeconds: 1, timeoutSeconds: 15}
    livenessProbe: {exec: {command: [test, -e, /tmp/live]}, periodSeconds: 1, failureThreshold: 2, timeoutSeconds: 15}
  terminationGracePeriodSeconds: 1
---
apiVersion: v1
kind: Pod
metadata: {name: web}
spec:
  containers:
  - name: c
    image: barque.local/hello:1
    startupProbe: {tcpSocket: {port: 8080}, periodSeconds: 1}
    readinessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}
    livenessProbe: {httpGet: {path: /healthz, port: 8080}, periodSeconds: 1}
`)
	s.WaitReady("web")
	s.WaitPod("ready", 60*time.Second, "running, not ready",
		func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning && !Ready(p) })
	s.WaitEvent("ready", "Unhealthy", "Readiness probe failed")
	s.K("exec", "ready", "--", "touch", "/tmp/ready")
	s.WaitReady("ready")
	s.K("exec", "ready", "--", "rm", "/tmp/live")
	s.WaitPod("ready", deadline, "restarted by its liveness probe", func(p *corev1.Pod) bool {
		return p.Status.ContainerStatuses[0].RestartCount >= 1 && p.Status.ContainerStatuses[0].State.Running != nil
	})
	s.WaitEvent("ready", "Killing", "liveness")
}

func TestInitContainersAndHooks(t *testing.T) {
	s := newSpace(t)
	s.Apply(`
apiVersion: v1
kind: Pod
metadata: {name: order}
spec:
  volumes: [{name: work, emptyDir: {}}, {name: host, hostPath: {path: /tmp, type: Directory}}]
  initContainers:
  - {name: one, image: "busybox:1.36", command: [sh, -c, "echo one >> /work/log"], volumeMounts: [{name: work, mountPath: /work}]}
  - {name: two, image: "busybox:1.36", command: [sh, -c, "echo two >> /work/log"], volumeMounts: [{name: work, mountPath: /work}]}
  containers:
  - name: main
    image: busybox:1.36
    command: [sh, -c, "trap 'echo term >> /work/log; exit 0' TERM; echo main >> /work/log; while true; do sleep 1 & wait $!; done"]
    lifecycle:
      postStart: {exec: {command: [sh, -c, "echo started >> /work/hook"]}}
      preStop: {exec: {command: [sh, -c, "echo stopping >> /work/log"]}}
    volumeMounts: [{name: work, mountPath: /work}, {name: host, mountPath: /host}]
  - name: witness
    image: busybox:1.36
    command: [sh, -c, "trap '' TERM; while [ ! -e /work/log ] || ! grep -q term /work/log; do sleep 0.1; done; cp /work/log /host/` + s.ID + `-hooks"]
    volumeMounts: [{name: work, mountPath: /work}, {name: host, mountPath: /host}]
  terminationGracePeriodSeconds: 600
`)
	pod := s.WaitReady("order")
	// a pod is ready when its processes have begun
	Eventually(t, deadline, "the containers to run in order", func(context.Context) error {
		if got := s.K("exec", "order", "-c", "main", "--", "cat", "/work/log",
			"/work/hook"); got != "one\ntwo\nmain\nstarted\n" {
			return fmt.Errorf("they ran as %q", got)
		}
		return nil
	})
	for _, c := range pod.Status.InitContainerStatuses {
		if c.State.Terminated == nil || c.State.Terminated.Reason != "Completed" {
			t.Errorf("init container %s: %+v", c.Name, c.State)
		}
	}
	s.K("delete", "pod", "order") // it ends on request: its grace period is longer than kubectl may take
	if got := takeHostFile(t, s.ID+"-hooks"); got != "one\ntwo\nmain\nstopping\nterm\n" {
		t.Errorf("the pod ended as %q", got)
	}
}

func TestVolumesAndDownwardAPI(t *testing.T) {
	s := newSpace(t)
	s.Apply(`
apiVersion: v1
kind: Pod
metadata: {name: facts, labels: {tier: deep}, annotations: {note: hear}}
spec:
  volumes:
  - {name: memory, emptyDir: {medium: Memory}}
  - {name: about, downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}]}}
  containers:
  - name: c
    image: busybox:1.36
    command: [sleep, "3600"]
    resources: {requests: {cpu: 50m, memory: 24Mi}, limits: {cpu: 200m, memory: 48Mi}}
    env:
    - {name: NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
    - {name: SPACE, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}
    - {name: IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
    - {name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}
    - {name: LIMIT, valueFrom: {resourceFieldRef: {resource: limits.memory}}}
    volumeMounts: [{name: memory, mountPath: /memory}, {name: about, mountPath: /about}]
  terminationGracePeriodSeconds: 0
`)
	pod := s.WaitReady("facts")
	want := fmt.Sprintf("facts %s %s %s 50331648\n", s.Namespace, pod.Status.PodIP, pod.Spec.NodeName)
	if got := s.K("exec", "facts", "--", "sh", "-c", "echo $NAME $SPACE $IP $NODE $LIMIT"); got != want {
		t.Errorf("environment %q, want %q", got, want)
	}
	if got := s.K("exec", "facts", "--", "sh", "-c",
		`cat /about/labels; echo; awk '$2 == "/memory" {print $3}' /proc/mounts`); got != "tier=\"deep\"\ntmpfs\n" {
		t.Errorf("downward file and emptyDir in memory: %q", got)
	}
	s.K("label", "pod", "facts", "tier=high", "--overwrite")
	Eventually(t, 90*time.Second, "the new label in the file", func(context.Context) error {
		if got := s.K("exec", "facts", "--", "cat", "/about/labels"); !strings.Contains(got, `tier="high"`) {
			return fmt.Errorf("it is %q", got)
		}
		return nil
	})
	if pod.Status.QOSClass != corev1.PodQOSBurstable {
		t.Errorf("the QoS class is %s", pod.Status.QOSClass)
	}
	id := pod.Status.ContainerStatuses[0].ContainerID
	if got := CgroupFile(t, id, "memory", "memory.limit_in_bytes", "memory.max"); got != "50331648" {
		t.Errorf("the kernel's memory limit is %s", got)
	}
	if got := CgroupFile(t, id, "cpu", "cpu.cfs_quota_us", "cpu.max"); got != "20000" && got != "20000 100000" {
		t.Errorf("the kernel's CPU quota is %s", got)
	}
}

// A pod calls the API with the token that is projected into it, and has the rights that RBAC
// gives it.
func TestServiceAccountToken(t *testing.T) {
	s := newSpace(t)
	s.K("create", "role", "reader", "--verb=get,list", "--resource=pods")
	s.K("create", "rolebinding", "reader", "--role=reader", "--serviceaccount="+s.Namespace+":default")
	s.Apply(`
apiVersion: v1
kind: Pod
metadata: {name: caller}
spec:
  containers:
  - {name: c, image: "nginx:1.22"}
  terminationGracePeriodSeconds: 0
`)
	s.WaitReady("caller")
	mount := "/var/run/secrets/kubernetes.io/serviceaccount"
	files := strings.Fields(s.K("exec", "caller", "--", "ls", mount))
	if strings.Join(files, " ") != "ca.crt namespace token" {
		t.Errorf("the mounted files are %v", files)
	}
	if got := s.K("exec", "caller", "--", "sh", "-c",
		"cat "+mount+"/namespace; echo \" $KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT\""); got != s.Namespace+
		" 10.43.0.1:443\n" {
		t.Errorf("namespace and address of the API are %q", got)
	}
	call := func(path string) string {
		return s.K("exec", "caller", "--", "sh", "-c", `
			printf 'GET %s HTTP/1.1\r\nHost: kubernetes.default.svc\r\nConnection: close\r\nAuthorization: Bearer %s\r\n\r\n' "$0" "$(cat $1/token)" |
			timeout 120 openssl s_client -quiet -verify_quiet -verify_return_error -CAfile $1/ca.crt -verify_hostname kubernetes.default.svc \
				-connect $KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT`, path, mount)
	}
	// each server hears of the role in its own time
	Eventually(t, deadline, "the pod reads itself", func(context.Context) error {
		if answer := call(
			"/api/v1/namespaces/" + s.Namespace + "/pods/caller"); !strings.HasPrefix(answer, "HTTP/1.1 200") ||
			!regexp.MustCompile(`"name":\s*"caller"`).MatchString(answer) {
			return fmt.Errorf("it gets %s", answer)
		}
		return nil
	})
	if answer := call("/api/v1/namespaces/" + s.Namespace + "/secrets"); !strings.HasPrefix(answer, "HTTP/1.1 403") {
		t.Errorf("the pod reads secrets, which it may not, and gets %s", answer)
	}
}

func TestImageThatDoesNotExist(t *testing.T) {
	s := newSpace(t)
	s.K("run", "lost", "--image=busybox:no-such-tag")
	reasons := map[string]bool{}
	s.WaitPod("lost", 60*time.Second, "ErrImagePull, then ImagePullBackOff", func(p *corev1.Pod) bool {
		for _, c := range p.Status.ContainerStatuses {
			if c.State.Waiting != nil {
				reasons[c.State.Waiting.Reason] = true
			}
		}
		return reasons["ImagePullBackOff"]
	})
	s.WaitEvent("lost", "Failed", "ErrImagePull")
	s.WaitEvent("lost", "Failed", "busybox:no-such-tag")
	s.WaitEvent("lost", "BackOff", "Back-off pulling image")
	if out := s.K("get", "pod",
		"lost"); !regexp.MustCompile(`lost +0/1 +(ImagePullBackOff|ErrImagePull) `).MatchString(out) {
		t.Errorf("kubectl get shows\n%s", out)
	}
}

func TestCrashLoop(t *testing.T) {
	s := newSpace(t)
	s.Apply(`
apiVersion: v1
kind: Pod
metadata: {name: crash}
spec:
  containers:
  - {name: c, image: "busybox:1.36", command: [sh, -c, "echo run; exit 3"]}
`)
	pod := s.WaitPod("crash", 60*time.Second, "CrashLoopBackOff", func(p *corev1.Pod) bool {
		return len(p.Status.ContainerStatuses) == 1 && p.Status.ContainerStatuses[0].State.Waiting != nil &&
			p.Status.ContainerStatuses[0].State.Waiting.Reason == "CrashLoopBackOff"
	})
	status := pod.Status.ContainerStatuses[0]
	if last := status.LastTerminationState.Terminated; last == nil || last.ExitCode != 3 || last.Reason != "Error" ||
		status.RestartCount < 1 {
		t.Errorf("the status is %+v", status)
	}
	s.WaitEvent("crash", "BackOff", "restarting failed container")
	s.waitLog("crash", "run\n")
}

// waitLog waits until the log of a pod is the text: a container's output may come there when it
// has ended.
func (s *Space) waitLog(pod, want string) {
	s.Helper()
	Eventually(s, deadline, "the log of "+pod, func(context.Context) error {
		if log := s.K("logs", pod); log != want {
			return fmt.Errorf("it is %q", log)
		}
		return nil
	})
}

// A pod that ends stays ended, by its restart policy.
func TestRestartPolicy(t *testing.T) {
	s := newSpace(t)
	s.K("run", "done", "--image=busybox:1.36", "--restart=Never", "--", "sh", "-c", "echo bye")
	s.K("run", "failed", "--image=busybox:1.36", "--restart=Never", "--", "sh", "-c", "exit 5")
	s.K("wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/done", "--timeout=2m")
	s.K("wait", "--for=jsonpath={.status.phase}=Failed", "pod/failed", "--timeout=2m")
	s.waitLog("done", "bye\n")
	if code := s.K("get", "pod", "failed", "-o",
		"jsonpath={.status.containerStatuses[0].state.terminated.exitCode}"); code != "5" {
		t.Errorf("the exit code is %s", code)
	}
}

// A container that exceeds its memory is killed, and said to be.
func TestOutOfMemory(t *testing.T) {
	s := newSpace(t)
	s.Apply(`
apiVersion: v1
kind: Pod
metadata: {name: hungry}
spec:
  restartPolicy: Never
  containers:
  - name: c
    image: busybox:1.36
    command: [sh, -c, "tail /dev/zero"]
    resources: {limits: {memory: 16Mi}}
`)
	pod := s.WaitPod("hungry", 60*time.Second, "failed",
		func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodFailed })
	if end := pod.Status.ContainerStatuses[0].State.Terminated; end == nil || end.Reason != "OOMKilled" {
		t.Errorf("it ended as %+v", end)
	}
}

// A pod that fits nowhere says why.
func TestUnschedulable(t *testing.T) {
	s := newSpace(t)
	s.Apply(`
apiVersion: v1
kind: Pod
metadata: {name: huge}
spec:
  containers:
  - {name: c, image: "barque.local/hello:1", resources: {requests: {cpu: "900"}}}
`)
	s.WaitEvent("huge", "FailedScheduling", "0/3 nodes are available: 3 Insufficient cpu")
	if out := s.K("get", "pod", "huge"); !strings.Contains(out, "Pending") {
		t.Errorf("kubectl get shows\n%s", out)
	}
}

// A taint that a person puts on a node says not since when it is there. A pod that tolerates it for
// some seconds leaves after them, and one that does not tolerate it at once.
func TestTaintOfAPerson(t *testing.T) {
	s := newSpace(t)
	const seconds = 3
	s.Apply(fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: patient}
spec:
  terminationGracePeriodSeconds: 0
  tolerations: [{key: repair, operator: Exists, effect: NoExecute, tolerationSeconds: %d}]
  containers: [{name: c, image: "barque.local/hello:1"}]
`, seconds))
	node := s.WaitReady("patient").Spec.NodeName
	s.Apply(fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: hasty}
spec:
  nodeName: %s
  terminationGracePeriodSeconds: 0
  containers: [{name: c, image: "barque.local/hello:1"}]
`, node))
	s.WaitReady("hasty")
	began := time.Now()
	defer s.K("taint", "nodes", node, "repair-")
	s.K("taint", "nodes", node, "repair=disk:NoExecute")
	s.K("wait", "--for=delete", "pod/hasty", "--timeout=2m")
	s.K("wait", "--for=delete", "pod/patient", "--timeout=2m")
	if took := time.Since(began); took < seconds*time.Second {
		t.Errorf("it stayed %v, and tolerates %d seconds", took, seconds)
	}
	if taints := s.K("get", "node", node, "-o", "jsonpath={.spec.taints}"); strings.Contains(taints, "timeAdded") {
		t.Errorf("what was put on was changed: %s", taints)
	}
}
