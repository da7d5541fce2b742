// Package apiservices has the APIServices of a cluster: the leader registers the groups that
// servers serve themselves, and writes whether other programs' groups are available; the list of
// groups follows from them.
package apiservices

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdinformers "k8s.io/apiextensions-apiserver/pkg/client/informers/externalversions/apiextensions/v1"
	crdlisters "k8s.io/apiextensions-apiserver/pkg/client/listers/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	apiserviceinformers "k8s.io/kube-aggregator/pkg/client/informers/externalversions/apiregistration/v1"
	apiservicelisters "k8s.io/kube-aggregator/pkg/client/listers/apiregistration/v1"
)

// managedLabel marks APIServices that are made here: "onstart" those of Barque's own kinds, "true"
// those of custom resources. One without it belongs to a user and is left alone.
const (
	managedLabel  = "kube-aggregator.kubernetes.io/automanaged"
	managedOwn    = "onstart"
	managedCustom = "true"
)

const (
	apiServicesPath = "/apis/apiregistration.k8s.io/v1/apiservices"
	// Custom resources come after all built-in groups, and their versions by the rules for names.
	customGroupPriority, customVersionPriority = 1000, 100
	// otherGroupPriority is the priority of a built-in group that groupPriorities does not name.
	otherGroupPriority = 15000
	registerRetry      = time.Second
)

// groupPriorities order the built-in groups for clients that look for a kind without its group.
var groupPriorities = map[string]int32{
	"":                             18000,
	"apps":                         17800,
	"events.k8s.io":                17750,
	"authentication.k8s.io":        17700,
	"authorization.k8s.io":         17600,
	"autoscaling":                  17500,
	"batch":                        17400,
	"certificates.k8s.io":          17300,
	"networking.k8s.io":            17200,
	"policy":                       17100,
	"rbac.authorization.k8s.io":    17000,
	"storage.k8s.io":               16800,
	"apiextensions.k8s.io":         16700,
	"admissionregistration.k8s.io": 16700,
	"scheduling.k8s.io":            16600,
	"coordination.k8s.io":          16500,
	"node.k8s.io":                  16300,
	"discovery.k8s.io":             16200,
	"resource.k8s.io":              16200,
	"flowcontrol.apiserver.k8s.io": 16100,
	"storagemigration.k8s.io":      15800,
}

// Registration keeps an APIService for every group and version that the cluster serves itself. The
// leader does it for all servers.
type Registration struct {
	own      map[string]*apiregistrationv1.APIService
	crds     crdlisters.CustomResourceDefinitionLister
	existing apiservicelisters.APIServiceLister
	synced   []cache.InformerSynced
	changed  chan struct{}
}

// Config has the groups and the informers of a server.
type Config struct {
	// Paths are those that the server of Barque's own kinds lists.
	Paths []string
	// Scheme has these kinds, and the priorities of their versions.
	Scheme *runtime.Scheme
	// Unregistered groups are served without an APIService.
	Unregistered []schema.GroupVersion
	Definitions  crdinformers.CustomResourceDefinitionInformer
	APIServices  apiserviceinformers.APIServiceInformer
	// Discovery gets the priorities of Barque's own groups.
	Discovery aggregated.ResourceManager
}

// New makes a Registration.
func New(cfg Config) (*Registration, error) {
	r := &Registration{
		own:  ownServices(cfg.Paths, cfg.Scheme, cfg.Unregistered),
		crds: cfg.Definitions.Lister(), existing: cfg.APIServices.Lister(),
		changed: make(chan struct{}, 1),
	}
	tell := func(any) {
		select {
		case r.changed <- struct{}{}:
		default:
		}
	}
	for _, informer := range []cache.SharedIndexInformer{cfg.Definitions.Informer(), cfg.APIServices.Informer()} {
		handler, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc: tell, UpdateFunc: func(_, now any) { tell(now) }, DeleteFunc: tell,
		})
		if err != nil {
			return nil, err
		}
		r.synced = append(r.synced, handler.HasSynced)
	}
	for _, own := range r.own {
		cfg.Discovery.SetGroupVersionPriority(
			metav1.GroupVersion{Group: own.Spec.Group, Version: own.Spec.Version}, int(own.Spec.GroupPriorityMinimum),
			int(own.Spec.VersionPriority))
	}
	return r, nil
}

// ownServices describes the groups and versions under the paths of a server.
func ownServices(
	paths []string, scheme *runtime.Scheme, unregistered []schema.GroupVersion,
) map[string]*apiregistrationv1.APIService {
	out := map[string]*apiregistrationv1.APIService{}
	for _, path := range paths {
		var gv schema.GroupVersion
		switch parts := strings.Split(path, "/"); {
		case path == "/api/v1":
			gv.Version = "v1"
		case len(parts) == 4 && parts[1] == "apis":
			gv = schema.GroupVersion{Group: parts[2], Version: parts[3]}
		default:
			continue
		}
		if slices.Contains(unregistered, gv) {
			continue
		}
		versions := scheme.PrioritizedVersionsForGroup(gv.Group)
		rank := max(1, len(versions)-max(0, slices.Index(versions, gv)))
		own := newAPIService(gv, managedOwn, cmp.Or(groupPriorities[gv.Group], otherGroupPriority), 15*int32(rank))
		out[own.Name] = own
	}
	return out
}

func newAPIService(gv schema.GroupVersion, managed string, group, version int32) *apiregistrationv1.APIService {
	return &apiregistrationv1.APIService{
		TypeMeta: metav1.TypeMeta{APIVersion: apiregistrationv1.SchemeGroupVersion.String(), Kind: "APIService"},
		ObjectMeta: metav1.ObjectMeta{Name: gv.Version + "." + gv.Group,
			Labels: map[string]string{managedLabel: managed}},
		Spec: apiregistrationv1.APIServiceSpec{
			Group: gv.Group, Version: gv.Version, GroupPriorityMinimum: group, VersionPriority: version,
		},
	}
}

// customServices describes the groups and versions of custom resources.
func customServices(crds []*apiextensionsv1.CustomResourceDefinition) map[string]*apiregistrationv1.APIService {
	out := map[string]*apiregistrationv1.APIService{}
	for _, crd := range crds {
		for _, v := range crd.Spec.Versions {
			if v.Served {
				custom := newAPIService(schema.GroupVersion{Group: crd.Spec.Group, Version: v.Name}, managedCustom,
					customGroupPriority, customVersionPriority)
				out[custom.Name] = custom
			}
		}
	}
	return out
}

// Ensure registers Barque's own kinds. It reads the APIServices from the API, so that it can run
// before this server's informers are synced.
func (r *Registration) Ensure(ctx context.Context, client restclient.Interface) error {
	raw, err := client.Get().AbsPath(apiServicesPath).SetHeader("Accept", runtime.ContentTypeJSON).DoRaw(ctx)
	if err != nil {
		return fmt.Errorf("listing APIServices: %w", err)
	}
	var list apiregistrationv1.APIServiceList
	if err := json.Unmarshal(raw, &list); err != nil {
		return fmt.Errorf("listing APIServices: %w", err)
	}
	existing := map[string]*apiregistrationv1.APIService{}
	for i := range list.Items {
		existing[list.Items[i].Name] = &list.Items[i]
	}
	return register(ctx, client, r.own, existing)
}

// Run keeps APIServices as they should be until ctx ends.
func (r *Registration) Run(ctx context.Context, client kubernetes.Interface, failed func(error)) {
	if !cache.WaitForCacheSync(ctx.Done(), r.synced...) {
		return
	}
	for {
		var again <-chan time.Time
		if err := r.Pass(ctx, client.Discovery().RESTClient()); err != nil && ctx.Err() == nil {
			failed(err)
			again = time.After(registerRetry)
		}
		select {
		case <-ctx.Done():
			return
		case <-r.changed:
		case <-again:
		}
	}
}

// Pass corrects all APIServices, and deletes those whose group is gone.
func (r *Registration) Pass(ctx context.Context, client restclient.Interface) error {
	crds, err := r.crds.List(labels.Everything())
	if err != nil {
		return err
	}
	listed, err := r.existing.List(labels.Everything())
	if err != nil {
		return err
	}
	existing := make(map[string]*apiregistrationv1.APIService, len(listed))
	for _, e := range listed {
		existing[e.Name] = e
	}
	want := customServices(crds)
	maps.Copy(want, r.own)
	errs := []error{register(ctx, client, want, existing)}
	for name, e := range existing {
		if want[name] == nil && e.Labels[managedLabel] != "" && e.DeletionTimestamp == nil {
			errs = append(errs, unregister(ctx, client, e))
		}
	}
	return errors.Join(errs...)
}

// register creates missing APIServices and corrects those that differ.
func register(
	ctx context.Context, client restclient.Interface, want, existing map[string]*apiregistrationv1.APIService,
) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(want)) {
		w, e := want[name], existing[name]
		var err error
		switch {
		case e == nil:
			err = send(ctx, client.Post().AbsPath(apiServicesPath), w)
		case e.Labels[managedLabel] == "" || e.DeletionTimestamp != nil:
			continue // a user's, or one that will be made again when it has gone
		case e.Labels[managedLabel] != w.Labels[managedLabel] || !sameSpec(e, w):
			changed := e.DeepCopy()
			changed.TypeMeta = w.TypeMeta
			changed.Labels[managedLabel] = w.Labels[managedLabel]
			changed.Spec = w.Spec
			err = send(ctx, client.Put().AbsPath(apiServicesPath, name), changed)
		}
		// An APIService that another server has written first arrives as a change, and is checked
		// again.
		if err != nil && !apierrors.IsAlreadyExists(err) && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("APIService %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

func sameSpec(a, b *apiregistrationv1.APIService) bool {
	return a.Spec.Service == nil && a.Spec.Group == b.Spec.Group && a.Spec.Version == b.Spec.Version &&
		a.Spec.GroupPriorityMinimum == b.Spec.GroupPriorityMinimum && a.Spec.VersionPriority == b.Spec.VersionPriority
}

func unregister(ctx context.Context, client restclient.Interface, e *apiregistrationv1.APIService) error {
	options, err := json.Marshal(metav1.DeleteOptions{
		TypeMeta:      metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"},
		Preconditions: metav1.NewUIDPreconditions(string(e.UID)),
	})
	if err != nil {
		return err
	}
	err = client.Delete().AbsPath(apiServicesPath, e.Name).SetHeader("Content-Type", runtime.ContentTypeJSON).Body(
		options).Do(ctx).Error()
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("APIService %s: %w", e.Name, err)
	}
	return nil
}

// send writes an APIService as JSON: the client of the leader's work knows no such kind.
func send(ctx context.Context, r *restclient.Request, o *apiregistrationv1.APIService) error {
	body, err := json.Marshal(o)
	if err != nil {
		return err
	}
	return r.SetHeader("Content-Type", runtime.ContentTypeJSON).Body(body).Do(ctx).Error()
}
