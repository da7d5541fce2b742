package gateway

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// Secrets watches single Secrets, each for itself: the account of the gateway may not list others.
type Secrets struct {
	client  kubernetes.Interface
	changed func()

	mu      sync.Mutex
	ctx     context.Context // of Run; nil before
	watched map[types.NamespacedName]*watched
	running sync.WaitGroup
}

type watched struct {
	stop   context.CancelFunc // nil until it runs
	secret *corev1.Secret     // nil until it is read
	pair   *tls.Certificate
	err    error // of the pair
}

// NewSecrets returns an empty set. changed is called when a Secret has changed.
func NewSecrets(client kubernetes.Interface, changed func()) *Secrets {
	return &Secrets{client: client, changed: changed, watched: map[types.NamespacedName]*watched{}}
}

// Run watches until ctx ends.
func (s *Secrets) Run(ctx context.Context) error {
	s.mu.Lock()
	s.ctx = ctx
	for name, w := range s.watched {
		s.start(name, w)
	}
	s.mu.Unlock()
	<-ctx.Done()
	s.running.Wait()
	return nil
}

// Want replaces the set of Secrets that are watched.
func (s *Secrets) Want(names map[types.NamespacedName]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, w := range s.watched {
		if !names[name] {
			if w.stop != nil {
				w.stop()
			}
			delete(s.watched, name)
		}
	}
	for name := range names {
		if s.watched[name] == nil {
			w := &watched{}
			s.watched[name] = w
			s.start(name, w)
		}
	}
}

// start begins to watch one. The caller holds mu.
func (s *Secrets) start(name types.NamespacedName, w *watched) {
	if s.ctx == nil || s.ctx.Err() != nil {
		return
	}
	ctx, stop := context.WithCancel(s.ctx)
	w.stop = stop
	secrets, only := s.client.CoreV1().Secrets(name.Namespace), fields.OneTermEqualSelector(metav1.ObjectNameField, name.Name).String()
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ObjectType: &corev1.Secret{},
		ListerWatcher: &cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				o.FieldSelector = only
				return secrets.List(ctx, o)
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				o.FieldSelector = only
				return secrets.Watch(ctx, o)
			},
		},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(obj any) { s.set(w, obj) },
			UpdateFunc: func(_, obj any) { s.set(w, obj) },
			DeleteFunc: func(any) { s.set(w, nil) },
		},
	})
	// Ends when Want leaves the Secret out, or with Run.
	s.running.Go(func() { informer.RunWithContext(ctx) })
}

func (s *Secrets) set(w *watched, obj any) {
	secret, _ := obj.(*corev1.Secret)
	s.mu.Lock()
	w.secret, w.pair, w.err = secret, nil, nil
	if secret != nil {
		w.pair, w.err = pairOf(secret)
	}
	s.mu.Unlock()
	s.changed()
}

// pairOf reads a certificate with its key.
func pairOf(secret *corev1.Secret) (*tls.Certificate, error) {
	chain, key := secret.Data[corev1.TLSCertKey], secret.Data[corev1.TLSPrivateKeyKey]
	if len(chain) == 0 || len(key) == 0 {
		return nil, fmt.Errorf("it lacks %s or %s", corev1.TLSCertKey, corev1.TLSPrivateKeyKey)
	}
	pair, err := tls.X509KeyPair(chain, key)
	if err != nil {
		return nil, errors.New("it has no valid certificate with its key") // without parts of the key
	}
	return &pair, nil
}

// Certificate returns the certificate in a Secret, or nil.
func (s *Secrets) Certificate(name types.NamespacedName) *tls.Certificate {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w := s.watched[name]; w != nil {
		return w.pair
	}
	return nil
}

// Problem returns why a Secret has no certificate, or nil.
func (s *Secrets) Problem(name types.NamespacedName) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.watched[name]
	if w == nil || w.secret == nil {
		return errNoSecret
	}
	return w.err
}

// Users returns the users in a Secret: each key is one, or its key auth has lines of htpasswd.
func (s *Secrets) Users(name types.NamespacedName, perKey bool) map[string]string {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.watched[name]
	if w == nil || w.secret == nil {
		return nil
	}
	users := map[string]string{}
	if perKey {
		for user, hash := range w.secret.Data {
			users[user] = strings.TrimSpace(string(hash))
		}
		return users
	}
	for line := range strings.Lines(string(w.secret.Data["auth"])) {
		if user, hash, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			users[user] = hash
		}
	}
	return users
}
