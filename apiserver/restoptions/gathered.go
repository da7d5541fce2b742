package restoptions

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	apistorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/apiserver/rawlist"
	"github.com/barque/barque/apiserver/watchwriter"
)

// gathered is a storage whose lists and watches go to clients unchanged.
type gathered struct{ apistorage.Interface }

// GetList implements apistorage.Interface.
func (g gathered) GetList(ctx context.Context, key string, opts apistorage.ListOptions, list runtime.Object) error {
	ctx, raw := rawlist.Start(ctx)
	err := g.Interface.GetList(ctx, key, opts, list)
	raw.Respond()
	return err
}

// Watch implements apistorage.Interface.
func (g gathered) Watch(ctx context.Context, key string, opts apistorage.ListOptions) (watch.Interface, error) {
	w, err := g.Interface.Watch(ctx, key, opts)
	if err != nil {
		return nil, err
	}
	return watchwriter.Gather(ctx, w), nil
}

// cachedGathered is a generic.StorageDecorator of resources whose objects are kept decoded, for
// registries that do not change listed and watched objects.
func (o *Getter) cachedGathered(
	config *storagebackend.ConfigForResource, resourcePrefix string, _ func(runtime.Object) (string, error),
	newObject, newList func() runtime.Object, _ apistorage.AttrFunc, triggers apistorage.IndexerFuncs,
	_ *cache.Indexers,
) (apistorage.Interface, factory.DestroyFunc, error) {
	store, err := o.store(config, resourcePrefix, newObject, newList, o.cfg.Objects, triggers)
	if err != nil {
		return nil, nil, err
	}
	return gathered{store}, store.Close, nil
}
