package verify

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

const (
	podLabel = "app"
	podName  = "verify"
	podImage = "barque.local/hello:1" // it is built into Barque: no registry is needed
)

// pods starts a pod on every node that takes some, and calls them through a Service.
func (c *checking) pods(ctx context.Context) error {
	var nodes *corev1.NodeList
	err := within(ctx, askTime, func(ctx context.Context) (err error) {
		nodes, err = c.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		return err
	})
	if err != nil {
		return fmt.Errorf("list the nodes: %w", err)
	}
	err = until(ctx, settleTime, func(ctx context.Context) error { // the admission of pods needs it
		_, err := c.client.CoreV1().ServiceAccounts(c.namespace).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	if err != nil {
		return fmt.Errorf("the namespace's service account: %w", err)
	}
	c.Progress("starting a pod on every node")
	began := time.Now()
	var problems []string
	made := 0
	for i := range nodes.Items {
		n := &nodes.Items[i]
		if why := refuses(n); why != "" {
			problems = append(problems, fmt.Sprintf("node %s: %s", n.Name, why))
			continue
		}
		if err := within(ctx, askTime, func(ctx context.Context) error { return c.startPod(ctx, n.Name) }); err != nil {
			return fmt.Errorf("start a pod on %s: %w", n.Name, err)
		}
		made++
	}
	if err := within(ctx, askTime, c.startService); err != nil {
		return err
	}
	if err := until(ctx, settleTime, func(ctx context.Context) error { return c.podsReady(ctx, made) }); err != nil {
		problems = append(problems, err.Error())
	} else if err := until(ctx, settleTime, c.callService); err != nil {
		problems = append(problems, fmt.Sprintf("their Service: %v", err))
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	c.add("every node runs a pod, and a Service leads to them", fmt.Sprintf("%d pods in %v", made, time.Since(began).Round(100*time.Millisecond)), problems...)
	return nil
}

// refuses says why a node takes no pods, empty when it does.
func refuses(n *corev1.Node) string {
	if n.Spec.Unschedulable {
		return "" // its operator wants it so
	}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			return "it is not Ready: " + c.Message
		}
	}
	return ""
}

// startPod starts a pod on a node, past all taints but those of a node that is gone.
func (c *checking) startPod(ctx context.Context, node string) error {
	grace := int64(1)
	_, err := c.client.CoreV1().Pods(c.namespace).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: podName + "-", Labels: map[string]string{podLabel: podName}},
		Spec: corev1.PodSpec{
			NodeSelector:                  map[string]string{corev1.LabelHostname: node},
			Tolerations:                   []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{
				Name: podName, Image: podImage,
				ReadinessProbe: &corev1.Probe{PeriodSeconds: 1, ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt32(8080)}}},
			}},
		},
	}, metav1.CreateOptions{})
	return err
}

func (c *checking) startService(ctx context.Context) error {
	_, err := c.client.CoreV1().Services(c.namespace).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: podName},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{podLabel: podName}, Ports: []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8080)}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("make a Service: %w", err)
	}
	return nil
}

func (c *checking) podsReady(ctx context.Context, want int) error {
	list, err := c.client.CoreV1().Pods(c.namespace).List(ctx, metav1.ListOptions{LabelSelector: podLabel + "=" + podName})
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
			err = errors.Join(err, fmt.Errorf("pod %s on %s is %s: %s", p.Name, p.Spec.NodeName, p.Status.Phase, p.Status.Message))
		}
	}
	if ready != want {
		return errors.Join(fmt.Errorf("%d of %d pods are ready", ready, want), err)
	}
	return nil
}

func (c *checking) callService(ctx context.Context) error {
	return c.client.CoreV1().RESTClient().Get().Namespace(c.namespace).Resource("services").Name(podName + ":http").SubResource("proxy").Do(ctx).Error()
}
