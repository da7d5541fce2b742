// Package restoptions gives each registry the storage of its resource.
//
// It owns the place of each resource among the keys, the version and the encoding in which its
// objects are stored, and the choice of resources whose objects are kept decoded. Package storage
// makes the storage itself.
package restoptions

import (
	"errors"
	"fmt"
	"log/slog"
	"path"
	"time"

	"github.com/barque/barque/apiserver/objectcache"
	"github.com/barque/barque/apiserver/rawlist"
	"github.com/barque/barque/apiserver/storage"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/registry/generic"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/apiserver/pkg/storage/value"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	flowcontrolrequest "k8s.io/apiserver/pkg/util/flowcontrol/request"
	"k8s.io/client-go/tools/cache"
)

const (
	// DefaultPrefix is the prefix of the keys of Kubernetes objects.
	DefaultPrefix = "/registry"
	// DefaultMediaType is how objects are encoded in the store.
	DefaultMediaType = "application/vnd.kubernetes.protobuf"

	countMetricPollPeriod = time.Minute

	// deleteCollectionWorkers is how many objects of a collection are deleted at a time. Each waits
	// for the disks of a quorum, and writes that wait at the same time become one log entry: 64
	// clients create nearly twice as many objects in a second as 16 (docs/benchmarks.md).
	deleteCollectionWorkers = 64
)

// Config configures how all resources of a server are stored.
type Config struct {
	Backend storage.Backend
	// Scheme knows every kind that is stored, and by the priority of versions in which one.
	Scheme *runtime.Scheme
	// Serializer encodes the kinds of Scheme; a serializer.CodecFactory is one.
	Serializer runtime.StorageSerializer
	// MediaType of the stored objects; "" means DefaultMediaType.
	MediaType string
	// Prefix of all keys; "" means DefaultPrefix.
	Prefix string
	// StorageVersions names the versions of resources that are not stored in the version that
	// their group prefers.
	StorageVersions map[schema.GroupResource]schema.GroupVersion
	// ResourcePrefixes are the prefixes of resources that are not stored under their own name. nil
	// means DefaultResourcePrefixes.
	ResourcePrefixes map[schema.GroupResource]string
	// Together lists resources that are the same objects, served by several groups. Each is stored
	// as the first of its list.
	Together [][]schema.GroupResource
	// Objects has objects as they were decoded; nil makes one of objectcache.DefaultSize bytes.
	// Several Getters may share it.
	Objects *objectcache.Cache
	// Uncached lists the resources whose objects are not kept decoded. nil means DefaultUncached.
	Uncached []schema.GroupResource
	// Transformers encrypt resources at rest; nil keeps all as they are.
	Transformers value.ResourceTransformers
	// CountTracker gets the number of objects of each resource, for priority and fairness; nil
	// makes one.
	CountTracker flowcontrolrequest.StorageObjectCountTracker
	// ProgressInterval of idle watches; 0 means DefaultProgressInterval.
	ProgressInterval time.Duration
	// RawLists answers lists with stored bytes; nil does not. Several Getters may share it.
	RawLists *rawlist.Cache
	Logger   *slog.Logger
}

// DefaultResourcePrefixes are the places that Kubernetes has always given to these resources.
func DefaultResourcePrefixes() map[schema.GroupResource]string {
	return map[schema.GroupResource]string{
		{Resource: "replicationcontrollers"}:                "controllers",
		{Resource: "endpoints"}:                             "services/endpoints",
		{Resource: "services"}:                              "services/specs",
		{Resource: "nodes"}:                                 "minions",
		{Group: "networking.k8s.io", Resource: "ingresses"}: "ingress",
	}
}

// DefaultUncached are the resources that are written far more than they are read: decoded objects
// of them would only displace others.
func DefaultUncached() []schema.GroupResource {
	return []schema.GroupResource{{Resource: "events"}, {Group: "events.k8s.io", Resource: "events"}}
}

// Getter hands each registry the storage for its resource.
type Getter struct {
	cfg      Config
	factory  *serverstorage.DefaultStorageFactory
	uncached map[schema.GroupResource]bool
	// companions of resources, see Accompany.
	companions map[schema.GroupResource]storage.Companions
}

var _ generic.RESTOptionsGetter = (*Getter)(nil)

// New makes a Getter.
func New(cfg Config) (*Getter, error) {
	if cfg.Backend == nil || cfg.Scheme == nil || cfg.Serializer == nil {
		return nil, errors.New("REST options need a backend, a scheme and a serializer")
	}
	if cfg.MediaType == "" {
		cfg.MediaType = DefaultMediaType
	}
	if cfg.Prefix == "" {
		cfg.Prefix = DefaultPrefix
	}
	if cfg.ResourcePrefixes == nil {
		cfg.ResourcePrefixes = DefaultResourcePrefixes()
	}
	if cfg.Uncached == nil {
		cfg.Uncached = DefaultUncached()
	}
	if cfg.Objects == nil {
		cfg.Objects = objectcache.New(objectcache.DefaultSize)
	}
	if cfg.CountTracker == nil {
		cfg.CountTracker = flowcontrolrequest.NewStorageObjectCountTracker()
	}

	encoding := serverstorage.NewDefaultResourceEncodingConfigForEffectiveVersion(cfg.Scheme, nil)
	for resource, version := range cfg.StorageVersions {
		encoding.SetResourceEncoding(resource, version,
			schema.GroupVersion{Group: resource.Group, Version: runtime.APIVersionInternal})
	}
	o := &Getter{
		cfg: cfg,
		factory: serverstorage.NewDefaultStorageFactory(
			storagebackend.Config{
				Prefix:                    cfg.Prefix,
				EventsHistoryWindow:       storagebackend.DefaultEventsHistoryWindow,
				CountMetricPollPeriod:     countMetricPollPeriod,
				StorageObjectCountTracker: cfg.CountTracker,
			},
			cfg.MediaType, cfg.Serializer, encoding, everyResource{}, cfg.ResourcePrefixes),
		uncached: make(map[schema.GroupResource]bool, len(cfg.Uncached)),
	}
	for _, resources := range cfg.Together {
		o.factory.AddCohabitatingResources(resources...)
	}
	for _, resource := range cfg.Uncached {
		o.uncached[resource] = true
	}
	return o, nil
}

// GetRESTOptions implements generic.RESTOptionsGetter.
func (o *Getter) GetRESTOptions(
	resource schema.GroupResource, example runtime.Object,
) (generic.RESTOptions, error) {
	config, err := o.factory.NewConfig(resource, example)
	if err != nil {
		return generic.RESTOptions{}, fmt.Errorf("no storage for %s: %w", resource, err)
	}
	decorator := o.cached
	if o.uncached[resource] {
		decorator = o.raw
	}
	return o.options(config, o.factory.ResourcePrefix(resource), decorator), nil
}

func (o *Getter) options(
	config *storagebackend.ConfigForResource, prefix string, decorator generic.StorageDecorator,
) generic.RESTOptions {
	if o.cfg.Transformers != nil {
		config.Transformer = o.cfg.Transformers.TransformerForResource(config.GroupResource)
	}
	return generic.RESTOptions{
		StorageConfig:             config,
		Decorator:                 decorator,
		ResourcePrefix:            prefix,
		EnableGarbageCollection:   true,
		DeleteCollectionWorkers:   deleteCollectionWorkers,
		CountMetricPollPeriod:     countMetricPollPeriod,
		StorageObjectCountTracker: o.cfg.CountTracker,
	}
}

// CustomResources returns the options of resources whose kinds are in no scheme. They are stored
// as JSON below the name of their group.
func (o *Getter) CustomResources() generic.RESTOptionsGetter { return customResources{o} }

type customResources struct{ *Getter }

// GetRESTOptions implements generic.RESTOptionsGetter. The caller wraps the codec: it knows the
// schema, and how to convert between versions.
func (o customResources) GetRESTOptions(resource schema.GroupResource, _ runtime.Object) (generic.RESTOptions, error) {
	config := o.factory.StorageConfig
	config.Codec = unstructured.UnstructuredJSONScheme
	return o.options(config.ForResource(resource), CustomResourcePrefix(resource), o.cachedGathered), nil
}

// store makes the storage of a resource.
func (o *Getter) store(
	config *storagebackend.ConfigForResource, resourcePrefix string, newObject, newList func() runtime.Object,
	objects *objectcache.Cache, triggers apistorage.IndexerFuncs,
) (*storage.Store, error) {
	return storage.New(storage.Config{
		Backend:          o.cfg.Backend,
		Codec:            config.Codec,
		New:              newObject,
		NewList:          newList,
		RawLists:         o.cfg.RawLists,
		Objects:          objects,
		Triggers:         triggers,
		Prefix:           config.Prefix,
		ResourcePrefix:   resourcePrefix,
		GroupResource:    config.GroupResource,
		Transformer:      config.Transformer,
		ProgressInterval: o.cfg.ProgressInterval,
		// Priority and fairness takes objects of unknown size for the largest there can be, and
		// gives a list of a few of them all the seats that a request can have.
		EstimateSizes: utilfeature.DefaultFeatureGate.Enabled(features.SizeBasedListCostEstimate),
		Companions:    o.companions[config.GroupResource],
		Logger:        o.cfg.Logger,
	})
}

// raw is a generic.StorageDecorator of resources whose objects are not kept decoded.
func (o *Getter) raw(
	config *storagebackend.ConfigForResource, resourcePrefix string, _ func(runtime.Object) (string, error),
	newObject, newList func() runtime.Object, _ apistorage.AttrFunc, _ apistorage.IndexerFuncs, _ *cache.Indexers,
) (apistorage.Interface, factory.DestroyFunc, error) {
	o.place(config, resourcePrefix)
	store, err := o.store(config, resourcePrefix, newObject, newList, nil, nil)
	if err != nil {
		return nil, nil, err
	}
	return store, store.Close, nil
}

// cached is a generic.StorageDecorator of resources whose objects are kept decoded. A registry's
// subresources share its storage and close it again.
func (o *Getter) cached(
	config *storagebackend.ConfigForResource, resourcePrefix string, _ func(runtime.Object) (string, error),
	newObject, newList func() runtime.Object, _ apistorage.AttrFunc, triggers apistorage.IndexerFuncs,
	_ *cache.Indexers,
) (apistorage.Interface, factory.DestroyFunc, error) {
	o.place(config, resourcePrefix)
	store, err := o.store(config, resourcePrefix, newObject, newList, o.cfg.Objects, triggers)
	if err != nil {
		return nil, nil, err
	}
	return store, store.Close, nil
}

// place gives the transformers the place of a resource.
func (o *Getter) place(config *storagebackend.ConfigForResource, resourcePrefix string) {
	if to, ok := o.cfg.Transformers.(Placed); ok {
		to.Place(config.GroupResource, path.Join(config.Prefix, resourcePrefix)+"/")
	}
}

// Accompany sets the storage.Companions of a resource. It is to be called before the resource is
// built.
func (o *Getter) Accompany(resource schema.GroupResource, with storage.Companions) {
	if o.companions == nil {
		o.companions = make(map[schema.GroupResource]storage.Companions)
	}
	o.companions[resource] = with
}

// Objects returns the storage.Objects of a resource, of the type of an example. prefix is the
// prefix of its keys where it is not the resource's own.
func (o *Getter) Objects(
	resource schema.GroupResource, example runtime.Object, prefix string,
) (*storage.Objects, error) {
	config, err := o.factory.NewConfig(resource, example)
	if err != nil {
		return nil, fmt.Errorf("no storage for %s: %w", resource, err)
	}
	if prefix == "" {
		prefix = o.factory.ResourcePrefix(resource)
	}
	if o.cfg.Transformers != nil {
		config.Transformer = o.cfg.Transformers.TransformerForResource(resource)
	}
	prefix = "/" + prefix + "/"
	store, err := o.store(config, prefix, func() runtime.Object { return example.DeepCopyObject() }, nil, nil, nil)
	if err != nil {
		return nil, err
	}
	return store.Objects(), nil
}

// Placed is a value.ResourceTransformers that needs to know where the objects of a resource are.
type Placed interface {
	value.ResourceTransformers
	// Place is called when the storage of a resource is made. The prefix begins the keys of its
	// objects. It is not called for custom resources: see CustomResourcePrefix.
	Place(resource schema.GroupResource, prefix string)
}

// CustomResourcePrefix begins the keys of a custom resource's objects, below DefaultPrefix.
func CustomResourcePrefix(of schema.GroupResource) string { return of.Group + "/" + of.Resource }

// everyResource is an APIResourceConfigSource: a server serves all resources that it stores.
type everyResource struct{}

func (everyResource) ResourceEnabled(schema.GroupVersionResource) bool           { return true }
func (everyResource) AnyResourceForGroupEnabled(string) bool                     { return true }
func (everyResource) ResourceExplicitlyEnabled(schema.GroupVersionResource) bool { return true }
func (everyResource) VersionExplicitlyEnabled(schema.GroupVersion) bool          { return true }
