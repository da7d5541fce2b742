// Package serviceaccount gives every namespace its "default" ServiceAccount, without which no pod
// can be admitted there.
package serviceaccount

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/controllers/runtime"
)

// Default is the name of the ServiceAccount that pods get when they ask for none.
const Default = "default"

// Config of a Controller.
type Config struct {
	Informers informers.SharedInformerFactory
	Logger    *slog.Logger
}

// Controller creates the default ServiceAccounts.
type Controller struct {
	cfg            Config
	namespaces     cache.SharedIndexInformer
	accounts       cache.SharedIndexInformer
	listNamespaces corelisters.NamespaceLister
	listAccounts   corelisters.ServiceAccountLister
}

// New asks the factory for the informers it needs; it is called before they are started.
func New(cfg Config) (*Controller, error) {
	core := cfg.Informers.Core().V1()
	return &Controller{
		cfg:        cfg,
		namespaces: core.Namespaces().Informer(), listNamespaces: core.Namespaces().Lister(),
		accounts: core.ServiceAccounts().Informer(), listAccounts: core.ServiceAccounts().Lister(),
	}, nil
}

// Run reconciles for one term of leadership. The keys are namespaces.
func (c *Controller) Run(ctx context.Context, client kubernetes.Interface) error {
	loop := runtime.NewLoop("serviceaccount", 2, c.cfg.Logger,
		func(ctx context.Context, key runtime.Key) (time.Duration, error) {
			return 0, c.reconcile(ctx, client, key.Name)
		})
	runtime.Watch(loop, c.namespaces, func(_, now *corev1.Namespace) []runtime.Key {
		if now == nil {
			return nil
		}
		return []runtime.Key{{Name: now.Name}}
	})
	runtime.Watch(loop, c.accounts, func(old, now *corev1.ServiceAccount) []runtime.Key {
		if now != nil || old.Name != Default {
			return nil
		}
		return []runtime.Key{{Name: old.Namespace}}
	})
	return loop.Run(ctx)
}

func (c *Controller) reconcile(ctx context.Context, client kubernetes.Interface, namespace string) error {
	ns, err := c.listNamespaces.Get(namespace)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if ns.DeletionTimestamp != nil {
		return nil
	}
	if _, err := c.listAccounts.ServiceAccounts(namespace).Get(Default); !apierrors.IsNotFound(err) {
		return err
	}
	_, err = client.CoreV1().ServiceAccounts(namespace).Create(ctx, &corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: Default},
	}, metav1.CreateOptions{})
	switch {
	case apierrors.IsAlreadyExists(err), apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return nil
	case err != nil:
		return fmt.Errorf("creating the default ServiceAccount of namespace %s: %w", namespace, err)
	}
	return nil
}
