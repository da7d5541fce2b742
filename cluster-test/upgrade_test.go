package clustertest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/internal/needs"
)

// earlierVariable names the barque of an earlier version. `make upgrades` builds it.
const earlierVariable = "BARQUE_EARLIER"

// A cluster of an earlier version is upgraded node by node, and taken back node by node, while it
// is used: no write is refused twice, no watch loses an event, no pod fails, no container is
// restarted, no session loses bytes in silence.
func TestUpgradeAndBack(t *testing.T) {
	needs.AllTests(t)
	earlier := os.Getenv(earlierVariable)
	if earlier == "" {
		needs.Missing(t, "the barque of an earlier version ("+earlierVariable+"; make upgrades)",
			"an upgrade and the way back")
	}
	present, err := Binary()
	if err != nil {
		t.Fatal(err)
	}
	images, err := testRegistry()
	if err != nil {
		t.Fatal(err)
	}
	s := NewSpace(t, Start(t, Options{Agents: 1, Registry: images, Binary: earlier}))
	processes, err := s.Servers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	s.Apply(staying(hello("hello", 3, "nowhere")))
	s.Apply(upgradeWorkloads)
	for _, owner := range []string{"deployment/hello", "deployment/scaled", "statefulset/counter"} {
		s.K("rollout", "status", owner, "--timeout=3m")
	}
	const staying = "app in (hello, scaled, counter)"
	before := s.containers(staying)

	r := &rolling{Space: s, servers: processes}
	finish := r.begin()
	w := newUpgradeWork(r)
	w.begin()
	s.Upgrade(present)
	servers, agents := upgradeOrder(s)
	for _, node := range append(servers, agents...) {
		t.Logf("upgrade of %s", node)
		if released(t, earlier) {
			r.restart(node)
		} else { // docs/upgrading.md, "What has changed"
			w.cordoned(node, func() { w.withoutWork(func() { r.restart(node) }) })
		}
		w.setEarlier(node, false)
	}
	r.ports.forget() // how the earlier version stops is no promise of the present one
	s.Upgrade(earlier)
	servers, agents = upgradeOrder(s)
	for _, node := range append(agents, servers...) {
		t.Logf("way back of %s", node)
		w.setEarlier(node, true)
		if released(t, earlier) {
			r.restart(node)
		} else { // docs/upgrading.md, "The way back"
			w.withoutWork(func() { r.restart(node) })
		}
	}
	w.finish()
	finish()
	if after := s.containers(staying); after != before {
		t.Errorf("the containers before:\n%safter:\n%s", before, after)
	}
	w.check()
}

// released reports whether a program has a semantic version. Those of before have none.
func released(t testing.TB, binary string) bool {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), binary, "version").CombinedOutput()
	if err != nil {
		t.Fatalf("%s version: %v\n%s", binary, err, out)
	}
	return strings.HasPrefix(string(out), "barque v")
}

// upgradeOrder returns the servers in the order of docs/upgrading.md, the leader last, and the
// agents. They follow the servers in an upgrade, and go before them on the way back.
func upgradeOrder(s *Space) (servers, agents []string) {
	s.Helper()
	status, err := s.Status(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	for _, n := range s.Nodes() {
		switch {
		case strings.HasPrefix(n, "a"):
			agents = append(agents, n)
		case n != status.Leader:
			servers = append(servers, n)
		}
	}
	return append(servers, status.Leader), agents
}

// upgradeWorkloads are the workloads beside the Deployment that TestRollingRestart has.
const upgradeWorkloads = `
apiVersion: v1
kind: Service
metadata: {name: hello}
spec: {type: NodePort, selector: {app: hello}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: counter}
spec:
  serviceName: counter
  replicas: 4
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: counter}}
  template:
    metadata: {labels: {app: counter}}
    spec:
      terminationGracePeriodSeconds: 0
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {app: counter}}}
      containers:
      - name: c
        image: busybox:1.36
        command: [sh, -c, "i=0; while :; do echo $i | tee -a /data/log; i=$((i+1)); sleep 0.5; done"]
        # A busy machine takes its time for a command. One that fails restarts the container at once.
        readinessProbe: {exec: {command: [test, -s, /data/log]}, periodSeconds: 5, timeoutSeconds: 60, failureThreshold: 1}
        livenessProbe: {exec: {command: [test, -s, /data/log]}, periodSeconds: 5, timeoutSeconds: 60, failureThreshold: 1, initialDelaySeconds: 10}
        volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 10Mi}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: scaled}
spec:
  replicas: 2
  selector: {matchLabels: {app: scaled}}
  template:
    metadata: {labels: {app: scaled}}
    spec:
      containers: [{name: hello, image: "barque.local/hello:1", resources: {requests: {cpu: 100m}}}]
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: scaled}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: scaled}
  minReplicas: 2
  maxReplicas: 4
  metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 90}}}]
---
apiVersion: batch/v1
kind: CronJob
metadata: {name: minutely}
spec:
  schedule: "* * * * *"
  successfulJobsHistoryLimit: 100
  jobTemplate:
    spec:
      backoffLimit: 0
      template:
        metadata: {labels: {app: work}}
        spec:
          restartPolicy: Never
          containers: [{name: work, image: "barque.local/hello:1", args: [work, 5s]}]
`

// upgradeWork is the work that begins and ends during an upgrade, and the sessions with pods.
type upgradeWork struct {
	*rolling
	stop    context.CancelFunc // of everything
	suspend context.CancelFunc // of new work
	running sync.WaitGroup
	jobs    atomic.Int64
	gate    sync.RWMutex // held for reading by each Job

	sessions, broken, followed atomic.Int64
	cut                        atomic.Int64 // sessions that the earlier version cut short with success

	earlier map[string]bool // nodes that may run the earlier version; guarded by mu of rolling
}

func newUpgradeWork(r *rolling) *upgradeWork {
	w := &upgradeWork{rolling: r, earlier: map[string]bool{}}
	for _, node := range r.Nodes() {
		w.earlier[node] = true
	}
	return w
}

func (w *upgradeWork) setEarlier(node string, is bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.earlier[node] = is
}

// anyEarlier reports whether one of the nodes may run the earlier version.
func (w *upgradeWork) anyEarlier(nodes ...string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.ContainsFunc(nodes, func(node string) bool { return w.earlier[node] })
}

// withoutWork calls f while no Job has a pod.
func (w *upgradeWork) withoutWork(f func()) {
	w.Helper()
	w.gate.Lock()
	defer w.gate.Unlock()
	w.suspendCronJob(true)
	w.awaitJobs(0)
	f()
	w.suspendCronJob(false)
}

// cordoned calls f while the node gets no pods, and once its kubelet has acknowledged those that it
// has.
func (w *upgradeWork) cordoned(node string, f func()) {
	w.Helper()
	w.K("cordon", node)
	Eventually(w, deadline, "the kubelet acknowledges its pods", func(ctx context.Context) error {
		list, err := w.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx,
			metav1.ListOptions{FieldSelector: "spec.nodeName=" + node})
		if err != nil {
			return err
		}
		for _, pod := range list.Items {
			if pod.Status.StartTime == nil {
				return fmt.Errorf("pod %s is new to it", pod.Name)
			}
		}
		return nil
	})
	f()
	w.K("uncordon", node)
}

func (w *upgradeWork) suspendCronJob(suspend bool) {
	w.Helper()
	w.K("patch", "cronjob", "minutely", "--patch", fmt.Sprintf(`{"spec":{"suspend":%t}}`, suspend))
}

// awaitJobs waits until no Job runs. The CronJob must have made some.
func (w *upgradeWork) awaitJobs(ofCronJob int) {
	w.Helper()
	Eventually(w, deadline, "the Jobs end", func(ctx context.Context) error {
		list, err := w.Client.BatchV1().Jobs(w.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		minutely := 0
		for _, job := range list.Items {
			if job.Status.Failed == 0 && job.Status.Succeeded == 0 {
				return fmt.Errorf("job %s runs", job.Name)
			}
			if strings.HasPrefix(job.Name, "minutely-") {
				minutely++
			}
		}
		if minutely < ofCronJob {
			return fmt.Errorf("the CronJob has made %d Jobs", minutely)
		}
		return nil
	})
}

// begin starts the loops of work and sessions.
func (w *upgradeWork) begin() {
	ctx, stop := context.WithCancel(w.Context())
	admitted, suspend := context.WithCancel(ctx)
	w.Cleanup(stop)
	w.stop, w.suspend = stop, suspend
	for i := range 4 {
		w.running.Go(func() { w.work(ctx, admitted, i) })
	}
	nodes := map[string]string{}
	for _, pod := range w.Pods("app=counter") {
		nodes[pod.Name] = pod.Spec.NodeName
	}
	for i := range 4 {
		pod := fmt.Sprintf("counter-%d", i)
		w.running.Go(func() { w.sessionsWith(admitted, i, pod, nodes[pod]) })
		w.running.Go(func() { w.followLogs(ctx, admitted, i, fmt.Sprintf("counter-%d", i)) })
	}
}

// finish lets work end that has begun, and waits for it.
func (w *upgradeWork) finish() {
	w.suspend()
	w.running.Wait()
	w.stop()
}

// work runs one Job after the other.
func (w *upgradeWork) work(ctx, admitted context.Context, i int) {
	m := w.failoverClient(i)
	for n := 0; admitted.Err() == nil; n++ {
		w.gate.RLock()
		w.job(ctx, m, fmt.Sprintf("job-%d-%d", i, n))
		w.gate.RUnlock()
	}
}

// job runs a Job to its end. Its only pod may neither fail nor be made twice.
func (w *upgradeWork) job(ctx context.Context, m *FailoverClient, name string) {
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: batchv1.JobSpec{BackoffLimit: ptr.To[int32](0), Template: corev1.PodTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "work"}},
			Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{
				Name: "work", Image: "barque.local/hello:1", Args: []string{"work", "3s"}}}}}}}
	w.twice(ctx, "create "+name, func() error {
		return m.Kube(ctx, func(ctx context.Context, c kubernetes.Interface) error {
			_, err := c.BatchV1().Jobs(w.Namespace).Create(ctx, job, metav1.CreateOptions{})
			return exceptExists(err)
		})
	})
	err := Poll(ctx, 3*await.Hang, func(ctx context.Context) error {
		return m.Kube(ctx, func(ctx context.Context, c kubernetes.Interface) error {
			have, err := c.BatchV1().Jobs(w.Namespace).Get(ctx, name, metav1.GetOptions{})
			if err == nil && have.Status.CompletionTime == nil && have.Status.Failed == 0 {
				err = fmt.Errorf("its status is %+v", have.Status)
			}
			if err == nil && have.Status.Failed > 0 {
				w.fail("job %s has failed: %+v", name, have.Status)
			}
			return err
		})
	})
	if err != nil && ctx.Err() == nil {
		w.fail("job %s does not end: %v", name, err)
	}
	w.jobs.Add(1)
}

// sessionLines is the length of one exec session's output; the command takes some seconds for it.
const sessionLines = 20

// sessionsWith makes one exec session after the other. A session ends whole, or with an error.
func (w *upgradeWork) sessionsWith(ctx context.Context, i int, pod, node string) {
	for at := i; ctx.Err() == nil; at++ {
		var out strings.Builder
		server := w.servers[at%len(w.servers)]
		earlier := w.anyEarlier(server.Name, node)
		err := w.exec(server, pod, &out,
			"sh", "-c", fmt.Sprintf("i=0; while [ $i -lt %d ]; do echo $i; i=$((i+1)); sleep 0.2; done", sessionLines))
		earlier = earlier || w.anyEarlier(server.Name, node)
		if err != nil { // the session's server or node has stopped
			w.broken.Add(1)
			breathe(ctx)
			continue
		}
		w.sessions.Add(1)
		switch lines := strings.Fields(out.String()); {
		case len(lines) == sessionLines:
		case earlier: // a session through a server or a node that stops was no error to it
			w.cut.Add(1)
		default:
			w.fail("an exec session with %s succeeded with %d of %d lines", pod, len(lines), sessionLines)
		}
	}
}

func (w *upgradeWork) exec(by Process, pod string, out io.Writer, command ...string) error {
	config, err := clientcmd.BuildConfigFromFlags("https://"+by.Address+":"+apiPort, w.Kubeconfig())
	if err != nil {
		return err
	}
	client, err := rest.RESTClientFor(setCoreDefaults(config))
	if err != nil {
		return err
	}
	url := client.Post().Namespace(w.Namespace).Resource("pods").Name(pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Command: command, Stdout: true}, scheme.ParameterCodec).URL()
	executor, err := remotecommand.NewWebSocketExecutor(config, "GET", url.String())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(w.Context(), await.Hang)
	defer cancel()
	return executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: out})
}

func setCoreDefaults(config *rest.Config) *rest.Config {
	config.APIPath, config.GroupVersion = "/api", &corev1.SchemeGroupVersion
	config.NegotiatedSerializer = scheme.Codecs.WithoutConversion()
	return config
}

// followLogs follows a counter's log, and goes on where it was when a session ends. Each number
// must come once, in order.
func (w *upgradeWork) followLogs(ctx, admitted context.Context, i int, pod string) {
	next, since := 0, (*metav1.Time)(nil)
	m := w.failoverClient(i)
	for admitted.Err() == nil {
		stream, err := m.Client().CoreV1().Pods(w.Namespace).GetLogs(pod,
			&corev1.PodLogOptions{Follow: true, Timestamps: true, SinceTime: since}).Stream(admitted)
		if err != nil {
			m.Move()
			breathe(admitted)
			continue
		}
		for lines := bufio.NewScanner(stream); lines.Scan(); {
			stamp, text, _ := strings.Cut(lines.Text(), " ")
			at, err := time.Parse(time.RFC3339Nano, stamp)
			number, wrong := strconv.Atoi(text)
			if err := errors.Join(err, wrong); err != nil {
				w.fail("the log of %s has the line %q: %v", pod, lines.Text(), err)
				continue
			}
			switch {
			case number == next:
				next++
				w.followed.Add(1)
			case number > next:
				w.fail("the log of %s goes on at %d after %d", pod, number, next-1)
				next = number + 1
			}
			since = &metav1.Time{Time: at}
		}
		stream.Close()
		m.Move()
	}
}

// check judges the outcome of the work and of the pods that have stayed.
func (w *upgradeWork) check() {
	w.Helper()
	w.Logf(
		"%d jobs, %d exec sessions, %d of them cut short by the earlier version, %d more broken off with an error, %d lines of logs followed",
		w.jobs.Load(), w.sessions.Load(), w.cut.Load(), w.broken.Load(), w.followed.Load())
	if w.jobs.Load() < 8 || w.sessions.Load() < 8 || w.followed.Load() < 100 {
		w.Error("there was too little work for a judgement")
	}
	w.suspendCronJob(true)
	w.awaitJobs(1)
	for _, pod := range w.Pods("app=work") {
		if pod.Status.Phase != corev1.PodSucceeded {
			w.Errorf("pod %s of a Job is %s on %s: %+v", pod.Name, pod.Status.Phase, pod.Spec.NodeName,
				pod.Status.ContainerStatuses)
		}
	}
	for i := range 4 {
		pod := fmt.Sprintf("counter-%d", i)
		for source, text := range map[string]string{"log": w.K("logs", pod),
			"volume": w.K("exec", pod, "--", "cat", "/data/log")} {
			for n, line := range strings.Fields(text) {
				if line != strconv.Itoa(n) {
					w.Errorf("the %s of %s has %s in line %d", source, pod, line, n)
					break
				}
			}
		}
	}
	Eventually(w, deadline, "the autoscaler reads metrics", func(ctx context.Context) error {
		scaler, err := w.Client.AutoscalingV2().HorizontalPodAutoscalers(w.Namespace).Get(ctx, "scaled",
			metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, c := range scaler.Status.Conditions {
			if string(c.Type) == "ScalingActive" && c.Status == corev1.ConditionTrue &&
				scaler.Status.CurrentReplicas == 2 {
				return nil
			}
		}
		return fmt.Errorf("its status is %+v", scaler.Status)
	})
}
