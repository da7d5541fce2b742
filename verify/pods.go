package verify

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
)

const (
	podLabel = "app"
	podName  = "verify"
	podImage = "barque.local/hello:1" // part of Barque: it needs no registry
)

// pods starts a pod on every node that accepts pods, and calls them through a Service.
func (c *checking) pods(ctx context.Context) error {
	var nodes *corev1.NodeList
	err := c.insist(ctx, func(ctx context.Context, client kubernetes.Interface) (err error) {
		nodes, err = client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		return err
	})
	if err != nil {
		return fmt.Errorf("list the nodes: %w", err)
	}
	seen, err := c.status(ctx)
	if err != nil {
		return err
	}
	// the admission of pods needs this account
	err = c.await(ctx, func(ctx context.Context, client kubernetes.Interface) error {
		_, err := client.CoreV1().ServiceAccounts(c.namespace).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	if err != nil {
		return fmt.Errorf("the namespace's service account: %w", err)
	}
	c.Progress("starting a pod on every node")
	began := time.Now()
	check := Check{Name: "every node runs a pod, and a Service leads to them"}
	made := 0
	for i := range nodes.Items {
		n := &nodes.Items[i]
		if why := refuses(n, seen); why != "" {
			check.Unjudged = append(check.Unjudged, fmt.Sprintf("node %s: %s", n.Name, why))
			continue
		}
		if err := c.create(ctx, func(ctx context.Context, client kubernetes.Interface) error {
			return c.startPod(ctx, client, i, n.Name)
		}); err != nil {
			return fmt.Errorf("start a pod on %s: %w", n.Name, err)
		}
		made++
	}
	if err := c.create(ctx, c.startService); err != nil {
		return fmt.Errorf("make a Service: %w", err)
	}
	if err := c.await(ctx,
		func(
			ctx context.Context, client kubernetes.Interface,
		) error {
			return c.podsReady(ctx, client, made)
		}); err != nil {
		check.Problems = append(check.Problems, err.Error())
	} else if made > 0 {
		if err := c.await(ctx, c.callService); err != nil {
			check.Problems = append(check.Problems, fmt.Sprintf("their Service: %v", err))
		}
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	check.Detail = fmt.Sprintf("%d pods in %v", made, time.Since(began).Round(100*time.Millisecond))
	c.note(check)
	return nil
}

// await repeats a request until its answer is right, or settleTime is over.
func (c *checking) await(ctx context.Context, question func(context.Context, kubernetes.Interface) error) error {
	return until(ctx, settleTime, func(ctx context.Context) error { return c.ask(ctx, question) })
}

// refuses returns why a pod on a node would not start, empty if it should. Gossip finds a dead node
// before its Node stops being Ready.
func refuses(n *corev1.Node, seen *status) string {
	if n.Spec.Unschedulable {
		return "" // its operator wants it so
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			return "it is not Ready: " + c.Message
		}
	}
	for _, m := range seen.Members {
		switch {
		case m.Name != n.Name:
		case m.Problem != "":
			return "its server does not answer: " + m.Problem
		case m.Gossip == "dead" || m.Gossip == "left":
			return "the servers see it as " + m.Gossip
		}
	}
	for _, t := range n.Spec.Taints {
		if t.Key == corev1.TaintNodeUnreachable {
			return "it is unreachable"
		}
	}
	return ""
}

// startPod starts a pod on a node. It tolerates all taints but those of a dead node.
func (c *checking) startPod(ctx context.Context, client kubernetes.Interface, number int, node string) error {
	grace := int64(1)
	_, err := client.CoreV1().Pods(c.namespace).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", podName, number),
			Labels: map[string]string{podLabel: podName}},
		Spec: corev1.PodSpec{
			NodeSelector:                  map[string]string{corev1.LabelHostname: node},
			Tolerations:                   []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{
				Name: podName, Image: podImage,
				ReadinessProbe: &corev1.Probe{PeriodSeconds: 1,
					ProbeHandler: corev1.ProbeHandler{
						HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt32(8080)}}},
			}},
		},
	}, metav1.CreateOptions{})
	return err
}

func (c *checking) startService(ctx context.Context, client kubernetes.Interface) error {
	_, err := client.CoreV1().Services(c.namespace).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: podName},
		Spec: corev1.ServiceSpec{Selector: map[string]string{podLabel: podName},
			Ports: []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8080)}}},
	}, metav1.CreateOptions{})
	return err
}

func (c *checking) podsReady(ctx context.Context, client kubernetes.Interface, want int) error {
	list, err := client.CoreV1().Pods(c.namespace).List(ctx,
		metav1.ListOptions{LabelSelector: podLabel + "=" + podName})
	if err != nil {
		return err
	}
	ready := 0
	for i := range list.Items {
		p := &list.Items[i]
		for _, cond := range p.Status.Conditions {
			if cond.Type == corev1.PodReady && cond.Status == corev1.ConditionTrue {
				ready++
			}
		}
		if p.Status.Phase == corev1.PodPending || p.Status.Phase == corev1.PodFailed {
			err = errors.Join(err,
				fmt.Errorf("pod %s on %s is %s: %s", p.Name, p.Spec.NodeName, p.Status.Phase, p.Status.Message))
		}
	}
	if ready != want {
		return errors.Join(fmt.Errorf("%d of %d pods are ready", ready, want), err)
	}
	return nil
}

func (c *checking) callService(ctx context.Context, client kubernetes.Interface) error {
	return client.CoreV1().RESTClient().Get().Namespace(c.namespace).Resource("services").Name(
		podName + ":http").SubResource("proxy").Do(ctx).Error()
}
