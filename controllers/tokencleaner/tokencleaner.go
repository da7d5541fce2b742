// Package tokencleaner deletes bootstrap tokens when they expire.
package tokencleaner

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

const (
	namespace  = metav1.NamespaceSystem
	tokenType  = corev1.SecretTypeBootstrapToken
	expiration = "expiration"
)

// Config of a Controller.
type Config struct {
	Informers informers.SharedInformerFactory
	Logger    *slog.Logger
}

// Controller deletes expired tokens.
type Controller struct {
	cfg     Config
	secrets cache.SharedIndexInformer
	list    corelisters.SecretLister
}

// New asks the factory for the informer it needs; it is called before it is started.
func New(cfg Config) (*Controller, error) {
	secrets := cfg.Informers.Core().V1().Secrets()
	return &Controller{cfg: cfg, secrets: secrets.Informer(), list: secrets.Lister()}, nil
}

// Run cleans for one term of leadership.
func (c *Controller) Run(ctx context.Context, client kubernetes.Interface) error {
	loop := runtime.NewLoop("tokencleaner", 1, c.cfg.Logger,
		func(ctx context.Context, key runtime.Key) (time.Duration, error) {
			return c.reconcile(ctx, client, key)
		})
	runtime.Watch(loop, c.secrets, func(_, now *corev1.Secret) []runtime.Key {
		if now == nil || now.Namespace != namespace || now.Type != tokenType {
			return nil
		}
		return []runtime.Key{runtime.KeyOf(now)}
	})
	return loop.Run(ctx)
}

func (c *Controller) reconcile(
	ctx context.Context, client kubernetes.Interface, key runtime.Key,
) (time.Duration, error) {
	secret, err := c.list.Secrets(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	left, expires := lifetime(secret, time.Now())
	if !expires || left > 0 {
		return left, nil
	}
	err = client.CoreV1().Secrets(key.Namespace).Delete(ctx, key.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &secret.UID, ResourceVersion: &secret.ResourceVersion},
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("deleting the expired bootstrap token %s: %w", key.Name, err)
	}
	return 0, nil
}

// lifetime returns how long a token has left; expires is false for one without an end. An
// unreadable time counts as over, so that no such token stays valid.
func lifetime(secret *corev1.Secret, now time.Time) (left time.Duration, expires bool) {
	text := string(secret.Data[expiration])
	if text == "" {
		return 0, false
	}
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return 0, true
	}
	return max(0, at.Sub(now)), true
}
