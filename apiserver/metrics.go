package apiserver

import (
	"net/http"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	apiregistrationhelper "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	apiservicelisters "k8s.io/kube-aggregator/pkg/client/listers/apiregistration/v1"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

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

// groupList answers /apis for clients that do not know aggregated discovery. The aggregator's own
// list has the groups of APIServices, and nothing else.
type groupList struct {
	registered apiservicelisters.APIServiceLister
	// unregistered groups are listed last, while no APIService has their names.
	unregistered []schema.GroupVersion
}

// listGroups takes the place of the aggregator's list.
func (c *chain) listGroups(unregistered ...schema.GroupVersion) {
	server := c.aggregator.GenericAPIServer
	list := &groupList{registered: c.aggregator.APIRegistrationInformers.Apiregistration().V1().APIServices().Lister(),
		unregistered: unregistered}
	mux := server.Handler.NonGoRestfulMux
	mux.Unregister("/apis")
	mux.Unregister("/apis/")
	mux.Handle("/apis",
		aggregated.WrapAggregatedDiscoveryToHandler(list, server.AggregatedDiscoveryGroupManager,
			server.PeerAggregatedDiscoveryManager))
	mux.UnlistedHandle("/apis/", list)
}

// ServeHTTP implements http.Handler.
func (l *groupList) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	services, err := l.registered.List(labels.Everything())
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	responsewriters.WriteObjectNegotiated(aggregatorscheme.Codecs, negotiation.DefaultEndpointRestrictions,
		schema.GroupVersion{}, w, r, http.StatusOK, l.list(services), false)
}

func (l *groupList) list(services []*apiregistrationv1.APIService) runtime.Object {
	// APIServices themselves are registered by none, and come first.
	list := &metav1.APIGroupList{Groups: []metav1.APIGroup{apiGroup(apiregistrationv1.SchemeGroupVersion)}}
	for _, of := range apiregistrationhelper.SortedByGroupAndVersion(services) {
		if of[0].Spec.Group == "" {
			continue
		}
		versions := make([]schema.GroupVersion, 0, len(of))
		for _, s := range of {
			versions = append(versions, schema.GroupVersion{Group: s.Spec.Group, Version: s.Spec.Version})
		}
		list.Groups = append(list.Groups, apiGroup(versions...))
	}
	for _, gv := range l.unregistered {
		if !slices.ContainsFunc(list.Groups, func(g metav1.APIGroup) bool { return g.Name == gv.Group }) {
			list.Groups = append(list.Groups, apiGroup(gv))
		}
	}
	return list
}

// apiGroup describes a group by its versions, the preferred one first.
func apiGroup(versions ...schema.GroupVersion) metav1.APIGroup {
	g := metav1.APIGroup{Name: versions[0].Group}
	for _, gv := range versions {
		g.Versions = append(g.Versions, metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: gv.Version})
	}
	g.PreferredVersion = g.Versions[0]
	return g
}
