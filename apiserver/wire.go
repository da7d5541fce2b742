package apiserver

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/barque/barque/apiserver/groups/core"
	"github.com/barque/barque/apiserver/resource"
	"github.com/barque/barque/apiserver/services"
	"github.com/barque/barque/apiserver/subresources"
)

// wire gives declared kinds what only a server has.
func (s *Server) wire(resources []resource.Resource, sec *security) {
	if k := resource.Find[corev1.Namespace](resources); k != nil {
		k.Wrap = func(st *resource.Storage) rest.Storage { return subresources.NewNamespaces(st) }
		add(k, "finalize", func(st *resource.Storage) rest.Storage {
			return subresources.NewFinalize(st, core.ValidateNamespaceFinalizers)
		})
	}
	if k := resource.Find[corev1.ServiceAccount](resources); k != nil {
		add(k, "token", func(st *resource.Storage) rest.Storage {
			sa := &s.cfg.ServiceAccounts
			return subresources.NewToken(st, s.client, sec.issuer, sa.Audiences, sa.MaxLifetime)
		})
	}
	if k := resource.Find[corev1.Service](resources); k != nil {
		(&services.Allocator{Addresses: s.addresses, Ports: s.ports, Logger: s.logger}).Attach(k)
	}
	if k := resource.Find[corev1.Pod](resources); k != nil {
		s.wirePods(k)
	}
}

func (s *Server) wirePods(k *resource.Kind[corev1.Pod]) {
	add(k, "binding", func(st *resource.Storage) rest.Storage { return subresources.NewBinding(st) })
	add(k, "ephemeralcontainers", func(st *resource.Storage) rest.Storage {
		return subresources.NewEphemeralContainers(st, core.ValidateEphemeralContainers)
	})
	add(k, "eviction", func(st *resource.Storage) rest.Storage {
		return subresources.NewEviction(st, s.client, s.serves(policyv1.SchemeGroupVersion.WithResource("poddisruptionbudgets")))
	})
}

// add puts a subresource into a declaration.
func add[T any](k *resource.Kind[T], name string, build func(*resource.Storage) rest.Storage) {
	if k.Subresources == nil {
		k.Subresources = map[string]func(*resource.Storage) (rest.Storage, error){}
	}
	k.Subresources[name] = func(st *resource.Storage) (rest.Storage, error) { return build(st), nil }
}

// serves tells whether a resource is among those that are configured.
func (s *Server) serves(gvr schema.GroupVersionResource) bool {
	return slices.ContainsFunc(s.cfg.Resources, func(r resource.Resource) bool { return r.GroupVersionResource() == gvr })
}
