package kubelet_test

import (
	"context"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/kubelet/cri"
	"github.com/barque/barque/kubelet/shutdown"
)

// login is a logind that a test controls.
type login struct {
	mu        sync.Mutex
	preparing bool
	hints     chan struct{}
	lock      *os.File // the end of the last lock that is not the node's
}

func (l *login) connect(context.Context) (shutdown.Logind, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hints = make(chan struct{}, 1)
	return l, nil
}

func (l *login) Preparing(context.Context) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.preparing, nil
}

func (l *login) Inhibit(context.Context) (*os.File, error) {
	r, w, err := os.Pipe()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lock = r
	return w, err
}

func (l *login) LongestDelay(context.Context) (time.Duration, error)  { return time.Hour, nil }
func (l *login) SetLongestDelay(context.Context, time.Duration) error { return nil }
func (l *login) Close() error                                         { return nil }
func (l *login) Hints() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.hints
}

func (l *login) prepare() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.preparing = true
	l.hints <- struct{}{}
}

// TestShutdown: when the machine goes down, the node ends its pods by priority, admits no more of
// them and only then lets the machine go. After the next start it is ready again.
func TestShutdown(t *testing.T) {
	if !inNamespaces(t) {
		return
	}
	f := newFixture(t)
	l := &login{}
	f.logind = l.connect
	f.settings.ShutdownGracePeriod, f.settings.ShutdownGracePeriodCriticalPods = metav1.Duration{
		Duration: 4 * time.Minute}, metav1.Duration{Duration: 2 * time.Minute}
	stop := f.start()
	f.create(hello("app"))
	driver := hello("driver")
	driver.Spec.Priority = new(int32(2000001000))
	f.create(driver)
	f.eventually("app", "ready", ready)
	f.eventually("driver", "ready", ready)
	l.mu.Lock()
	lock := l.lock
	l.mu.Unlock()
	defer lock.Close()
	released := make(chan struct{})
	go func() { _, _ = lock.Read(make([]byte, 1)); close(released) }() // it ends with the lock

	l.prepare()
	await.Value(t, "the lock is given back", released)
	f.nothingRuns()
	over := map[string]time.Time{}
	for _, name := range []string{"app", "driver"} {
		pod := f.eventually(name, "told to have ended", func(p *v1.Pod) bool { return p.Status.Phase == v1.PodFailed })
		if pod.Status.Reason != "Terminated" ||
			pod.Status.Message != "Pod was terminated in response to imminent node shutdown." {
			t.Errorf("%s: %s: %s", name, pod.Status.Reason, pod.Status.Message)
		}
		for _, c := range pod.Status.Conditions {
			if c.Type == v1.DisruptionTarget && c.Status == v1.ConditionTrue && c.Reason == "TerminationByKubelet" {
				over[name] = pod.Status.ContainerStatuses[0].State.Terminated.FinishedAt.Time
			}
		}
	}
	if len(over) != 2 || over["driver"].Before(over["app"]) {
		t.Errorf("the pods ended at %v", over)
	}
	f.create(hello("late"))
	pod := f.eventually("late", "refused", func(p *v1.Pod) bool { return p.Status.Phase == v1.PodFailed })
	if pod.Status.Reason != "NodeShutdown" {
		t.Errorf("a new pod: %s: %s", pod.Status.Reason, pod.Status.Message)
	}
	await.True(t, "the node says why it is not ready",
		func() bool { return f.nodeReady() == "False KubeletNotReady node is shutting down" })
	stop()
	l.preparing = false
	f.start()
	await.True(t, "the node is ready again", func() bool { return strings.HasPrefix(f.nodeReady(), "True") })
}

// nothingRuns requires that no container runs by now.
func (f *fixture) nothingRuns() {
	f.t.Helper()
	runtime, err := cri.Dial(f.socket)
	if err != nil {
		f.t.Fatal(err)
	}
	defer runtime.Close()
	containers, err := runtime.ListContainers(f.t.Context(), nil)
	if err != nil {
		f.t.Fatal(err)
	}
	for _, c := range containers {
		if c.State == runtimeapi.ContainerState_CONTAINER_RUNNING {
			f.t.Errorf("%s of the pod %s still runs", c.GetMetadata().GetName(), c.Labels[cri.LabelPodName])
		}
	}
}

func (f *fixture) nodeReady() string {
	node, err := f.api.CoreV1().Nodes().Get(context.Background(), nodeName, metav1.GetOptions{})
	if err != nil {
		return err.Error()
	}
	for _, c := range node.Status.Conditions {
		if c.Type == v1.NodeReady {
			return string(c.Status) + " " + c.Reason + " " + c.Message
		}
	}
	return ""
}
