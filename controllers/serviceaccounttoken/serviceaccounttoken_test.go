package serviceaccounttoken_test

import (
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/barque/barque/controllers/controllertest"
	"github.com/barque/barque/controllers/serviceaccounttoken"
)

const pem = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n"

// bundle is a CA that a test changes.
type bundle struct {
	mu      sync.Mutex
	text    string
	changed chan struct{}
}

func (b *bundle) PEM() []byte {
	b.mu.Lock()
	defer b.mu.Unlock()
	return []byte(b.text)
}

func (b *bundle) Changed() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.changed
}

func (b *bundle) set(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.changed)
	b.text, b.changed = text, make(chan struct{})
}

// cluster issues tokens that name the Secret they are for.
type cluster struct {
	*controllertest.Cluster
	t      *testing.T
	ca     *bundle
	issued int
}

func start(t *testing.T, objects ...kruntime.Object) *cluster {
	c := &cluster{Cluster: controllertest.New(t, objects...), t: t,
		ca: &bundle{text: pem, changed: make(chan struct{})}}
	c.Client.PrependReactor("create", "serviceaccounts", func(a clienttesting.Action) (bool, kruntime.Object, error) {
		if a.GetSubresource() != "token" {
			return false, nil, nil
		}
		req := a.(clienttesting.CreateActionImpl).Object.(*authenticationv1.TokenRequest).DeepCopy()
		ref := req.Spec.BoundObjectRef
		c.issued++
		req.Status.Token = fmt.Sprintf("%d for %s of %s", c.issued, ref.UID, a.(clienttesting.CreateActionImpl).Name)
		if len(req.Spec.Audiences) != 1 || req.Spec.Audiences[0] != "kubernetes/serviceaccount" ||
			ref.Kind != "Secret" {
			t.Errorf("the request %+v", req.Spec)
		}
		return true, req, nil
	})
	ctrl, err := serviceaccounttoken.New(serviceaccounttoken.Config{Informers: c.Informers, CA: c.ca})
	if err != nil {
		t.Fatal(err)
	}
	c.Start(ctrl.Run)
	return c
}

func (c *cluster) secret() *corev1.Secret {
	c.t.Helper()
	time.Sleep(time.Minute)
	s, err := c.Client.CoreV1().Secrets("ns").Get(c.t.Context(), "s", metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		c.t.Fatal(err)
	}
	return s
}

func account(uid types.UID) *corev1.ServiceAccount {
	return &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "robot", UID: uid}}
}

func secret(change func(*corev1.Secret)) *corev1.Secret {
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s", UID: "s-1",
		Annotations: map[string]string{corev1.ServiceAccountNameKey: "robot"}},
		Type: corev1.SecretTypeServiceAccountToken}
	if change != nil {
		change(s)
	}
	return s
}

// A Secret gets its missing parts. It keeps its token when the CA changes, gets another when that
// is removed, and is deleted with its account.
func TestTheLifeOfATokenSecret(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := start(t, account("a-1"),
			secret(func(s *corev1.Secret) { s.Data = map[string][]byte{"extra": []byte("x")} }))
		check := func(what, token, ca string) *corev1.Secret {
			t.Helper()
			s := c.secret()
			if s == nil || string(s.Data["token"]) != token || string(s.Data["ca.crt"]) != ca ||
				string(s.Data["namespace"]) != "ns" ||
				string(s.Data["extra"]) != "x" || s.Annotations[corev1.ServiceAccountUIDKey] != "a-1" {
				t.Fatalf("%s: %+v", what, s)
			}
			return s
		}
		s := check("a new one", "1 for s-1 of robot", pem)
		if again := c.secret(); again.ResourceVersion != s.ResourceVersion {
			t.Error("it is written although nothing changed")
		}
		c.ca.set(pem + pem)
		s = check("another CA", "1 for s-1 of robot", pem+pem)
		delete(s.Data, "token")
		if _, err := c.Client.CoreV1().Secrets("ns").Update(t.Context(), s, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		check("without its token", "2 for s-1 of robot", pem+pem)
		if err := c.Client.CoreV1().ServiceAccounts("ns").Delete(t.Context(), "robot",
			metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if s := c.secret(); s != nil {
			t.Errorf("its account is gone: %+v", s)
		}
	})
}

// A Secret whose account is not there, or has been made again, is deleted; others are left alone.
func TestSecretsWithoutTheirAccount(t *testing.T) {
	for name, one := range map[string]struct {
		secret *corev1.Secret
		stays  bool
	}{
		"no account of that name": {
			secret: secret(func(s *corev1.Secret) { s.Annotations[corev1.ServiceAccountNameKey] = "nobody" })},
		"an account before": {
			secret: secret(func(s *corev1.Secret) { s.Annotations[corev1.ServiceAccountUIDKey] = "a-0" })},
		"the account": {
			secret: secret(func(s *corev1.Secret) { s.Annotations[corev1.ServiceAccountUIDKey] = "a-1" }), stays: true},
		"another type": {secret: secret(func(s *corev1.Secret) {
			s.Type = corev1.SecretTypeOpaque
			s.Annotations[corev1.ServiceAccountNameKey] = "nobody"
		}), stays: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := start(t, account("a-1"), one.secret)
				if s := c.secret(); (s != nil) != one.stays {
					t.Errorf("%+v", s)
				}
			})
		})
	}
}
