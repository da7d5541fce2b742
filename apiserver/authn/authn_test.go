package authn

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4/jwt"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
)

const issuerURL = "https://kubernetes.default.svc.cluster.local"

func newKey(t testing.TB) crypto.Signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// objects has empty listers, so that all objects are read from the API.
func objects(t *testing.T) (*Objects, *fake.Clientset) {
	t.Helper()
	client := fake.NewClientset()
	core := informers.NewSharedInformerFactory(client, 0).Core().V1()
	return &Objects{Client: client, ServiceAccounts: core.ServiceAccounts().Lister(), Pods: core.Pods().Lister(),
			Nodes:    core.Nodes().Lister(),
			Reserved: func(namespace, name string) bool { return namespace == "kube-system" && name == "controller" }},
		client
}

// clock is a time that a test moves.
type clock struct{ at time.Time }

func (c *clock) now() time.Time { return c.at }

func TestServiceAccountTokens(t *testing.T) {
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	for name, key := range map[string]crypto.Signer{"ES256": newKey(t), "RS256": rsaKey} {
		t.Run(name, func(t *testing.T) { testServiceAccountTokens(t, key) })
	}
}

// only are the keys of a cluster that has never exchanged them.
func only(key crypto.Signer) Keys {
	return func() (crypto.Signer, []crypto.PublicKey) { return key, nil }
}

// otherSignature changes the first bits of a token's signature. Not all of its last ones count.
func otherSignature(token string) string {
	at, first := strings.LastIndex(token, ".")+1, "A"
	if token[at] == 'A' {
		first = "B"
	}
	return token[:at] + first + token[at+1:]
}

func testServiceAccountTokens(t *testing.T, key crypto.Signer) {
	ctx := t.Context()
	c := &clock{time.Now()}
	issuer, err := NewIssuer(issuerURL, only(key), c.now)
	if err != nil {
		t.Fatal(err)
	}
	known, client := objects(t)
	auth := &serviceAccountTokens{issuer, known, authenticator.Audiences{issuerURL}, c.now}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "robot", UID: "sa-1"}}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "pod-1"}}
	if _, err := client.CoreV1().ServiceAccounts("ns").Create(ctx, account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := client.CoreV1().Pods("ns").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := Binding{Namespace: "ns", ServiceAccount: "robot", ServiceAccountUID: "sa-1", PodName: "p",
		PodUID:   "pod-1",
		NodeName: "n", NodeUID: "node-1", Audiences: []string{issuerURL}, Lifetime: time.Hour}
	issue := func(change func(*Binding)) string {
		b := binding
		if change != nil {
			change(&b)
		}
		token, id, _, err := issuer.Issue(b)
		if err != nil || !strings.HasPrefix(id, "JTI=") {
			t.Fatalf("issuing: %q, %v", id, err)
		}
		return token
	}
	good := issue(nil)
	r, ok, err := auth.AuthenticateToken(ctx, good)
	if err != nil || !ok {
		t.Fatalf("a good token: %v, %v", ok, err)
	}
	if u := r.User; u.GetName() != "system:serviceaccount:ns:robot" || u.GetUID() != "sa-1" ||
		!slices.Contains(u.GetGroups(), "system:serviceaccounts:ns") ||
		u.GetExtra()["authentication.kubernetes.io/pod-uid"][0] != "pod-1" ||
		u.GetExtra()["authentication.kubernetes.io/node-name"][0] != "n" {
		t.Errorf("user %+v", u)
	}
	other, err := NewIssuer(issuerURL, only(newKey(t)), c.now)
	if err != nil {
		t.Fatal(err)
	}
	forged, _, _, err := other.Issue(binding)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := issuer.signer()
	if err != nil {
		t.Fatal(err)
	}
	unending := binding.claims(issuerURL, "a", c.now())
	unending.Expiry = nil
	endless, err := jwt.Signed(signer).Claims(unending).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string]string{
		"without an end":          endless,
		"wrong key":               forged,
		"changed":                 otherSignature(good),
		"another audience":        issue(func(b *Binding) { b.Audiences = []string{"elsewhere"} }),
		"an account made again":   issue(func(b *Binding) { b.ServiceAccountUID = "sa-0" }),
		"an account that is gone": issue(func(b *Binding) { b.ServiceAccount = "gone" }),
		"a pod made again":        issue(func(b *Binding) { b.PodUID = "pod-0" }),
		"a pod that is gone":      issue(func(b *Binding) { b.PodName = "gone" }),
		"a secret that is gone":   issue(func(b *Binding) { b.SecretName, b.SecretUID = "gone", "x" }),
		"expired":                 issue(func(b *Binding) { b.Lifetime = -time.Minute }),
	} {
		if _, ok, err := auth.AuthenticateToken(ctx, bad); ok || err == nil {
			t.Errorf("%s: accepted %v, error %v", name, ok, err)
		}
	}
	for _, foreign := range []string{"", "abc", "abcdef.0123456789abcdef", "a.b.c"} {
		if _, ok, err := auth.AuthenticateToken(ctx, foreign); ok || err != nil {
			t.Errorf("%q is not a token of this issuer, yet: %v, %v", foreign, ok, err)
		}
	}
	// The clocks of two servers differ a little.
	issued := c.at.Truncate(time.Second)
	for _, at := range []struct {
		what string
		off  time.Duration
		good bool
	}{
		{"a server whose clock is a minute behind", -clocksDiffer, true},
		{"a server whose clock is too far behind", -clocksDiffer - time.Second, false},
		{"at its end", time.Hour, true},
		{"after its end", time.Hour + time.Second, false},
	} {
		c.at = issued.Add(at.off)
		if _, ok, err := auth.AuthenticateToken(ctx, good); ok != at.good || (err == nil) != at.good {
			t.Errorf("%s: accepted %v, error %v", at.what, ok, err)
		}
	}
}

func TestOldKeysStillVerify(t *testing.T) {
	old, current := newKey(t), newKey(t)
	others := []crypto.PublicKey{old.Public()}
	before, err := NewIssuer(issuerURL, only(old), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	after, err := NewIssuer(issuerURL, func() (crypto.Signer, []crypto.PublicKey) { return current, others }, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	token, _, _, err := before.Issue(Binding{Namespace: "ns", ServiceAccount: "a", Lifetime: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	if _, mine, err := after.verify(token); !mine || err != nil {
		t.Errorf("after a change of keys: %v, %v", mine, err)
	}
	others = nil
	if _, mine, err := after.verify(token); !mine || err == nil {
		t.Errorf("after the time of the old key: %v, %v", mine, err)
	}
}

func TestKeyDocuments(t *testing.T) {
	issuer, err := NewIssuer(issuerURL, only(newKey(t)), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	get := func(h http.Handler) map[string]any {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
		var doc map[string]any
		if err := json.Unmarshal(w.Body.Bytes(), &doc); err != nil {
			t.Fatal(err)
		}
		return doc
	}
	config := get(issuer.ServeConfiguration(func() string { return "https://here/openid/v1/jwks" }))
	if config["issuer"] != issuerURL || config["jwks_uri"] != "https://here/openid/v1/jwks" {
		t.Errorf("configuration %v", config)
	}
	keys := get(issuer.ServeKeys())["keys"].([]any)
	key := keys[0].(map[string]any)
	if len(keys) != 1 || key["alg"] != "ES256" || key["kid"] == "" || key["d"] != nil {
		t.Errorf("keys %v", keys)
	}
}

func TestRefusesWeakKeys(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := NewIssuer(issuerURL, only(key), time.Now); err == nil {
		t.Error("a P-224 key was accepted")
	}
}

func TestBootstrapTokens(t *testing.T) {
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	good := map[string]string{
		"token-id": "abcdef", "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true",
		"expiration": "2026-01-01T01:00:00Z", "auth-extra-groups": "system:bootstrappers:servers",
	}
	for _, c := range []struct {
		name    string
		token   string
		change  map[string]string
		secret  corev1.SecretType
		ok, err bool
	}{
		{name: "good", ok: true},
		{name: "wrong secret", token: "abcdef.fedcba9876543210"},
		{name: "unknown id", token: "zzzzzz.0123456789abcdef"},
		{name: "not a token", token: "abcdef"},
		{name: "capitals", token: "ABCDEF.0123456789abcdef"},
		{name: "expired", change: map[string]string{"expiration": "2025-12-31T23:59:59Z"}},
		{name: "unreadable expiration", change: map[string]string{"expiration": "never"}},
		{name: "not for authentication", change: map[string]string{"usage-bootstrap-authentication": "false"}},
		{name: "another type", secret: corev1.SecretTypeOpaque},
		{name: "a group beyond its own", change: map[string]string{"auth-extra-groups": "system:masters"}, err: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			known, client := objects(t)
			s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "bootstrap-token-abcdef"},
				Type: corev1.SecretTypeBootstrapToken, Data: map[string][]byte{}}
			for k, v := range good {
				s.Data[k] = []byte(v)
			}
			for k, v := range c.change {
				s.Data[k] = []byte(v)
			}
			if c.secret != "" {
				s.Type = c.secret
			}
			if _, err := client.CoreV1().Secrets("kube-system").Create(context.Background(), s,
				metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			token := c.token
			if token == "" {
				token = "abcdef.0123456789abcdef"
			}
			r, ok, err := (&bootstrapTokens{known, func() time.Time { return now }}).AuthenticateToken(t.Context(),
				token)
			if ok != c.ok || (err != nil) != c.err {
				t.Fatalf("accepted %v, error %v", ok, err)
			}
			if ok &&
				(r.User.GetName() != "system:bootstrap:abcdef" ||
					!slices.Contains(r.User.GetGroups(), "system:bootstrappers:servers")) {
				t.Errorf("user %+v", r.User)
			}
		})
	}
}
