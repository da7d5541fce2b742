package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	clustertest "github.com/barque/barque/cluster-test"
	"github.com/barque/barque/internal/procstat"
)

const (
	starts   = 5
	pods     = 10
	manyPods = 30
	many     = 3
	// settle is how long a cluster is left alone before its memory is looked at.
	settle = 15 * time.Second
)

// upRepeatedly makes clusters of so many servers, removes all but the last, and returns how long
// each took until all its nodes were Ready.
func upRepeatedly(ctx context.Context, servers, times int) (*clustertest.Cluster, []time.Duration, error) {
	var took []time.Duration
	for {
		progress("cluster of %d, start %d of %d", servers, len(took)+1, times)
		began := time.Now()
		c, err := clustertest.Up(ctx, clustertest.Options{Servers: servers})
		took = append(took, time.Since(began))
		if err != nil {
			if c != nil {
				err = errors.Join(err, c.Down())
			}
			return nil, nil, err
		}
		if len(took) == times {
			return c, took, nil
		}
		if err := c.Down(); err != nil {
			return nil, nil, err
		}
	}
}

func measureOne(ctx context.Context) (_ []result, err error) {
	c, took, err := upRepeatedly(ctx, 1, starts)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Down()) }()
	results := []result{seconds("dev up until ready, 1 server", took)}
	one, err := podsUntilRunning(ctx, c, 1, pods)
	if err != nil {
		return nil, err
	}
	return append(results, seconds("create until Running, 1 pod, 1 server", one)), nil
}

func measureThree(ctx context.Context) (_ []result, err error) {
	c, took, err := upRepeatedly(ctx, 3, starts)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.Down()) }()
	results := []result{seconds("dev up until ready, 3 servers", took)}
	memory, err := memoryOf(ctx, c)
	if err != nil {
		return nil, err
	}
	results = append(results, memory...)
	one, err := podsUntilRunning(ctx, c, 1, pods)
	if err != nil {
		return nil, err
	}
	all, err := podsUntilRunning(ctx, c, manyPods, many)
	if err != nil {
		return nil, err
	}
	return append(results, seconds("create until Running, 1 pod, 3 servers", one),
		seconds(fmt.Sprintf("create until Running, %d pods, 3 servers", manyPods), all)), nil
}

// podsUntilRunning creates n pods at once and takes the time until the last of them is Running.
func podsUntilRunning(ctx context.Context, c *clustertest.Cluster, n, times int) ([]time.Duration, error) {
	var took []time.Duration
	for i := range times {
		progress("%d pods, round %d of %d", n, i+1, times)
		d, err := runPods(ctx, c, n)
		if err != nil {
			return nil, err
		}
		took = append(took, d)
	}
	return took, nil
}

const benchLabel = "bench=pods"

func runPods(ctx context.Context, c *clustertest.Cluster, n int) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	client := c.Client.CoreV1().Pods("default")
	events, err := client.Watch(ctx, metav1.ListOptions{LabelSelector: benchLabel})
	if err != nil {
		return 0, err
	}
	defer events.Stop()
	began := time.Now()
	created := make(chan error, 1)
	go func() {
		var err error
		for i := range n {
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("bench-%d", i),
					Labels: map[string]string{"bench": "pods"}},
				Spec: corev1.PodSpec{TerminationGracePeriodSeconds: new(int64),
					Containers: []corev1.Container{{Name: "hello", Image: "barque.local/hello:1"}}},
			}
			_, e := client.Create(ctx, pod, metav1.CreateOptions{})
			err = errors.Join(err, e)
		}
		created <- err
	}()
	running := map[string]bool{}
	err = follow(ctx, events, func(e watch.Event) bool {
		if pod, ok := e.Object.(*corev1.Pod); ok && pod.Status.Phase == corev1.PodRunning {
			running[pod.Name] = true
		}
		return len(running) == n
	})
	took := time.Since(began)
	if err := errors.Join(err, <-created); err != nil {
		return 0, fmt.Errorf("%d of %d pods run: %w", len(running), n, err)
	}
	if err := client.DeleteCollection(ctx, metav1.DeleteOptions{},
		metav1.ListOptions{LabelSelector: benchLabel}); err != nil {
		return 0, err
	}
	return took, follow(ctx, events, func(e watch.Event) bool {
		if pod, ok := e.Object.(*corev1.Pod); ok && e.Type == watch.Deleted {
			delete(running, pod.Name)
		}
		return len(running) == 0
	})
}

// follow hands over events until done says so.
func follow(ctx context.Context, events watch.Interface, done func(watch.Event) bool) error {
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case e, ok := <-events.ResultChan():
			if !ok {
				return errors.New("the watch ended")
			}
			if done(e) {
				return nil
			}
		}
	}
}

// memoryOf returns the resident memory of the servers' processes and of their containerds.
func memoryOf(ctx context.Context, c *clustertest.Cluster) ([]result, error) {
	progress("memory of an idle cluster, after %v", settle)
	select {
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-time.After(settle):
	}
	r := c.DevResult(ctx, "status", "-o", "json")
	if r.Error != nil {
		return nil, r.Error
	}
	var status struct{ Nodes []struct{ PID int } }
	if err := json.Unmarshal([]byte(r.Out), &status); err != nil {
		return nil, err
	}
	server, runtime := result{what: "memory (RSS) of an idle server", unit: "MiB"},
		result{what: "memory (RSS) of its containerd", unit: "MiB"}
	for _, n := range status.Nodes {
		size, err := residentMiB(n.PID)
		if err != nil {
			return nil, err
		}
		server.values = append(server.values, size)
		child, err := containerdOf(n.PID)
		if err != nil {
			return nil, err
		}
		if size, err = residentMiB(child); err != nil {
			return nil, err
		}
		runtime.values = append(runtime.values, size)
	}
	return []result{server, runtime}, nil
}

func residentMiB(pid int) (float64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	var kib float64
	for lines := bufio.NewScanner(bytes.NewReader(data)); lines.Scan(); {
		if value, ok := strings.CutPrefix(lines.Text(), "VmRSS:"); ok {
			if _, err := fmt.Sscanf(value, "%f", &kib); err != nil {
				return 0, err
			}
			return kib / 1024, nil
		}
	}
	return 0, fmt.Errorf("process %d has no VmRSS", pid)
}

// containerdOf finds the child that runs as containerd.
func containerdOf(pid int) (int, error) {
	var all []string
	// A child belongs to the thread that started it.
	tasks, err := os.ReadDir(fmt.Sprintf("/proc/%d/task", pid))
	if err != nil {
		return 0, err
	}
	for _, task := range tasks {
		if more, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%s/children", pid, task.Name())); err == nil {
			all = append(all, strings.Fields(string(more))...)
		}
	}
	for _, text := range all {
		child, err := strconv.Atoi(text)
		if err != nil {
			return 0, err
		}
		if args, err := procstat.Args(child); err == nil && len(args) > 1 && args[1] == "containerd" {
			return child, nil
		}
	}
	return 0, fmt.Errorf("process %d has no containerd as its child", pid)
}
