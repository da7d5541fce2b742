// Package rootca publishes the cluster's CA certificate in every namespace. Pods trust the API
// server by this ConfigMap.
package rootca

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/controllers/runtime"
)

// Name of the ConfigMap, and the key of the certificates in it.
const (
	Name = "kube-root-ca.crt"
	key  = "ca.crt"
)

// Config of a Controller.
type Config struct {
	Informers informers.SharedInformerFactory
	Logger    *slog.Logger
	CA        CA
}

// CA provides the bundle to publish.
type CA interface {
	// PEM returns the bundle, and Changed a channel that is closed at its next change.
	PEM() []byte
	Changed() <-chan struct{}
}

// Controller keeps the ConfigMaps as they should be.
type Controller struct {
	cfg            Config
	namespaces     cache.SharedIndexInformer
	configMaps     cache.SharedIndexInformer
	listNamespaces corelisters.NamespaceLister
	listConfigMaps corelisters.ConfigMapLister
}

// New asks the factory for the informers it needs; it is called before they are started.
func New(cfg Config) (*Controller, error) {
	if cfg.CA == nil || !bytes.Contains(cfg.CA.PEM(), []byte("-----BEGIN CERTIFICATE-----")) {
		return nil, errors.New("controllers/rootca: CA holds no PEM certificate")
	}
	core := cfg.Informers.Core().V1()
	return &Controller{
		cfg:        cfg,
		namespaces: core.Namespaces().Informer(), listNamespaces: core.Namespaces().Lister(),
		configMaps: core.ConfigMaps().Informer(), listConfigMaps: core.ConfigMaps().Lister(),
	}, nil
}

// Run reconciles for one term of leadership. The keys are namespaces.
func (c *Controller) Run(ctx context.Context, client kubernetes.Interface) error {
	loop := runtime.NewLoop("rootca", 2, c.cfg.Logger,
		func(ctx context.Context, key runtime.Key) (time.Duration, error) {
			return 0, c.reconcile(ctx, client, key.Name)
		})
	runtime.Watch(loop, c.namespaces, func(_, now *corev1.Namespace) []runtime.Key {
		if now == nil {
			return nil
		}
		return []runtime.Key{{Name: now.Name}}
	})
	runtime.Watch(loop, c.configMaps, func(old, now *corev1.ConfigMap) []runtime.Key {
		if now == nil {
			now = old
		}
		if now.Name != Name {
			return nil
		}
		return []runtime.Key{{Name: now.Namespace}}
	})
	var following sync.WaitGroup
	defer following.Wait()
	changed := c.cfg.CA.Changed()                         // before the first look at it
	following.Go(func() { c.follow(ctx, loop, changed) }) // ends with ctx
	return loop.Run(ctx)
}

// follow looks at all namespaces when the CAs change.
func (c *Controller) follow(ctx context.Context, loop *runtime.Loop, changed <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
		changed = c.cfg.CA.Changed()
		namespaces, err := c.listNamespaces.List(labels.Everything())
		if err != nil {
			c.cfg.Logger.Error("the namespaces cannot be listed", "err", err)
		}
		for _, ns := range namespaces {
			loop.Add(runtime.Key{Name: ns.Name})
		}
	}
}

func (c *Controller) reconcile(ctx context.Context, client kubernetes.Interface, namespace string) error {
	ns, err := c.listNamespaces.Get(namespace)
	if apierrors.IsNotFound(err) || (err == nil && ns.DeletionTimestamp != nil) {
		return nil
	}
	if err != nil {
		return err
	}
	want := map[string]string{key: string(c.cfg.CA.PEM())}
	is, err := c.listConfigMaps.ConfigMaps(namespace).Get(Name)
	switch {
	case apierrors.IsNotFound(err):
		_, err = client.CoreV1().ConfigMaps(namespace).Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: namespace, Name: Name,
				Annotations: map[string]string{
					"kubernetes.io/description": "The certificates that the cluster's API servers are verified with. Made anew when it is changed."},
			},
			Data: want,
		}, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return nil
		}
	case err == nil && !maps.Equal(is.Data, want):
		is = is.DeepCopy()
		is.Data, is.BinaryData = want, nil
		_, err = client.CoreV1().ConfigMaps(namespace).Update(ctx, is, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("publishing the cluster's CA in namespace %s: %w", namespace, err)
	}
	return nil
}
