// Package bootstrapsigner signs the ConfigMap kube-public/cluster-info with each bootstrap token
// for signing. A holder of such a token can verify that the kubeconfig in it, which is public, is
// the cluster's. The signatures are JSON Web Signatures (RFC 7515) without the payload. Users, or
// tools such as kubeadm, make the ConfigMap; the package does not.
package bootstrapsigner

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"strings"
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

const (
	signed     = "kubeconfig"      // the signed content
	signature  = "jws-kubeconfig-" // and where the signatures are, by token ID
	namePrefix = "bootstrap-token-"
)

var clusterInfo = runtime.Key{Namespace: metav1.NamespacePublic, Name: "cluster-info"}

// Config of a Controller.
type Config struct {
	Informers informers.SharedInformerFactory
	Logger    *slog.Logger
}

// Controller signs the ConfigMap.
type Controller struct {
	cfg         Config
	configMaps  cache.SharedIndexInformer
	secrets     cache.SharedIndexInformer
	listMaps    corelisters.ConfigMapLister
	listSecrets corelisters.SecretLister
}

// New asks the factory for the informers it needs; it is called before they are started.
func New(cfg Config) (*Controller, error) {
	core := cfg.Informers.Core().V1()
	return &Controller{cfg: cfg, configMaps: core.ConfigMaps().Informer(), listMaps: core.ConfigMaps().Lister(),
		secrets: core.Secrets().Informer(), listSecrets: core.Secrets().Lister()}, nil
}

// Run signs for one term of leadership.
func (c *Controller) Run(ctx context.Context, client kubernetes.Interface) error {
	var loop *runtime.Loop
	loop = runtime.NewLoop("bootstrapsigner", 1, c.cfg.Logger,
		func(ctx context.Context, key runtime.Key) (time.Duration, error) {
			return c.reconcile(ctx, client, loop, key)
		})
	runtime.Watch(loop, c.configMaps, func(_, now *corev1.ConfigMap) []runtime.Key {
		if now == nil || runtime.KeyOf(now) != clusterInfo {
			return nil
		}
		return []runtime.Key{clusterInfo}
	})
	runtime.Watch(loop, c.secrets, func(old, now *corev1.Secret) []runtime.Key {
		if now == nil {
			now = old
		}
		if now.Namespace != metav1.NamespaceSystem || now.Type != corev1.SecretTypeBootstrapToken {
			return nil
		}
		return []runtime.Key{clusterInfo}
	})
	return loop.Run(ctx)
}

func (c *Controller) reconcile(
	ctx context.Context, client kubernetes.Interface, loop *runtime.Loop, key runtime.Key,
) (time.Duration, error) {
	info, err := c.listMaps.ConfigMaps(key.Namespace).Get(key.Name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	secrets, err := c.listSecrets.Secrets(metav1.NamespaceSystem).List(labels.Everything())
	if err != nil {
		return 0, err
	}
	data, again := decide(info.Data, secrets, time.Now())
	if maps.Equal(data, info.Data) {
		return again, nil
	}
	next := info.DeepCopy()
	next.Data = data
	next, err = client.CoreV1().ConfigMaps(key.Namespace).Update(ctx, next, metav1.UpdateOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("signing ConfigMap %s: %w", key, err)
	}
	loop.Writes().Wrote(key, c.configMaps, next.ResourceVersion)
	return again, nil
}

// decide returns the ConfigMap's data with a signature of each signing token, and without other
// signatures. again is when the next token expires.
func decide(
	data map[string]string, secrets []*corev1.Secret, now time.Time,
) (next map[string]string, again time.Duration) {
	content, ok := data[signed]
	if !ok {
		return data, 0
	}
	next = maps.Clone(data)
	maps.DeleteFunc(next, func(key, _ string) bool { return strings.HasPrefix(key, signature) })
	for _, s := range secrets {
		id, secret, left, ok := token(s, now)
		if !ok {
			continue
		}
		next[signature+id] = sign(content, id, secret)
		if left > 0 && (again == 0 || left < again) {
			again = left
		}
	}
	return next, again
}

// token reads a bootstrap token that is for signing. left is how long it is good for, 0 for ever.
func token(s *corev1.Secret, now time.Time) (id, secret string, left time.Duration, ok bool) {
	id, secret = string(s.Data["token-id"]), string(s.Data["token-secret"])
	if s.Type != corev1.SecretTypeBootstrapToken || id == "" || secret == "" || s.Name != namePrefix+id ||
		string(s.Data["usage-bootstrap-signing"]) != "true" {
		return "", "", 0, false
	}
	if text := string(s.Data["expiration"]); text != "" {
		at, err := time.Parse(time.RFC3339, text)
		if err != nil || !at.After(now) {
			return "", "", 0, false
		}
		left = at.Sub(now)
	}
	return id, secret, left, true
}

// sign makes the detached signature of a content: HMAC with SHA-256, in compact form.
func sign(content, id, secret string) string {
	encode := base64.RawURLEncoding.EncodeToString
	header, err := json.Marshal(struct {
		Algorithm string `json:"alg"`
		KeyID     string `json:"kid"`
	}{"HS256", id})
	if err != nil {
		panic(err) // two strings always encode
	}
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(encode(header) + "." + encode([]byte(content))))
	return encode(header) + ".." + encode(mac.Sum(nil))
}
