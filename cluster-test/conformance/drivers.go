package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
)

// driversLabel is the label of the specs of dynamic resource allocation. Their pods run a driver,
// which listens in the kubelet's directory. The suite knows one such directory for all nodes, and
// nodes of a dev cluster, which share a machine, have each their own. So these specs run on one
// node, with its directory, while the other nodes take no pods.
const driversLabel = "DRA"

// reserved is the taint that the suite expects on nodes that take no pods of its own.
var reserved = corev1.Taint{Key: "node-role.kubernetes.io/control-plane", Effect: corev1.TaintEffectNoSchedule}

// apart splits a selection by labels into specs that run on all nodes, and those with drivers.
func (s selection) apart() (ordinary, drivers selection) {
	ordinary, drivers = s, s
	ordinary.labels = "(" + s.labels + ") && !" + driversLabel
	drivers.labels = "(" + s.labels + ") && " + driversLabel
	drivers.name += "-drivers"
	drivers.procs = (s.procs + 1) / 2
	return ordinary, drivers
}

func hasDriver(s spec) bool { return slices.Contains(s.Labels, driversLabel) }

// merged is the report of ordinary specs with the others' outcomes from that of specs with drivers.
func merged(ordinary, drivers []spec) []spec {
	if len(drivers) == 0 {
		return ordinary
	}
	return append(slices.DeleteFunc(ordinary, hasDriver),
		slices.DeleteFunc(drivers, func(s spec) bool { return !hasDriver(s) })...)
}

// run runs the selected specs. Those with drivers follow the others. No conformance spec has one.
func (l *lab) run(ctx context.Context, which selection) ([]spec, error) {
	if which.labels == "" {
		return l.suite.run(ctx, which)
	}
	ordinary, drivers := which.apart()
	specs, err := l.suite.run(ctx, ordinary)
	empty := errors.Is(err, errNoSpecs) && ctx.Err() == nil
	if err != nil && !empty {
		return specs, err
	}
	more, err := l.onOneNode(ctx, drivers)
	if errors.Is(err, errNoSpecs) && !empty {
		err = nil // one of the two has specs
	}
	return merged(specs, more), err
}

// onOneNode runs specs while all nodes but the last one take no pods.
func (l *lab) onOneNode(ctx context.Context, which selection) (specs []spec, err error) {
	nodes := l.cluster.Nodes()
	one, others := nodes[len(nodes)-1], nodes[:len(nodes)-1]
	defer func() {
		for _, n := range others {
			err = errors.Join(err, l.reserve(context.WithoutCancel(ctx), n, false))
		}
	}()
	for _, n := range others {
		if err := l.reserve(ctx, n, true); err != nil {
			return nil, err
		}
	}
	on := l.suite
	on.kubeletDir = filepath.Join(l.cluster.DataDir(one), "kubelet")
	return on.run(ctx, which)
}

// reserve gives a node the taint, or takes it away.
func (l *lab) reserve(ctx context.Context, node string, yes bool) error {
	nodes := l.cluster.Client.CoreV1().Nodes()
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		n, err := nodes.Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == reserved.Key })
		if yes {
			n.Spec.Taints = append(n.Spec.Taints, reserved)
		}
		_, err = nodes.Update(ctx, n, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		return fmt.Errorf("change the taints of %s: %w", node, err)
	}
	return nil
}
