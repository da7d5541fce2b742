package authn

import (
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"encoding/base64"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
)

// secretCluster has an account, and a Secret that holds a token of it.
type secretCluster struct {
	auth    *legacyTokens
	secret  *corev1.Secret
	account *corev1.ServiceAccount
	token   string
	clock   clock
}

func newSecretCluster(t *testing.T, key crypto.Signer) *secretCluster {
	t.Helper()
	c := &secretCluster{clock: clock{time.Date(2026, 3, 4, 23, 0, 0, 0, time.UTC)}}
	issuer, err := NewIssuer(issuerURL, only(key), c.clock.now)
	if err != nil {
		t.Fatal(err)
	}
	known, _ := objects(t)
	c.auth = &legacyTokens{issuer, known, authenticator.Audiences{issuerURL}, c.clock.now}
	c.token, err = issuer.IssueLegacy(
		Binding{Namespace: "ns", ServiceAccount: "robot", ServiceAccountUID: "sa-1", SecretName: "s", SecretUID: "s-1"})
	if err != nil {
		t.Fatal(err)
	}
	c.secret = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s", UID: "s-1"},
		Type: corev1.SecretTypeServiceAccountToken,
		Data: map[string][]byte{"token": []byte(c.token)}}
	c.account = &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "robot", UID: "sa-1"}}
	return c
}

func (c *secretCluster) store(t *testing.T) {
	t.Helper()
	core := c.auth.objects.Client.CoreV1()
	if c.secret != nil {
		if _, err := core.Secrets("ns").Create(t.Context(), c.secret, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if c.account != nil {
		if _, err := core.ServiceAccounts("ns").Create(t.Context(), c.account, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// A token in a Secret has the claims that clients know, and no end. Its use is noted once a day.
func TestTokensInSecrets(t *testing.T) {
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for name, key := range map[string]crypto.Signer{"ES256": newKey(t), "RS256": rsaKey} {
		t.Run(name, func(t *testing.T) {
			c := newSecretCluster(t, key)
			c.store(t)
			body, err := base64.RawURLEncoding.DecodeString(strings.Split(c.token, ".")[1])
			if err != nil {
				t.Fatal(err)
			}
			var claims map[string]any
			if err := json.Unmarshal(body, &claims); err != nil {
				t.Fatal(err)
			}
			if claims["iss"] != "kubernetes/serviceaccount" || claims["sub"] != "system:serviceaccount:ns:robot" ||
				claims["kubernetes.io/serviceaccount/secret.name"] != "s" || claims["exp"] != nil {
				t.Errorf("claims %v", claims)
			}
			for _, day := range []string{"2026-03-04", "2027-03-04"} {
				r, ok, err := c.auth.AuthenticateToken(t.Context(), c.token)
				if err != nil || !ok {
					t.Fatalf("%s: %v, %v", day, ok, err)
				}
				if u := r.User; u.GetName() != "system:serviceaccount:ns:robot" || u.GetUID() != "sa-1" ||
					!slices.Contains(u.GetGroups(), "system:serviceaccounts:ns") ||
					!slices.Equal(r.Audiences, authenticator.Audiences{issuerURL}) {
					t.Errorf("user %+v, audiences %v", u, r.Audiences)
				}
				s, err := c.auth.objects.secret(t.Context(), "ns", "s")
				if err != nil || s.Labels["kubernetes.io/legacy-token-last-used"] != day {
					t.Errorf("labels %v, %v", s.Labels, err)
				}
				c.clock.at = c.clock.at.AddDate(1, 0, 0)
			}
			other := authenticator.WithAudiences(t.Context(), authenticator.Audiences{"elsewhere"})
			if _, ok, err := c.auth.AuthenticateToken(other, c.token); ok || err == nil {
				t.Errorf("for another audience: %v, %v", ok, err)
			}
		})
	}
}

func TestTokensOfOtherSecretsAreRefused(t *testing.T) {
	key := newKey(t)
	now := metav1.Now()
	for name, change := range map[string]func(c *secretCluster){
		"no Secret":           func(c *secretCluster) { c.secret = nil },
		"a Secret made again": func(c *secretCluster) { c.secret.UID = "s-2" },
		"another token":       func(c *secretCluster) { c.secret.Data["token"] = []byte("x") },
		"a Secret that is going": func(
			c *secretCluster,
		) {
			c.secret.DeletionTimestamp, c.secret.Finalizers = &now, []string{"a/b"}
		},
		"marked as invalid": func(c *secretCluster) {
			c.secret.Labels = map[string]string{"kubernetes.io/legacy-token-invalid-since": "2026-01-01"}
		},
		"no account":            func(c *secretCluster) { c.account = nil },
		"an account made again": func(c *secretCluster) { c.account.UID = "sa-2" },
		"signed with a wrong key": func(
			c *secretCluster,
		) {
			c.auth.issuer, _ = NewIssuer(issuerURL, only(newKey(t)), c.clock.now)
		},
		"not what has been signed": func(c *secretCluster) { c.token = c.token[:len(c.token)-4] + "AAAA" },
	} {
		t.Run(name, func(t *testing.T) {
			c := newSecretCluster(t, key)
			change(c)
			c.store(t)
			if _, ok, err := c.auth.AuthenticateToken(t.Context(), c.token); ok || err == nil {
				t.Errorf("accepted %v, error %v", ok, err)
			}
		})
	}
	c := newSecretCluster(t, key)
	if _, ok, err := (&serviceAccountTokens{c.auth.issuer, c.auth.objects, c.auth.audiences,
		c.clock.now}).AuthenticateToken(t.Context(), c.token); ok || err != nil {
		t.Errorf("as a token that ends: %v, %v", ok, err)
	}
}
