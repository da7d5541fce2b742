package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	clustertest "github.com/barque/barque/cluster-test"
)

const (
	// starvedTimeout bounds one write: a starved server that answers late has answered.
	starvedTimeout = time.Minute
	// starvedFor bounds the whole: on two cores, 48 busy processes leave the pods a small share.
	starvedFor = 15 * time.Minute
)

// measureStarved starts pods at once on three servers, beside busy processes on the same machine,
// and writes all the time. It measures the longest time between two acknowledged writes, and how
// many terms the store has begun: each failed election begins one, too.
func measureStarved(ctx context.Context, pods, busy int) (_ []result, err error) {
	c, _, err := upRepeatedly(ctx, 3, 1)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Down()) }()
	servers, err := c.Servers(ctx)
	if err != nil {
		return nil, err
	}
	writer, err := c.NewFailoverClient(servers, 0, starvedTimeout)
	if err != nil {
		return nil, err
	}
	defer writer.Close()
	maker, err := c.NewFailoverClient(servers, 1, starvedTimeout)
	if err != nil {
		return nil, err
	}
	defer maker.Close()
	if _, err := c.Client.CoreV1().ConfigMaps("default").Create(ctx,
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "starved"}}, metav1.CreateOptions{}); err != nil {
		return nil, err
	}
	before, err := c.Status(ctx)
	if err != nil {
		return nil, err
	}
	watcher, err := c.Watcher()
	if err != nil {
		return nil, err
	}
	events, err := watcher.CoreV1().Pods("default").Watch(ctx, metav1.ListOptions{LabelSelector: benchLabel})
	if err != nil {
		return nil, err
	}
	defer events.Stop()

	within, stop := context.WithTimeout(ctx, starvedFor)
	var load sync.WaitGroup
	defer load.Wait()
	defer stop()
	for range busy {
		if err := spin(within, &load); err != nil {
			return nil, err
		}
	}
	gap := make(chan time.Duration, 1)
	writing, written := context.WithCancel(within)
	defer written()
	go func() { gap <- longestGap(writing, writer) }() // ends with writing
	began := time.Now()
	for i := range pods {
		if err := makePod(within, maker, i); err != nil {
			return nil, err
		}
	}
	ready := map[string]bool{}
	err = follow(within, events, func(e watch.Event) bool {
		if pod, ok := e.Object.(*corev1.Pod); ok && isReady(pod) && !ready[pod.Name] {
			if ready[pod.Name] = true; len(ready)%10 == 0 {
				progress("%d pods are Ready after %v, %s", len(ready), time.Since(began).Round(time.Second), machine())
			}
		}
		return len(ready) == pods
	})
	took := time.Since(began)
	written()
	longest := <-gap
	stop()
	load.Wait()
	if err != nil {
		return nil, fmt.Errorf("%d of %d pods are Ready: %w", len(ready), pods, err)
	}
	after, err := c.Status(ctx)
	if err != nil {
		return nil, err
	}
	progress("leader %s in term %d before, %s in term %d after", before.Leader, before.Term, after.Leader, after.Term)
	what := fmt.Sprintf(", %d pods at once beside %d busy processes", pods, busy)
	return []result{
		seconds("all Ready"+what, []time.Duration{took}),
		seconds("longest time without a write"+what, []time.Duration{longest}),
		{what: "terms begun" + what, unit: "terms", values: []float64{float64(after.Term - before.Term)}},
	}, nil
}

// spinVariable makes a process of this command a busy one.
const spinVariable = "BARQUE_BENCH_SPIN"

// spinIfAsked keeps such a process busy, no longer than a measurement may take, and ends it.
func spinIfAsked() {
	if os.Getenv(spinVariable) == "" {
		return
	}
	for end := time.Now().Add(starvedFor); time.Now().Before(end); {
	}
	os.Exit(0)
}

// spin starts a busy process, which ends with ctx, and with this one.
func spin(ctx context.Context, running *sync.WaitGroup) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), spinVariable+"=1", "GOMAXPROCS=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return err
	}
	running.Go(func() { _ = cmd.Wait() }) // it is killed
	return nil
}

// longestGap writes all the time until ctx ends, and returns the longest time between two
// acknowledgements.
func longestGap(ctx context.Context, writer *clustertest.FailoverClient) (longest time.Duration) {
	last := time.Now()
	for ctx.Err() == nil {
		err := writer.Kube(ctx, func(ctx context.Context, c kubernetes.Interface) error {
			_, err := c.CoreV1().ConfigMaps("default").Patch(ctx, "starved", types.MergePatchType,
				fmt.Appendf(nil, `{"data":{"now":"%d"}}`, time.Now().UnixNano()), metav1.PatchOptions{})
			return err
		})
		if ctx.Err() == nil || err == nil {
			longest = max(longest, time.Since(last))
		}
		if err == nil {
			last = time.Now()
		}
		pause(ctx)
	}
	return longest
}

func makePod(ctx context.Context, m *clustertest.FailoverClient, i int) error {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("bench-%d", i), Labels: map[string]string{"bench": "pods"}},
		Spec: corev1.PodSpec{TerminationGracePeriodSeconds: new(int64),
			Containers: []corev1.Container{{Name: "hello", Image: "barque.local/hello:1"}}},
	}
	_, err := m.Client().CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{})
	return err
}

func isReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}
