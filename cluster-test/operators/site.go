package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	clustertest "github.com/barque/barque/cluster-test"
	"github.com/barque/barque/cluster-test/operators/workshop"
)

// site is the cluster as a scenario sees it.
type site struct {
	*clustertest.Cluster
	program  program
	workshop *workshop.Workshop
	dir      string // of the program's module
	scratch  string // a directory for files of the scenario
	noted    string // a note of begin
	// ended waits for the work of begin and returns its output.
	ended func() (string, error)
}

// start is before everything.
var start time.Time

// limit is how long a scenario waits for one thing.
const limit = 5 * time.Minute

// kubectl runs kubectl and returns its output.
func (s *site) kubectl(ctx context.Context, args ...string) (string, error) {
	r := s.KubectlResult(ctx, "", args...)
	return strings.TrimSpace(r.Out), r.Error
}

// apply applies manifests of the scenario.
func (s *site) apply(ctx context.Context, manifests ...string) error {
	return s.KubectlResult(ctx, strings.Join(manifests, "\n---\n"), "apply", "-f", "-").Error
}

// admitted applies manifests when the program's webhook admits them: it makes its own certificate
// first.
func (s *site) admitted(ctx context.Context, manifests ...string) error {
	return s.until(ctx, "apply", func(ctx context.Context) error { return s.apply(ctx, manifests...) })
}

// until waits until try succeeds.
func (s *site) until(ctx context.Context, what string, try func(context.Context) error) error {
	if err := clustertest.Poll(ctx, limit, try); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// succeeds waits until kubectl succeeds.
func (s *site) succeeds(ctx context.Context, args ...string) error {
	return s.until(ctx, "kubectl "+strings.Join(args, " "), func(ctx context.Context) error {
		_, err := s.kubectl(ctx, args...)
		return err
	})
}

// wants waits until kubectl prints a text.
func (s *site) wants(ctx context.Context, want string, args ...string) error {
	return s.until(ctx, "kubectl "+strings.Join(args, " "), func(ctx context.Context) error {
		got, err := s.kubectl(ctx, args...)
		if err == nil && got != want {
			err = fmt.Errorf("it prints %q, not %q", got, want)
		}
		return err
	})
}

// proxied reads a path of a port of a Service, through the API server's proxy.
func (s *site) proxied(ctx context.Context, namespace, service, path string) (string, error) {
	ctx, cancel := clustertest.TryOnce(ctx)
	defer cancel()
	return s.kubectl(ctx, "get", "--raw", "/api/v1/namespaces/"+namespace+"/services/"+service+"/proxy/"+path)
}

// ready waits until all pods of the program are Ready, by containers that were started after a
// time: a machine that comes back has pods of before it lost power.
func (s *site) ready(ctx context.Context, since time.Time) error {
	for _, namespace := range s.program.namespaces {
		err := s.until(ctx, "the pods in "+namespace, func(ctx context.Context) error {
			pods, err := s.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			running := 0
			for _, p := range pods.Items {
				if p.Status.Phase == corev1.PodSucceeded {
					continue
				}
				running++
				if err := readySince(&p, since); err != nil {
					return err
				}
			}
			if running == 0 {
				return errors.New("there are none")
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func readySince(p *corev1.Pod, since time.Time) error {
	if !clustertest.Ready(p) {
		var states []string
		for _, c := range p.Status.ContainerStatuses {
			if w := c.State.Waiting; w != nil {
				states = append(states, w.Reason+" "+w.Message)
			}
		}
		return fmt.Errorf("pod %s on %s is not Ready: %s %v", p.Name, p.Spec.NodeName, p.Status.Phase, states)
	}
	for _, c := range p.Status.ContainerStatuses {
		if c.State.Running == nil || c.State.Running.StartedAt.Time.Before(since) {
			return fmt.Errorf("container %s of pod %s is of before the machines restarted", c.Name, p.Name)
		}
	}
	return nil
}
