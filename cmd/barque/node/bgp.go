package node

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	clientrecord "k8s.io/client-go/tools/record"

	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/edge/bgp"
	"github.com/barque/barque/internal/balancers"
	"github.com/barque/barque/kubelet/shutdown"
)

// makeBGP makes the informers of BGPPeers and AddressPools of a server, which reads them as its
// node. They run whether the server has a node or not: the authorizer of nodes decides by them, and
// the leader leaves out addresses that are announced by BGP alone.
func (s *server) makeBGP() error {
	objects, err := bgp.NewObjects(s.api.LoopbackConfigAs("system:node:"+s.options.Name, "system:nodes"),
		s.logger.With("part", "bgp"))
	if err == nil {
		s.bgp.Store(objects)
	}
	return err
}

// needsPassword is the authorizer's question. Until the objects are there, nodes wait.
func (s *server) needsPassword(node, namespace, name string) bool {
	objects := s.bgp.Load()
	if objects == nil || namespace != bgp.SecretNamespace {
		return false
	}
	of, err := s.api.Informers().Core().V1().Nodes().Lister().Get(node)
	return err == nil && objects.NamesSecret(of.Labels, name)
}

// announcing returns the parts of BGP on the node, its metrics, and what keeps its routes while the
// process stops.
func (w *worker) announcing(
	client kubernetes.Interface, factory informers.SharedInformerFactory, aboutNode clientrecord.EventRecorder,
) (run []func(context.Context) error, metrics []prometheus.Collector, freeze func(), err error) {
	o, objects, logger := w.options, w.bgp, w.logger.With("part", "bgp")
	if objects == nil {
		if objects, err = bgp.NewObjects(w.client, logger); err != nil {
			return nil, nil, nil, err
		}
		run = append(run, objects.Run)
	}
	node, err := bgp.NewNode(bgp.NodeConfig{
		Name: o.Name, Addresses: o.addresses.Internal, Objects: objects, Nodes: factory.Core().V1().Nodes(),
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

// bgpStatus are the nodes' sessions, as the Nodes have them. What a node that is not Ready has
// told is old.
func bgpStatus(nodes []*corev1.Node) *clusterstatus.BGPStatus {
	var all []clusterstatus.BGPSession
	for _, n := range nodes {
		if !balancers.Ready(n) {
			continue
		}
		for _, s := range bgp.SessionsOf(n) {
			all = append(all, clusterstatus.BGPSession{Node: n.Name, Peer: s.Peer, Address: s.Address,
				Established: s.Established, Since: s.Since, Routes: s.Routes, Restart: s.Restart, Problem: s.Problem})
		}
	}
	return clusterstatus.BGPStatusOf(all)
}
