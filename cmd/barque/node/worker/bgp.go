package worker

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	clientrecord "k8s.io/client-go/tools/record"

	"github.com/barque/barque/edge/bgp"
	"github.com/barque/barque/kubelet/shutdown"
)

// announcing returns the parts of BGP on the node, its metrics, and what keeps its routes while the
// process stops.
func (w *Worker) announcing(
	client kubernetes.Interface, factory informers.SharedInformerFactory, aboutNode clientrecord.EventRecorder,
) (run []func(context.Context) error, metrics []prometheus.Collector, freeze func(), err error) {
	o, objects, logger := w.Options, w.BGP, w.Logger.With("part", "bgp")
	if objects == nil {
		if objects, err = bgp.NewObjects(w.Client, logger); err != nil {
			return nil, nil, nil, err
		}
		run = append(run, objects.Run)
	}
	node, err := bgp.NewNode(bgp.NodeConfig{
		Name: o.Name, Addresses: o.Addresses.Internal, Objects: objects, Nodes: factory.Core().V1().Nodes(),
		Services: factory.Core().V1().Services(), Slices: factory.Discovery().V1().EndpointSlices(),
		Client: client.CoreV1(), GoesDown: goesDown,
		Tell: func(kind, reason, message string) {
			aboutNode.Event(&corev1.ObjectReference{Kind: "Node", Name: o.Name, UID: types.UID(o.Name)}, kind, reason,
				message)
		},
		Logger: logger,
	})
	if err != nil {
		return nil, nil, nil, err
	}
	return append(run, node.Run), []prometheus.Collector{node}, node.Freeze, nil
}

// goesDown asks logind whether the machine goes down. Where there is none, it does not.
func goesDown(ctx context.Context) bool {
	logind, err := shutdown.SystemBus(ctx)
	if err != nil {
		return false
	}
	defer logind.Close()
	down, err := logind.Preparing(ctx)
	return err == nil && down
}
