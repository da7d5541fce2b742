package main

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/barque/barque/cluster-test/figure"
)

// takeOver kills the leader, scales a Deployment through another server, and measures from the
// kill.
func takeOver(ctx context.Context, b *bench) ([]figure.Figure, error) {
	const name = "takeover"
	if err := b.send(ctx, func() error {
		_, err := b.client(0).AppsV1().Deployments(namespace).Create(ctx, b.deployment(name, 1), metav1.CreateOptions{})
		return err
	}); err != nil {
		return nil, err
	}
	var figures []figure.Figure
	for i := range b.kills {
		want := i + 1
		if err := b.until(ctx, func() error { return countPods(ctx, b.client(0), want, true) }); err != nil {
			return figures, fmt.Errorf("before kill %d: %w", want, err)
		}
		killed, err := b.KillLeader(ctx)
		if err != nil {
			return figures, err
		}
		client, err := newClient(killed.Others[0])
		if err != nil {
			return figures, err
		}
		scaled := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, want+1)
		for _, step := range []struct {
			what  string
			check func() error
		}{
			{"kill of the leader until a write is taken", func() error {
				ctx, cancel := context.WithTimeout(ctx, time.Second) // brief: then it is tried again
				defer cancel()
				_, err := client.AppsV1().Deployments(namespace).Patch(ctx, name, types.MergePatchType, scaled,
					metav1.PatchOptions{})
				return err
			}},
			{"kill of the leader until a controller acts",
				func() error { return countPods(ctx, client, want+1, false) }},
			{"kill of the leader until the scheduler acts",
				func() error { return countPods(ctx, client, want+1, true) }},
		} {
			if err := b.until(ctx, step.check); err != nil {
				return figures, fmt.Errorf("after kill %d: %s: %w", want, step.what, err)
			}
			figures = figure.Merge(figures,
				[]figure.Figure{figure.One(step.what, "s", time.Since(killed.At).Seconds())})
		}
		progress("kill %d of %d: the scheduler has acted after %.2f s", want, b.kills, time.Since(killed.At).Seconds())
		if err := killed.Start(); err != nil {
			return figures, err
		}
	}
	return figures, nil
}

// countPods returns an error as long as there are fewer pods than wanted, of bound ones or of all.
func countPods(ctx context.Context, client kubernetes.Interface, want int, bound bool) error {
	list, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	n := 0
	for _, p := range list.Items {
		if !bound || p.Spec.NodeName != "" {
			n++
		}
	}
	if n < want {
		return fmt.Errorf("%d of %d pods", n, want)
	}
	return nil
}
