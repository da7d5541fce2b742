// Package serviceaccounttoken fills Secrets of type kubernetes.io/service-account-token: with a
// token of the service account that they name, the cluster's CA and their namespace. It deletes
// them when the account is gone or has been made again.
//
// The tokens are signed by the API server, and have no end: they are good as long as their Secret
// holds them.
package serviceaccounttoken

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/controllers/runtime"
)

// audience asks the API server for a token that a Secret is to hold.
const audience = "kubernetes/serviceaccount"

// byAccount is the index of the Secrets by the key of the account that they name.
const byAccount = "barque/service-account-token"

// Config of a Controller.
type Config struct {
	Informers informers.SharedInformerFactory
	Logger    *slog.Logger
	CA        CA
	// Workers is how many Secrets are worked on at once. Default 5.
	Workers int
}

// CA provides the bundle that clients of the API server trust.
type CA interface {
	// PEM returns the bundle, and Changed a channel that is closed at its next change.
	PEM() []byte
	Changed() <-chan struct{}
}

// Controller keeps the Secrets as they should be.
type Controller struct {
	cfg          Config
	secrets      cache.SharedIndexInformer
	accounts     cache.SharedIndexInformer
	listSecrets  corelisters.SecretLister
	listAccounts corelisters.ServiceAccountLister
}

// New asks the factory for the informers it needs; it is called before they are started.
func New(cfg Config) (*Controller, error) {
	if cfg.CA == nil || !bytes.Contains(cfg.CA.PEM(), []byte("-----BEGIN CERTIFICATE-----")) {
		return nil, errors.New("controllers/serviceaccounttoken: CA holds no PEM certificate")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Workers <= 0 {
		cfg.Workers = 5
	}
	core := cfg.Informers.Core().V1()
	c := &Controller{
		cfg:     cfg,
		secrets: core.Secrets().Informer(), listSecrets: core.Secrets().Lister(),
		accounts: core.ServiceAccounts().Informer(), listAccounts: core.ServiceAccounts().Lister(),
	}
	err := runtime.EnsureIndex(c.secrets, byAccount, func(obj any) ([]string, error) {
		secret, ok := obj.(*corev1.Secret)
		if !ok || secret.Type != corev1.SecretTypeServiceAccountToken {
			return nil, nil
		}
		return []string{
				runtime.Key{Namespace: secret.Namespace,
					Name: secret.Annotations[corev1.ServiceAccountNameKey]}.String()},
			nil
	})
	if err != nil {
		return nil, fmt.Errorf("controllers/serviceaccounttoken: %w", err)
	}
	return c, nil
}

// Run reconciles for one term of leadership. The keys are Secrets.
func (c *Controller) Run(ctx context.Context, client kubernetes.Interface) error {
	t := &term{Controller: c, client: client}
	t.loop = runtime.NewLoop("serviceaccounttoken", c.cfg.Workers, c.cfg.Logger,
		func(ctx context.Context, key runtime.Key) (time.Duration, error) {
			return 0, t.reconcile(ctx, key)
		})
	runtime.Watch(t.loop, c.secrets, func(_, now *corev1.Secret) []runtime.Key {
		if now == nil || now.Type != corev1.SecretTypeServiceAccountToken {
			return nil
		}
		return []runtime.Key{runtime.KeyOf(now)}
	})
	runtime.Watch(t.loop, c.accounts, func(old, now *corev1.ServiceAccount) []runtime.Key {
		switch {
		case now == nil:
			now = old
		case old != nil && old.UID == now.UID:
			return nil
		}
		return c.secretsOf(runtime.KeyOf(now))
	})
	var following sync.WaitGroup
	defer following.Wait()
	changed := c.cfg.CA.Changed()                   // before the first look at it
	following.Go(func() { t.follow(ctx, changed) }) // ends with ctx
	return t.loop.Run(ctx)
}

// secretsOf are the Secrets that name an account.
func (c *Controller) secretsOf(account runtime.Key) []runtime.Key {
	secrets, err := runtime.ByIndex[corev1.Secret](c.secrets, byAccount, account.String())
	if err != nil {
		c.cfg.Logger.Error("the token Secrets of a service account cannot be found", "account", account, "err", err)
	}
	keys := make([]runtime.Key, 0, len(secrets))
	for _, secret := range secrets {
		keys = append(keys, runtime.KeyOf(secret))
	}
	return keys
}

// term is the state of one leadership term.
type term struct {
	*Controller
	client kubernetes.Interface
	loop   *runtime.Loop
}

// follow looks at all Secrets when the CAs change.
func (t *term) follow(ctx context.Context, changed <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed:
		}
		changed = t.cfg.CA.Changed()
		for _, account := range t.secrets.GetIndexer().ListIndexFuncValues(byAccount) {
			namespace, name, err := cache.SplitMetaNamespaceKey(account)
			if err == nil {
				t.loop.Add(t.secretsOf(runtime.Key{Namespace: namespace, Name: name})...)
			}
		}
	}
}

func (t *term) reconcile(ctx context.Context, key runtime.Key) error {
	secret, err := t.listSecrets.Secrets(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || secret.DeletionTimestamp != nil || secret.Type != corev1.SecretTypeServiceAccountToken {
		return err
	}
	account, err := t.account(ctx, secret)
	if err != nil {
		return err
	}
	p := decide(secret, account, t.cfg.CA.PEM())
	switch {
	case p.remove:
		return t.remove(ctx, key, secret)
	case p.fill == nil:
		return nil
	}
	if p.token {
		token, err := t.token(ctx, p.fill, account)
		if err != nil {
			return err
		}
		p.fill.Data[corev1.ServiceAccountTokenKey] = []byte(token)
	}
	now, err := t.client.CoreV1().Secrets(key.Namespace).Update(ctx, p.fill, metav1.UpdateOptions{})
	if err != nil {
		if apierrors.IsNotFound(err) || apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			return nil
		}
		return fmt.Errorf("filling the token Secret %s: %w", key, err)
	}
	t.loop.Writes().Wrote(key, t.secrets, now.ResourceVersion)
	return nil
}

// account returns the service account of a Secret, nil when the API server has none of that name
// and UID. The informer alone is not believed: the account may be newer.
func (t *term) account(ctx context.Context, secret *corev1.Secret) (*corev1.ServiceAccount, error) {
	name := secret.Annotations[corev1.ServiceAccountNameKey]
	account, err := t.listAccounts.ServiceAccounts(secret.Namespace).Get(name)
	if err == nil && matches(secret, account) {
		return account, nil
	}
	account, err = t.client.CoreV1().ServiceAccounts(secret.Namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil,
			fmt.Errorf("reading the service account %s/%s of Secret %s: %w", secret.Namespace, name, secret.Name, err)
	case !matches(secret, account):
		return nil, nil
	}
	return account, nil
}

// matches reports whether an account is the one that a Secret names.
func matches(secret *corev1.Secret, account *corev1.ServiceAccount) bool {
	uid := secret.Annotations[corev1.ServiceAccountUIDKey]
	return uid == "" || uid == string(account.UID)
}

// plan has the missing parts of a Secret.
type plan struct {
	remove bool
	// fill is the Secret as it should be, without a token when token is set; nil when it lacks
	// nothing.
	fill  *corev1.Secret
	token bool
}

// decide returns the plan for a Secret. account is nil when it is gone.
func decide(secret *corev1.Secret, account *corev1.ServiceAccount, ca []byte) plan {
	if account == nil {
		return plan{remove: true}
	}
	p := plan{token: len(secret.Data[corev1.ServiceAccountTokenKey]) == 0}
	want := map[string][]byte{corev1.ServiceAccountRootCAKey: ca,
		corev1.ServiceAccountNamespaceKey: []byte(secret.Namespace)}
	named := secret.Annotations[corev1.ServiceAccountUIDKey] != ""
	if !p.token && named && holds(secret.Data, want) {
		return plan{}
	}
	p.fill = secret.DeepCopy()
	if p.fill.Data == nil {
		p.fill.Data = map[string][]byte{}
	}
	maps.Copy(p.fill.Data, want)
	metav1.SetMetaDataAnnotation(&p.fill.ObjectMeta, corev1.ServiceAccountUIDKey, string(account.UID))
	return p
}

func holds(data, want map[string][]byte) bool {
	for key, value := range want {
		if !bytes.Equal(data[key], value) {
			return false
		}
	}
	return true
}

// token asks the API server for the token of a Secret.
func (t *term) token(ctx context.Context, secret *corev1.Secret, account *corev1.ServiceAccount) (string, error) {
	req, err := t.client.CoreV1().ServiceAccounts(secret.Namespace).CreateToken(ctx, account.Name,
		&authenticationv1.TokenRequest{
			Spec: authenticationv1.TokenRequestSpec{
				Audiences: []string{audience},
				BoundObjectRef: &authenticationv1.BoundObjectReference{
					APIVersion: "v1", Kind: "Secret", Name: secret.Name, UID: secret.UID,
				},
			},
		}, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("asking for the token of Secret %s/%s: %w", secret.Namespace, secret.Name, err)
	}
	return req.Status.Token, nil
}

func (t *term) remove(ctx context.Context, key runtime.Key, secret *corev1.Secret) error {
	err := t.client.CoreV1().Secrets(key.Namespace).Delete(ctx, key.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &secret.UID, ResourceVersion: &secret.ResourceVersion},
	})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("deleting the token Secret %s, whose service account %s is gone: %w", key,
			secret.Annotations[corev1.ServiceAccountNameKey], err)
	}
	return nil
}
