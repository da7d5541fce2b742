package storage

import (
	"context"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/storage"
)

// askingCost is how many objects can be had in a list of the watch cache for the price of asking
// for one.
const askingCost = 16

// cachedObjects are what the watch cache has of the objects that one list decodes. The first ones
// are asked for one by one. When that has cost as much as a list of all, they are listed.
type cachedObjects struct {
	*resuming
	key   string         // of the list
	list  runtime.Object // of the kind that is listed
	worth int            // after how many objects they are listed; 0 for never
	asked int
	// items are the listed ones, and at the place of each by its revision.
	items reflect.Value
	at    map[uint64]int
}

// counted tells whether the watch cache has counted a list of these objects.
func (c *cachedObjects) counted() bool { return c.at != nil }

// get returns a copy of an object as the watch cache has it, nil when it does not have it at that
// revision. The copy is shallow: nothing that it refers to may be changed.
func (c *cachedObjects) get(ctx context.Context, key string, revision uint64) runtime.Object {
	if c.asked++; c.worth > 0 && c.asked > c.worth {
		c.listAll(ctx)
		c.worth = 0
	}
	if c.at != nil {
		return c.listed(key, revision)
	}
	obj := c.store.newObject()
	key = "/" + strings.TrimPrefix(key, c.store.pathPrefix)
	if err := c.CacheDelegator.Get(ctx, key, storage.GetOptions{ResourceVersion: "0"}, obj); err != nil {
		return nil
	}
	if has, err := c.store.versioner.ObjectResourceVersion(obj); err != nil || has != revision {
		return nil
	}
	return obj
}

// listAll takes what the watch cache has now. Where that fails, objects are asked for as before.
func (c *cachedObjects) listAll(ctx context.Context) {
	list := reflect.New(reflect.TypeOf(c.list).Elem()).Interface().(runtime.Object)
	opts := storage.ListOptions{ResourceVersion: "0", Recursive: true, Predicate: storage.Everything}
	if err := c.CacheDelegator.GetList(ctx, c.key, opts, list); err != nil {
		return
	}
	ptr, err := meta.GetItemsPtr(list)
	if err != nil {
		return
	}
	c.items = reflect.ValueOf(ptr).Elem()
	c.at = make(map[uint64]int, c.items.Len())
	for i := range c.items.Len() {
		if revision, err := c.store.versioner.ObjectResourceVersion(c.item(i)); err == nil {
			c.at[revision] = i
		}
	}
}

func (c *cachedObjects) item(i int) runtime.Object {
	return c.items.Index(i).Addr().Interface().(runtime.Object)
}

// listed returns one of the listed objects. A transaction may write several objects at one
// revision.
func (c *cachedObjects) listed(key string, revision uint64) runtime.Object {
	i, ok := c.at[revision]
	if !ok {
		return nil
	}
	obj := c.item(i)
	m, err := meta.Accessor(obj)
	if err != nil || !endsWith(key, m.GetNamespace(), m.GetName()) {
		return nil
	}
	return obj
}

// endsWith tells whether a key in the store is that of an object. Keys of objects without a
// namespace have none.
func endsWith(key, namespace, name string) bool {
	key, ok := strings.CutSuffix(key, name)
	if ok && namespace != "" {
		key, ok = strings.CutSuffix(key, namespace+"/")
	}
	return ok && strings.HasSuffix(key, "/")
}
