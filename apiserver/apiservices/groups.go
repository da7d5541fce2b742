package apiservices

import (
	"net/http"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	apiregistrationhelper "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1/helper"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	apiservicelisters "k8s.io/kube-aggregator/pkg/client/listers/apiregistration/v1"
)

// Groups answers /apis for clients that do not know aggregated discovery. The aggregator's own
// list has the groups of APIServices, and nothing else.
type Groups struct {
	Registered apiservicelisters.APIServiceLister
	// Unregistered groups are listed last, while no APIService has their names.
	Unregistered []schema.GroupVersion
}

// ServeHTTP implements http.Handler.
func (l *Groups) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	services, err := l.Registered.List(labels.Everything())
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	responsewriters.WriteObjectNegotiated(aggregatorscheme.Codecs, negotiation.DefaultEndpointRestrictions,
		schema.GroupVersion{}, w, r, http.StatusOK, l.list(services), false)
}

func (l *Groups) list(services []*apiregistrationv1.APIService) runtime.Object {
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
	for _, gv := range l.Unregistered {
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
