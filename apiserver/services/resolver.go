package services

import (
	"net/url"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/util/proxy"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
)

// Resolver finds the address by which the server itself reaches a Service: one of its ready
// endpoints. A server needs no Service network for that, only the route to pods that every
// node has.
type Resolver struct {
	api      *url.URL
	services corelisters.ServiceLister
	slices   proxy.EndpointSliceGetter
}

// NewResolver makes a Resolver. The kubernetes Service is api, the address of this server itself.
func NewResolver(factory informers.SharedInformerFactory, api *url.URL) (*Resolver, error) {
	slices, err := proxy.NewEndpointSliceIndexerGetter(factory.Discovery().V1().EndpointSlices())
	if err != nil {
		return nil, err
	}
	return &Resolver{api: api, services: factory.Core().V1().Services().Lister(), slices: slices}, nil
}

// ResolveEndpoint implements webhook.ServiceResolver and the aggregator's resolver.
func (r *Resolver) ResolveEndpoint(namespace, name string, port int32) (*url.URL, error) {
	if namespace == "default" && name == "kubernetes" && port == 443 {
		return r.api, nil
	}
	service, err := r.services.Services(namespace).Get(name)
	if err != nil {
		return nil, err
	}
	if service.Spec.Type == corev1.ServiceTypeExternalName {
		return proxy.ResolveCluster(r.services, namespace, name, port)
	}
	return proxy.ResolveEndpoint(r.services, r.slices, namespace, name, port)
}
