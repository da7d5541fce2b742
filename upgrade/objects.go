package upgrade

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// Objects are the Upgrades, as a server follows them.
type Objects struct {
	informer cache.SharedIndexInformer
	logger   *slog.Logger

	mu      sync.Mutex
	changed chan struct{}
}

// NewObjects returns objects that are read as the user of config.
func NewObjects(config *rest.Config, logger *slog.Logger) (*Objects, error) {
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client of Upgrades: %w", err)
	}
	o := &Objects{logger: logger, changed: make(chan struct{}),
		informer: dynamicinformer.NewDynamicSharedInformerFactory(client, 0).ForResource(Resource).Informer()}
	_, err = o.informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(any) { o.touch() }, UpdateFunc: func(any, any) { o.touch() },
		DeleteFunc: func(any) { o.touch() }})
	if err != nil {
		return nil, fmt.Errorf("watch Upgrades: %w", err)
	}
	return o, nil
}

func (o *Objects) touch() {
	o.mu.Lock()
	defer o.mu.Unlock()
	close(o.changed)
	o.changed = make(chan struct{})
}

// Changed returns a channel that is closed at the next change.
func (o *Objects) Changed() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.changed
}

// Run follows the objects until ctx ends.
func (o *Objects) Run(ctx context.Context) error {
	o.informer.RunWithContext(ctx)
	return nil
}

// Synced reports whether all objects are known.
func (o *Objects) Synced() bool { return o.informer.HasSynced() }

// All returns all Upgrades.
func (o *Objects) All() (all []*Object) {
	for _, item := range o.informer.GetStore().List() {
		u, ok := item.(*unstructured.Unstructured)
		if !ok {
			continue
		}
		of, err := Read(u)
		if err != nil {
			o.logger.Warn("an object is left out", "err", err)
			continue
		}
		all = append(all, of)
	}
	return all
}

// Last returns the Upgrade that is under way, or has not gone well; nil if there is none.
func (o *Objects) Last() *Object {
	all := o.All()
	if now := current(all); now != nil {
		return now
	}
	if len(all) == 0 {
		return nil
	}
	var last *Object
	for _, of := range all {
		if of.Status.Ended != nil && (last == nil || of.Status.Ended.After(last.Status.Ended.Time)) {
			last = of
		}
	}
	if last == nil || last.Status.Phase == Complete {
		return nil
	}
	return last
}
