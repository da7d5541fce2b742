// Package gateway is the gateway of a node, and the leader's part in it. The node watches Ingresses
// and objects of the Gateway API, translates them (translate), and serves them (proxy). The leader
// writes their statuses, and installs the classes and definitions (crds).
//
// Every node reads the same objects and comes to the same routes by itself. A node is of a chosen
// few only where others have the gateway switched off.
package gateway

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	coreinformers "k8s.io/client-go/informers/core/v1"
	discoveryinformers "k8s.io/client-go/informers/discovery/v1"
	networkinginformers "k8s.io/client-go/informers/networking/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	gatewayv1 "sigs.k8s.io/gateway-api/apis/v1"
	gatewayclient "sigs.k8s.io/gateway-api/pkg/client/clientset/versioned/typed/apis/v1"

	"github.com/barque/barque/edge/gateway/translate"
)

// Account is the service account, in kube-system, by which nodes read what the gateway is made of.
const Account = "barque-gateway"

// Objects are informers of all that routes are made of.
type Objects struct {
	ingresses, ingressClasses               cache.SharedIndexInformer
	classes, gateways, listenerSets, grants cache.SharedIndexInformer
	httpRoutes, grpcRoutes, tlsRoutes       cache.SharedIndexInformer
	policies                                cache.SharedIndexInformer
	services, slices, namespaces            cache.SharedIndexInformer
	logger                                  *slog.Logger
}

// Shared are informers that others have, too. Their owner starts them.
type Shared struct {
	Services       coreinformers.ServiceInformer
	EndpointSlices discoveryinformers.EndpointSliceInformer
	Namespaces     coreinformers.NamespaceInformer
}

const (
	secretIndex  = "barque.secret"
	serviceIndex = "barque.service"
	parentIndex  = "barque.parent"
	targetIndex  = "barque.target"
	mapIndex     = "barque.configmap"
)

// NewObjects returns informers that read as the user of config, beside shared ones.
func NewObjects(config *rest.Config, shared Shared, logger *slog.Logger) (*Objects, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	gateways, err := gatewayclient.NewForConfig(JSON(config))
	if err != nil {
		return nil, err
	}
	return newObjects(client, gateways, shared, logger)
}

func newObjects(
	client kubernetes.Interface, gateways gatewayclient.GatewayV1Interface, shared Shared, logger *slog.Logger,
) (*Objects, error) {
	o := &Objects{
		ingresses: networkinginformers.NewIngressInformer(client, metav1.NamespaceAll, 0, cache.Indexers{
			secretIndex: func(obj any) ([]string, error) {
				certificates, users := translate.IngressSecrets(obj.(*networkingv1.Ingress))
				return texts(append(certificates, users...)), nil
			},
		}),
		ingressClasses: networkinginformers.NewIngressClassInformer(client, 0, cache.Indexers{}),
		services:       shared.Services.Informer(), slices: shared.EndpointSlices.Informer(),
		namespaces: shared.Namespaces.Informer(),
		logger:     logger,
	}
	if o.slices.GetIndexer().GetIndexers()[serviceIndex] == nil {
		if err := o.slices.AddIndexers(cache.Indexers{serviceIndex: func(obj any) ([]string, error) {
			m, err := meta.Accessor(obj)
			if err != nil {
				return nil, err
			}
			return []string{m.GetNamespace() + "/" + m.GetLabels()["kubernetes.io/service-name"]}, nil
		}}); err != nil {
			return nil, err
		}
	}
	if err := indexOwners(o.services); err != nil {
		return nil, err
	}
	if o.services.GetIndexer().GetIndexers()[takenIndex] == nil {
		if err := o.services.AddIndexers(cache.Indexers{takenIndex: portsOfNodes}); err != nil {
			return nil, err
		}
	}
	for resource, i := range map[string]cache.SharedIndexInformer{"ingresses": o.ingresses,
		"ingressclasses": o.ingressClasses} {
		o.patient(i, resource)
	}
	all := metav1.NamespaceAll
	o.classes = informer(o, gateways, gateways.GatewayClasses(), "gatewayclasses", &gatewayv1.GatewayClass{},
		cache.Indexers{})
	o.gateways = informer(o, gateways, gateways.Gateways(all), "gateways", &gatewayv1.Gateway{}, cache.Indexers{})
	o.listenerSets = informer(o, gateways, gateways.ListenerSets(all), "listenersets", &gatewayv1.ListenerSet{},
		cache.Indexers{
			parentIndex: func(obj any) ([]string, error) {
				if parent, ok := translate.Parent(obj.(*gatewayv1.ListenerSet)); ok {
					return []string{parent.String()}, nil
				}
				return nil, nil
			},
		})
	o.grants = informer(o, gateways, gateways.ReferenceGrants(all), "referencegrants", &gatewayv1.ReferenceGrant{},
		cache.Indexers{
			cache.NamespaceIndex: cache.MetaNamespaceIndexFunc,
		})
	o.httpRoutes = informer(o, gateways, gateways.HTTPRoutes(all), "httproutes", &gatewayv1.HTTPRoute{},
		cache.Indexers{})
	o.grpcRoutes = informer(o, gateways, gateways.GRPCRoutes(all), "grpcroutes", &gatewayv1.GRPCRoute{},
		cache.Indexers{})
	o.tlsRoutes = informer(o, gateways, gateways.TLSRoutes(all), "tlsroutes", &gatewayv1.TLSRoute{}, cache.Indexers{})
	o.policies = informer(o, gateways, gateways.BackendTLSPolicies(all), "backendtlspolicies",
		&gatewayv1.BackendTLSPolicy{}, cache.Indexers{
			targetIndex: func(obj any) ([]string, error) {
				return texts(translate.Targets(obj.(*gatewayv1.BackendTLSPolicy))), nil
			},
			mapIndex: func(obj any) ([]string, error) {
				return texts(translate.Authorities(obj.(*gatewayv1.BackendTLSPolicy))), nil
			},
		})
	return o, nil
}

func texts(names []types.NamespacedName) (all []string) {
	for _, n := range names {
		all = append(all, n.String())
	}
	return all
}

// JSON is a configuration for custom resources, which have no other encoding.
func JSON(config *rest.Config) *rest.Config {
	of := rest.CopyConfig(config)
	of.ContentConfig = rest.ContentConfig{}
	return of
}

// lists is a client of one resource.
type lists[L runtime.Object] interface {
	List(context.Context, metav1.ListOptions) (L, error)
	Watch(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// listWatch reads by resource, which comes from client. The fields are a selector, or "".
func listWatch[L runtime.Object](client any, resource lists[L], fields string) cache.ListerWatcher {
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			o.FieldSelector = fields
			return resource.List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.FieldSelector = fields
			return resource.Watch(ctx, o)
		},
	}, client)
}

// informer watches a custom resource.
func informer[L runtime.Object](
	o *Objects, client any, resource lists[L], name string, of runtime.Object, indexers cache.Indexers,
) cache.SharedIndexInformer {
	i := cache.NewSharedIndexInformer(listWatch(client, resource, ""), of, 0, indexers)
	o.patient(i, name)
	return i
}

// patient keeps errors that are expected out of the log of errors: a definition may be missing for
// a while, or for good, and so may rights while an earlier version leads.
func (o *Objects) patient(i cache.SharedIndexInformer, resource string) {
	// Only an informer that runs refuses a handler.
	_ = i.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
		if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
			o.logger.Info("the gateway cannot read a kind yet; trying again", "resource", resource, "reason",
				apierrors.ReasonForError(err))
			return
		}
		cache.DefaultWatchErrorHandler(ctx, r, err)
	})
}

func (o *Objects) own() []cache.SharedIndexInformer {
	return append([]cache.SharedIndexInformer{o.ingresses, o.ingressClasses}, o.api()...)
}

// api are the informers of the Gateway API, whose definitions may be missing.
func (o *Objects) api() []cache.SharedIndexInformer {
	return []cache.SharedIndexInformer{o.classes, o.gateways, o.listenerSets, o.grants, o.httpRoutes, o.grpcRoutes,
		o.tlsRoutes, o.policies}
}

// bootstrapped waits until the cluster has its default objects, the roles among them. Their last
// one is the namespace default.
func (o *Objects) bootstrapped(ctx context.Context) error {
	there := make(chan struct{})
	var once sync.Once
	handler, err := o.namespaces.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(obj any) {
		if n, ok := obj.(*corev1.Namespace); ok && n.Name == metav1.NamespaceDefault {
			once.Do(func() { close(there) })
		}
	}})
	if err != nil {
		return err
	}
	select {
	case <-there:
	case <-ctx.Done():
	}
	return o.namespaces.RemoveEventHandler(handler)
}

// Run runs the informers that are not shared until ctx ends.
func (o *Objects) Run(ctx context.Context) error {
	if err := o.bootstrapped(ctx); err != nil || ctx.Err() != nil {
		return err
	}
	done := make(chan struct{}, len(o.own()))
	for _, i := range o.own() {
		go func() {
			i.RunWithContext(ctx)
			done <- struct{}{}
		}()
	}
	for range o.own() {
		<-done
	}
	return nil
}

// definitionPatience is how long the kinds of the Gateway API are waited for at a start.
const definitionPatience = 5 * time.Second

// waitForSync waits for Ingresses and what is shared, and for the Gateway API for some seconds: its
// definitions may be missing. It returns false when ctx has ended.
func (o *Objects) waitForSync(ctx context.Context) bool {
	if !cache.WaitForCacheSync(ctx.Done(), o.ingresses.HasSynced, o.ingressClasses.HasSynced, o.services.HasSynced,
		o.slices.HasSynced, o.namespaces.HasSynced) {
		return false
	}
	patience, cancel := context.WithTimeout(ctx, definitionPatience)
	defer cancel()
	var synced []cache.InformerSynced
	for _, i := range o.api() {
		synced = append(synced, i.HasSynced)
	}
	cache.WaitForCacheSync(patience.Done(), synced...)
	return ctx.Err() == nil
}

// get returns an object by its key; nil if there is none.
func get[T any](i cache.SharedIndexInformer, key string) *T {
	obj, ok, err := i.GetStore().GetByKey(key)
	if !ok || err != nil {
		return nil
	}
	t, _ := obj.(*T)
	return t
}

// indexed are the objects of an index.
func indexed[T any](i cache.SharedIndexInformer, index, key string) (all []*T) {
	found, err := i.GetIndexer().ByIndex(index, key)
	if err != nil {
		return nil // the index is there: NewObjects has added it
	}
	for _, obj := range found {
		if t, ok := obj.(*T); ok {
			all = append(all, t)
		}
	}
	return all
}

func list[T any](i cache.SharedIndexInformer) (all []*T) {
	for _, obj := range i.GetStore().List() {
		if t, ok := obj.(*T); ok {
			all = append(all, t)
		}
	}
	return all
}

// view is a translate.Cluster over the informers.
type view struct {
	*Objects
	// certificate and authority say why a Secret or a ConfigMap cannot be used; nil where nobody
	// has looked at them.
	certificate, authority func(types.NamespacedName) error
}

// GatewayClass implements translate.Cluster.
func (v view) GatewayClass(name string) *gatewayv1.GatewayClass {
	return get[gatewayv1.GatewayClass](v.classes, name)
}

// Gateway implements translate.Cluster.
func (v view) Gateway(name types.NamespacedName) *gatewayv1.Gateway {
	return get[gatewayv1.Gateway](v.gateways, name.String())
}

// ListenerSet implements translate.Cluster.
func (v view) ListenerSet(name types.NamespacedName) *gatewayv1.ListenerSet {
	return get[gatewayv1.ListenerSet](v.listenerSets, name.String())
}

// ListenerSets implements translate.Cluster.
func (v view) ListenerSets(gateway types.NamespacedName) []*gatewayv1.ListenerSet {
	return indexed[gatewayv1.ListenerSet](v.listenerSets, parentIndex, gateway.String())
}

// Policies implements translate.Cluster.
func (v view) Policies(service types.NamespacedName) []*gatewayv1.BackendTLSPolicy {
	return indexed[gatewayv1.BackendTLSPolicy](v.policies, targetIndex, service.String())
}

// Namespace implements translate.Cluster.
func (v view) Namespace(name string) *corev1.Namespace {
	return get[corev1.Namespace](v.namespaces, name)
}

// Service implements translate.Cluster.
func (v view) Service(name types.NamespacedName) *corev1.Service {
	return get[corev1.Service](v.services, name.String())
}

// Grants implements translate.Cluster.
func (v view) Grants(namespace string) []*gatewayv1.ReferenceGrant {
	return indexed[gatewayv1.ReferenceGrant](v.grants, cache.NamespaceIndex, namespace)
}

// Certificate implements translate.Cluster.
func (v view) Certificate(name types.NamespacedName) error {
	if v.certificate == nil {
		return nil
	}
	return v.certificate(name)
}

// Authority implements translate.Cluster.
func (v view) Authority(name types.NamespacedName) error {
	if v.authority == nil {
		return nil
	}
	return v.authority(name)
}

// ours reports whether an Ingress is of a class of this controller.
func (o *Objects) ours(in *networkingv1.Ingress) bool {
	name := in.Annotations["kubernetes.io/ingress.class"]
	if in.Spec.IngressClassName != nil {
		name = *in.Spec.IngressClassName
	}
	if name == "" {
		return false
	}
	class := get[networkingv1.IngressClass](o.ingressClasses, name)
	return class != nil && class.Spec.Controller == translate.IngressController
}

// AnnotationProblems returns the annotations of an Ingress of our class that have no effect, in the
// words of its events; none for another class.
func (o *Objects) AnnotationProblems(in *networkingv1.Ingress) []string {
	if !o.ours(in) {
		return nil
	}
	return translate.AnnotationProblems(in)
}

// Names reports whether an object that the gateway serves names a Secret or a ConfigMap, and may
// use it. The account of the gateway may read these of the two resources, and no others.
func (o *Objects) Names(resource, namespace, name string) bool {
	found := types.NamespacedName{Namespace: namespace, Name: name}
	switch resource {
	case "secrets":
		return o.namesSecret(found)
	case "configmaps":
		return o.namesConfigMap(found)
	}
	return false
}

func (o *Objects) namesConfigMap(found types.NamespacedName) bool {
	// Policies name those of their own namespace.
	if len(indexed[gatewayv1.BackendTLSPolicy](o.policies, mapIndex, found.String())) > 0 {
		return true
	}
	cluster := view{Objects: o}
	return slices.ContainsFunc(list[gatewayv1.Gateway](o.gateways), func(g *gatewayv1.Gateway) bool {
		return slices.Contains(translate.GatewayAuthorities(cluster, g), found)
	})
}

func (o *Objects) namesSecret(secret types.NamespacedName) bool {
	cluster := view{Objects: o}
	if slices.ContainsFunc(indexed[networkingv1.Ingress](o.ingresses, secretIndex, secret.String()), o.ours) {
		return true
	}
	for _, g := range list[gatewayv1.Gateway](o.gateways) {
		if slices.Contains(translate.Secrets(cluster, g), secret) {
			return true
		}
	}
	for _, s := range list[gatewayv1.ListenerSet](o.listenerSets) {
		if slices.Contains(translate.SetSecrets(cluster, s), secret) {
			return true
		}
	}
	return false
}
