package apiserver

import (
	"context"
	"errors"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/client-go/kubernetes"

	"github.com/barque/barque/apiserver/groups/certificates"
	"github.com/barque/barque/apiserver/groups/core"
	"github.com/barque/barque/apiserver/groups/core/pod"
	"github.com/barque/barque/apiserver/groups/core/service"
	"github.com/barque/barque/apiserver/nodeauth"
	"github.com/barque/barque/apiserver/nodeleases"
	"github.com/barque/barque/apiserver/nodeproxy"
	"github.com/barque/barque/apiserver/resource"
	"github.com/barque/barque/apiserver/services"
	"github.com/barque/barque/apiserver/storage"
	"github.com/barque/barque/apiserver/subresources"
)

// wire adds to the declared kinds the parts that need the server.
func (s *Server) wire(resources []resource.Resource, sec *security) error {
	if s.cfg.KubeletClient != nil {
		if err := s.wireNodes(resources, sec); err != nil {
			return err
		}
	}
	if k := resource.Find[corev1.Namespace](resources); k != nil {
		k.Wrap = func(st *resource.Storage) rest.Storage { return subresources.NewNamespaces(st) }
		add(k, "finalize", func(st *resource.Storage) rest.Storage {
			return subresources.NewFinalize(st, core.ValidateNamespaceFinalizers)
		})
	}
	if k := resource.Find[corev1.ServiceAccount](resources); k != nil {
		add(k, "token", func(st *resource.Storage) rest.Storage {
			sa := &s.cfg.ServiceAccounts
			return subresources.NewToken(st, s.client, sec.issuer, sa.Audiences,
				subresources.TokenLifetimes{Max: sa.MaxLifetime, Extend: !sa.NoExtension})
		})
	}
	if k := resource.Find[corev1.Pod](resources); k != nil {
		s.wirePods(k)
	}
	wireCertificates(resources, sec.authorizer)
	s.wireClaims(resources, sec.authorizer)
	s.wireNodeLeases(resources)
	s.wirePolicies(resources, sec)
	return nil
}

// wireServices makes Services allocate. Unlike wire it needs the storage of other resources.
func (s *Server) wireServices(p *parts) error {
	k := resource.Find[corev1.Service](p.resources)
	if k == nil {
		return nil
	}
	cfg := services.Config{
		Backend: s.cfg.Store, CIDRs: s.cfg.serviceCIDRs(), Validate: service.ValidateAddresses,
		FirstPort: int32(s.cfg.NodePorts.First), LastPort: int32(s.cfg.NodePorts.Last),
	}
	var err error
	if cfg.Services, err = p.storage.Objects(corev1.Resource("services"), &corev1.Service{}, k.Prefix); err != nil {
		return err
	}
	if cfg.Addresses, err = p.storage.Objects(networkingv1.Resource("ipaddresses"), &networkingv1.IPAddress{},
		""); err != nil {
		return err
	}
	if cfg.ServiceCIDRs, err = p.storage.Objects(networkingv1.Resource("servicecidrs"), &networkingv1.ServiceCIDR{},
		""); err != nil {
		return err
	}
	if s.allocator, err = services.New(cfg); err != nil {
		return err
	}
	p.storage.Accompany(corev1.Resource("services"), s.allocator)
	s.allocator.Attach(k)
	return nil
}

// wireNodeLeases makes the leases of nodes from the Node objects and their signs of life.
func (s *Server) wireNodeLeases(resources []resource.Resource) {
	nodes, leases := resource.Find[corev1.Node](resources), resource.Find[coordinationv1.Lease](resources)
	if s.cfg.SignsOfLife == nil || nodes == nil || leases == nil {
		return
	}
	var built *resource.Storage // of nodes
	nodes.Wrap = func(st *resource.Storage) rest.Storage {
		built = st
		return st
	}
	leases.Wrap = func(st *resource.Storage) rest.Storage {
		return nodeleases.New(st, func() nodeleases.Nodes { return orderedNodes{built} }, s.cfg.SignsOfLife, s.cfg.Now)
	}
}

// orderedNodes is the storage of nodes, which can also be watched in the order of the store.
type orderedNodes struct{ *resource.Storage }

// WatchStore implements nodeleases.Nodes.
func (n orderedNodes) WatchStore(
	ctx context.Context, options *metainternalversion.ListOptions,
) (watch.Interface, error) {
	return n.Watch(storage.Direct(ctx), options)
}

// TellProgress implements nodeleases.Nodes.
func (n orderedNodes) TellProgress(ctx context.Context) error {
	return n.Storage.Store.Storage.Storage.RequestWatchProgress(ctx)
}

// wireNodes adds the subresources that lead to nodes.
func (s *Server) wireNodes(resources []resource.Resource, sec *security) error {
	proxy, err := nodeproxy.New(
		nodeproxy.Config{Objects: nodeObjects{s.client}, TLS: s.cfg.KubeletClient, IsKubelet: s.cfg.IsKubelet,
			Authorizer: sec.authorizer})
	if err != nil {
		return err
	}
	s.closers = append(s.closers, proxy.Close)
	s.kubelets = proxy
	if k := resource.Find[corev1.Pod](resources); k != nil {
		for name, storage := range map[string]rest.Storage{
			"log": proxy.PodLog(), "exec": proxy.PodExec(), "attach": proxy.PodAttach(),
			"portforward": proxy.PodPortForward(), "proxy": proxy.PodProxy(),
		} {
			add(k, name, func(*resource.Storage) rest.Storage { return storage })
		}
	}
	if k := resource.Find[corev1.Service](resources); k != nil {
		add(k, "proxy", func(*resource.Storage) rest.Storage { return proxy.ServiceProxy() })
	}
	if k := resource.Find[corev1.Node](resources); k != nil {
		add(k, "proxy", func(*resource.Storage) rest.Storage { return proxy.NodeProxy() })
	}
	return nil
}

// nodeObjects reads the objects of a request to a node. It uses the API: the pod may be newer than
// the informer's.
type nodeObjects struct{ client kubernetes.Interface }

// Pod implements nodeproxy.Objects.
func (o nodeObjects) Pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	return o.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
}

// Node implements nodeproxy.Objects.
func (o nodeObjects) Node(ctx context.Context, name string) (*corev1.Node, error) {
	return o.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
}

// Service implements nodeproxy.Objects.
func (o nodeObjects) Service(ctx context.Context, namespace, name string) (*corev1.Service, error) {
	return o.client.CoreV1().Services(namespace).Get(ctx, name, metav1.GetOptions{})
}

// EndpointSlices implements nodeproxy.Objects.
func (o nodeObjects) EndpointSlices(
	ctx context.Context, namespace, service string,
) ([]*discoveryv1.EndpointSlice, error) {
	list, err := o.client.DiscoveryV1().EndpointSlices(namespace).List(ctx, metav1.ListOptions{
		LabelSelector: labels.Set{discoveryv1.LabelServiceName: service}.String(),
	})
	if err != nil {
		return nil, err
	}
	out := make([]*discoveryv1.EndpointSlice, len(list.Items))
	for i := range list.Items {
		out[i] = &list.Items[i]
	}
	return out, nil
}

func (s *Server) wirePods(k *resource.Kind[corev1.Pod]) {
	k.Wrap = nodeauth.NewPods
	add(k, "ephemeralcontainers", func(st *resource.Storage) rest.Storage {
		return subresources.NewEphemeralContainers(st, pod.ValidateEphemeralContainers)
	})
	add(k, "resize", func(st *resource.Storage) rest.Storage {
		return subresources.NewResize(st, pod.PrepareResize, pod.ValidateResize)
	})
	add(k, "eviction", func(st *resource.Storage) rest.Storage {
		return subresources.NewEviction(st, s.client,
			s.serves(policyv1.SchemeGroupVersion.WithResource("poddisruptionbudgets")))
	})
}

// bindings adds pods/binding to pods, and returns the resource that is its older form.
func bindings(pods *resource.Kind[corev1.Pod]) resource.Resource {
	var built *subresources.Binding
	add(pods, "binding", func(st *resource.Storage) rest.Storage {
		built = subresources.NewBinding(st)
		return built
	})
	return &resource.Computed{
		GroupVersion: corev1.SchemeGroupVersion,
		Name:         "bindings",
		Types:        []runtime.Object{&corev1.Binding{}},
		Storage: func() (rest.Storage, error) {
			if built == nil {
				return nil, errors.New("pods come first")
			}
			return subresources.Bindings{Binding: built}, nil
		},
	}
}

// wireCertificates adds the approval of requests, and the permission check for the status of
// requests of pods.
func wireCertificates(resources []resource.Resource, authz authorizer.Authorizer) {
	if k := resource.Find[certificatesv1.CertificateSigningRequest](resources); k != nil {
		add(k, "approval", func(st *resource.Storage) rest.Storage {
			return subresources.NewApproval(st, certificates.PrepareApproval, certificates.ValidateApproval)
		})
	}
	if k := resource.Find[certificatesv1.PodCertificateRequest](resources); k != nil {
		validate := k.Status.Validate
		k.Status.Validate = func(ctx context.Context, r, old *certificatesv1.PodCertificateRequest) field.ErrorList {
			if errs := validate(ctx, r, old); len(errs) > 0 {
				return errs
			}
			return subresources.MaySign(ctx, authz, r, old)
		}
	}
}

// wireClaims checks the permissions to request devices, and to write each part of a claim's status.
func (s *Server) wireClaims(resources []resource.Resource, authz authorizer.Authorizer) {
	claims := &subresources.Claims{Authorizer: authz,
		Namespace: func(ctx context.Context, name string) (*corev1.Namespace, error) {
			return s.client.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
		}}
	if k := resource.Find[resourcev1.ResourceClaim](resources); k != nil {
		validate, validateStatus := k.Validate, k.Status.Validate
		k.Validate = func(ctx context.Context, c, old *resourcev1.ResourceClaim) field.ErrorList {
			errs := validate(ctx, c, old)
			if old == nil {
				errs = append(errs, claims.MayRequest(ctx, c.Namespace, c.Spec.Devices.Requests)...)
			}
			return errs
		}
		k.Status.Validate = func(ctx context.Context, c, old *resourcev1.ResourceClaim) field.ErrorList {
			return append(validateStatus(ctx, c, old), claims.MayWriteStatus(ctx, c, old)...)
		}
	}
	if k := resource.Find[resourcev1.ResourceClaimTemplate](resources); k != nil {
		validate := k.Validate
		k.Validate = func(ctx context.Context, t, old *resourcev1.ResourceClaimTemplate) field.ErrorList {
			errs := validate(ctx, t, old)
			if old == nil {
				errs = append(errs, claims.MayRequest(ctx, t.Namespace, t.Spec.Spec.Devices.Requests)...)
			}
			return errs
		}
	}
}

// add puts a subresource into a declaration.
func add[T any](k *resource.Kind[T], name string, build func(*resource.Storage) rest.Storage) {
	if k.Subresources == nil {
		k.Subresources = map[string]func(*resource.Storage) (rest.Storage, error){}
	}
	k.Subresources[name] = func(st *resource.Storage) (rest.Storage, error) { return build(st), nil }
}

// serves reports whether a resource is among those that are configured.
func (s *Server) serves(gvr schema.GroupVersionResource) bool {
	return slices.ContainsFunc(s.cfg.Resources,
		func(r resource.Resource) bool { return r.GroupVersionResource() == gvr })
}
