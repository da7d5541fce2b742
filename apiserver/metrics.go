package apiserver

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"github.com/barque/barque/apiserver/apiservices"
	"github.com/barque/barque/apiserver/resource"
	"github.com/barque/barque/apiserver/resourcemetrics"
)

// metricsVersion is served without an APIService of its own. The operator of another metrics server
// registers v1beta1.metrics.k8s.io; Helm refuses to, if it is there already. While it is
// registered, the aggregator sends requests there, and nothing comes here. When it goes, requests
// arrive here again.
var metricsVersion = metricsv1beta1.SchemeGroupVersion

// metricsPriority puts the group where metrics-server has it: behind all others, so that "pods" are
// pods.
const metricsPriority = 100

// newMetrics makes the resources of metrics.k8s.io, none where nothing leads to nodes.
func (s *Server) newMetrics() ([]resource.Resource, error) {
	nodes, pods := corev1.SchemeGroupVersion.WithResource("nodes"), corev1.SchemeGroupVersion.WithResource("pods")
	if s.kubelets == nil || !s.serves(nodes) || !s.serves(pods) {
		return nil, nil
	}
	core := s.informers.Core().V1()
	listNodes := core.Nodes().Lister()
	collector, err := resourcemetrics.New(resourcemetrics.Config{
		Kubelets: s.kubelets,
		Nodes:    func() ([]*corev1.Node, error) { return listNodes.List(labels.Everything()) },
		Logger:   s.logger,
	})
	if err != nil {
		return nil, err
	}
	s.closers = append(s.closers, collector.Close)
	return resourcemetrics.Resources(collector, listNodes, core.Pods().Lister()), nil
}

// listGroups takes the place of the aggregator's list.
func (c *chain) listGroups(unregistered ...schema.GroupVersion) {
	server := c.aggregator.GenericAPIServer
	list := &apiservices.Groups{
		Registered:   c.aggregator.APIRegistrationInformers.Apiregistration().V1().APIServices().Lister(),
		Unregistered: unregistered,
	}
	mux := server.Handler.NonGoRestfulMux
	mux.Unregister("/apis")
	mux.Unregister("/apis/")
	mux.Handle("/apis",
		aggregated.WrapAggregatedDiscoveryToHandler(list, server.AggregatedDiscoveryGroupManager,
			server.PeerAggregatedDiscoveryManager))
	mux.UnlistedHandle("/apis/", list)
}
