package apiobjects

import (
	"context"
	"errors"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// errStopped is the cause with which watches end.
var errStopped = errors.New("no pod refers to the object any more")

// syncPatience is how long a pod waits for the first look at an object before it tries again later.
const syncPatience = 10 * time.Second

type objectKey struct {
	kind, namespace, name string
}

// WatchedObjects keeps each object that a pod has asked for up to date by a watch of that one
// object, until all such pods are forgotten, and reports its changes. A node so sees the Secrets of
// its own pods and no others.
type WatchedObjects struct {
	client  kubernetes.Interface
	changed func(uid types.UID)
	ctx     context.Context
	stop    context.CancelCauseFunc
	watches sync.WaitGroup

	mu   sync.Mutex
	live map[objectKey]*watched
}

type watched struct {
	store  cache.Store
	synced cache.DoneChecker
	stop   context.CancelCauseFunc
	pods   map[types.UID]bool
}

// NewObjects returns a cache over client. changed is called with each pod that refers to an object
// that has changed; it must not block. Close ends it.
func NewObjects(client kubernetes.Interface, changed func(uid types.UID)) *WatchedObjects {
	ctx, stop := context.WithCancelCause(context.Background())
	return &WatchedObjects{client: client, changed: changed, ctx: ctx, stop: stop, live: map[objectKey]*watched{}}
}

// Close ends all watches and waits for them.
func (o *WatchedObjects) Close() {
	o.stop(errStopped)
	o.watches.Wait()
}

// ConfigMap implements Objects.
func (o *WatchedObjects) ConfigMap(ctx context.Context, pod *v1.Pod, name string) (*v1.ConfigMap, error) {
	obj, err := o.get(ctx, pod, objectKey{"configmaps", pod.Namespace, name})
	if err != nil {
		return nil, err
	}
	return obj.(*v1.ConfigMap), nil
}

// Secret implements Objects.
func (o *WatchedObjects) Secret(ctx context.Context, pod *v1.Pod, name string) (*v1.Secret, error) {
	obj, err := o.get(ctx, pod, objectKey{"secrets", pod.Namespace, name})
	if err != nil {
		return nil, err
	}
	return obj.(*v1.Secret), nil
}

func (o *WatchedObjects) get(ctx context.Context, pod *v1.Pod, key objectKey) (any, error) {
	w := o.watch(key, pod.UID)
	ctx, cancel := context.WithTimeout(ctx, syncPatience)
	defer cancel()
	select {
	case <-w.synced.Done():
	case <-ctx.Done():
		return nil, apierrors.NewTimeoutError("the API server has not answered yet", 1)
	}
	obj, ok, err := w.store.GetByKey(key.namespace + "/" + key.name)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: key.kind}, key.name)
	}
	return obj, nil
}

// watch starts the watch of an object, or joins a running one.
func (o *WatchedObjects) watch(key objectKey, uid types.UID) *watched {
	o.mu.Lock()
	defer o.mu.Unlock()
	if w := o.live[key]; w != nil {
		w.pods[uid] = true
		return w
	}
	ctx, stop := context.WithCancelCause(o.ctx)
	w := &watched{stop: stop, pods: map[types.UID]bool{uid: true}}
	lw, example := o.listWatch(key)
	notify := func() {
		if !cache.IsDone(w.synced) {
			return // a pod that waits for it will see it
		}
		o.mu.Lock()
		defer o.mu.Unlock()
		for uid := range w.pods {
			o.changed(uid)
		}
	}
	store, controller := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.ToListWatcherWithWatchListSemantics(lw, o.client),
		ObjectType:    example,
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(any) { notify() },
			UpdateFunc: func(any, any) { notify() },
			DeleteFunc: func(any) { notify() },
		},
	})
	w.store, w.synced = store, controller.HasSyncedChecker()
	o.live[key] = w
	o.watches.Go(func() { controller.RunWithContext(ctx) }) // ends with Forget or Close
	return w
}

func (o *WatchedObjects) listWatch(key objectKey) (*cache.ListWatch, runtime.Object) {
	only := func(opts *metav1.ListOptions) {
		opts.FieldSelector = fields.OneTermEqualSelector("metadata.name", key.name).String()
	}
	if key.kind == "secrets" {
		secrets := o.client.CoreV1().Secrets(key.namespace)
		return &cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
				only(&opts)
				return secrets.List(ctx, opts)
			},
			WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
				only(&opts)
				return secrets.Watch(ctx, opts)
			},
		}, &v1.Secret{}
	}
	configMaps := o.client.CoreV1().ConfigMaps(key.namespace)
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			only(&opts)
			return configMaps.List(ctx, opts)
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			only(&opts)
			return configMaps.Watch(ctx, opts)
		},
	}, &v1.ConfigMap{}
}

// Forget implements Objects.
func (o *WatchedObjects) Forget(uid types.UID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for key, w := range o.live {
		delete(w.pods, uid)
		if len(w.pods) == 0 {
			w.stop(errStopped)
			delete(o.live, key)
		}
	}
}
