package authn

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"
)

// Objects reads the objects that tokens are bound to. An object that the lister lacks may be newer
// than the lister, so it is read from the API.
type Objects struct {
	Client          kubernetes.Interface
	ServiceAccounts listers.ServiceAccountLister
	Pods            listers.PodLister
	Nodes           listers.NodeLister
	// Reserved reports which service accounts are those of controllers, which run in the servers'
	// processes. Neither a token nor a certificate counts for these; nil reserves none.
	Reserved func(namespace, name string) bool
}

func (o *Objects) serviceAccount(ctx context.Context, namespace, name string) (*corev1.ServiceAccount, error) {
	if o.Reserved != nil && o.Reserved(namespace, name) {
		return nil,
			fmt.Errorf("the service account %s/%s is a controller's, which needs no token: no token counts for it",
				namespace, name)
	}
	if sa, err := o.ServiceAccounts.ServiceAccounts(namespace).Get(name); err == nil {
		return sa, nil
	}
	return o.Client.CoreV1().ServiceAccounts(namespace).Get(ctx, name, metav1.GetOptions{})
}

func (o *Objects) pod(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
	if pod, err := o.Pods.Pods(namespace).Get(name); err == nil {
		return pod, nil
	}
	return o.Client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
}

func (o *Objects) node(ctx context.Context, name string) (*corev1.Node, error) {
	if node, err := o.Nodes.Get(name); err == nil {
		return node, nil
	}
	return o.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
}

// secret has no lister: no server keeps a copy of every Secret only for this.
func (o *Objects) secret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	return o.Client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
}

// serviceAccountTokens authenticates tokens of an Issuer.
type serviceAccountTokens struct {
	issuer    *Issuer
	objects   *Objects
	audiences authenticator.Audiences
	now       func() time.Time
}

// AuthenticateToken implements authenticator.Token.
func (s *serviceAccountTokens) AuthenticateToken(
	ctx context.Context, token string,
) (*authenticator.Response, bool, error) {
	c, mine, err := s.issuer.verify(token)
	if !mine {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("service-account token: %w", err)
	}
	wanted, ok := authenticator.AudiencesFrom(ctx)
	if !ok {
		wanted = s.audiences
	}
	matched := authenticator.Audiences(c.Audience).Intersect(wanted)
	if len(matched) == 0 && len(wanted) > 0 {
		return nil, false,
			fmt.Errorf("service-account token is for audiences %q, not for %q", []string(c.Audience), []string(wanted))
	}
	info, err := s.check(ctx, &c)
	if err != nil {
		return nil, false, err
	}
	if w := c.Kubernetes.WarnAfter; w != nil && s.now().After(w.Time()) {
		warning.AddWarning(ctx, "", "the service-account token should have been refreshed by its holder before now")
	}
	return &authenticator.Response{User: info.UserInfo(), Audiences: matched}, true, nil
}

// check checks that all objects that the token is bound to exist.
func (s *serviceAccountTokens) check(ctx context.Context, c *claims) (*serviceaccount.ServiceAccountInfo, error) {
	k := &c.Kubernetes
	sa, err := s.objects.serviceAccount(ctx, k.Namespace, k.ServiceAccount.Name)
	if err := alive("service account", k.Namespace, &k.ServiceAccount, sa, err, s.now()); err != nil {
		return nil, err
	}
	info := &serviceaccount.ServiceAccountInfo{
		Name: k.ServiceAccount.Name, Namespace: k.Namespace, UID: k.ServiceAccount.UID,
		CredentialID: credentialID(c.ID),
	}
	if k.Secret != nil {
		secret, err := s.objects.secret(ctx, k.Namespace, k.Secret.Name)
		if err := alive("secret", k.Namespace, k.Secret, secret, err, s.now()); err != nil {
			return nil, err
		}
	}
	if k.Pod != nil {
		pod, err := s.objects.pod(ctx, k.Namespace, k.Pod.Name)
		if err := alive("pod", k.Namespace, k.Pod, pod, err, s.now()); err != nil {
			return nil, err
		}
		info.PodName, info.PodUID = k.Pod.Name, k.Pod.UID
	}
	if k.Node != nil {
		if k.Pod == nil { // a pod's node is information, and binds nothing
			node, err := s.objects.node(ctx, k.Node.Name)
			if err := alive("node", "", k.Node, node, err, s.now()); err != nil {
				return nil, err
			}
		}
		info.NodeName, info.NodeUID = k.Node.Name, k.Node.UID
	}
	return info, nil
}

// deletionLeeway is how long after its deletion time a bound object still vouches for a token: its
// holder is finishing.
const deletionLeeway = 60 * time.Second

func alive(kind, namespace string, want *ref, obj metav1.Object, err error, now time.Time) error {
	if apierrors.IsNotFound(err) {
		return revokedf("the %s %s/%s that the token is bound to is gone", kind, namespace, want.Name)
	}
	if err != nil {
		return fmt.Errorf("looking up the %s %s/%s that the token is bound to: %w", kind, namespace, want.Name, err)
	}
	if string(obj.GetUID()) != want.UID {
		return revokedf("the token is bound to an earlier %s %s/%s", kind, namespace, want.Name)
	}
	if d := obj.GetDeletionTimestamp(); d != nil && now.After(d.Add(deletionLeeway)) {
		return revokedf("the %s %s/%s that the token is bound to has been deleted", kind, namespace, want.Name)
	}
	return nil
}
