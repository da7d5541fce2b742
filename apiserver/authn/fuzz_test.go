package authn

import (
	"context"
	"encoding/base64"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
)

// FuzzTokens: of all texts, those alone count as tokens whose first two parts the issuer has
// signed. A signature has a second, equivalent form, so the third part may differ.
func FuzzTokens(f *testing.F) {
	issuer, err := NewIssuer(issuerURL, only(newKey(f)), time.Now)
	if err != nil {
		f.Fatal(err)
	}
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "robot", UID: "sa-1"}}
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "lasting", UID: "secret-1"},
		Data: map[string][]byte{}}
	good, _, _, err := issuer.Issue(
		Binding{Namespace: "ns", ServiceAccount: "robot", ServiceAccountUID: "sa-1", Audiences: []string{issuerURL},
			Lifetime: time.Hour})
	if err != nil {
		f.Fatal(err)
	}
	lasting, err := issuer.IssueLegacy(
		Binding{Namespace: "ns", ServiceAccount: "robot", ServiceAccountUID: "sa-1", SecretName: "lasting",
			SecretUID: "secret-1"})
	if err != nil {
		f.Fatal(err)
	}
	secret.Data[corev1.ServiceAccountTokenKey] = []byte(lasting)
	client := fake.NewClientset(account, secret)
	core := informers.NewSharedInformerFactory(client, 0).Core().V1()
	known := &Objects{Client: client, ServiceAccounts: core.ServiceAccounts().Lister(), Pods: core.Pods().Lister(),
		Nodes: core.Nodes().Lister()}
	audiences := authenticator.Audiences{issuerURL}
	kinds := []authenticator.Token{&serviceAccountTokens{issuer, known, audiences, time.Now},
		&legacyTokens{issuer, known, audiences, time.Now}, &bootstrapTokens{known, time.Now}}
	b64 := base64.RawURLEncoding.EncodeToString
	claims := strings.Split(good, ".")[1]
	for _, seed := range []string{
		good, lasting, "", "a.b.c", "..", "abcdef.0123456789abcdef", good + ".", good[:len(good)-2], "Bearer " + good,
		strings.ToUpper(good),
		b64([]byte(`{"alg":"none"}`)) + "." + claims + ".", b64([]byte(`{"alg":"HS256"}`)) + "." + claims + ".AAAA",
		b64([]byte(`{"alg":"ES256","kid":null}`)) + "." + claims + "." + b64(make([]byte, 64)),
		b64([]byte(`{"alg":"ES256","crit":["exp"],"exp":1}`)) + "." + claims + "." + b64(make([]byte, 64)),
		b64([]byte(`{"alg":"RS256","jwk":{"kty":"oct","k":"AAAA"}}`)) + "." + claims + ".AAAA",
		b64([]byte(`{"alg":"ES256"}`)) + "." + b64([]byte(`{"iss":"`+issuerURL+`","exp":1e400}`)) + ".AAAA",
		`{"payload":"` + claims + `","signatures":[{"protected":"e30","signature":"AAAA"}]}`,
	} {
		f.Add(seed)
	}
	signed := func(token string) string { return token[:max(0, strings.LastIndexByte(token, '.'))] }
	f.Fuzz(func(t *testing.T, token string) {
		_ = IsBootstrapToken(token)
		for _, kind := range kinds {
			if r, ok, err := kind.AuthenticateToken(context.Background(), token); ok && signed(token) != signed(good) &&
				signed(token) != signed(lasting) {
				t.Errorf("%q is of %+v (%v)", token, r.User, err)
			}
		}
	})
}

// FuzzBootstrapSecret: a token counts by its Secret's text alone, for no name but its own, and in
// no group but those of bootstrapping. A time that cannot be read makes it void.
func FuzzBootstrapSecret(f *testing.F) {
	f.Add("abcdef", "0123456789abcdef", "true", "2026-01-01T01:00:00Z", "system:bootstrappers:servers")
	f.Add("abcdef", "0123456789abcdef", "true", "", "")
	f.Add("abcdef", "0123456789abcdef", "true", "never", "system:masters")
	f.Add("abcdef", "0123456789abcdef", "TRUE", "2026-01-01T01:00:00+25:00",
		" system:bootstrappers:a ,, system:bootstrappers:\n")
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, id, secret, usage, expiration, groups string) {
		client := fake.NewClientset(
			&corev1.Secret{
				ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceSystem, Name: "bootstrap-token-abcdef"},
				Type:       corev1.SecretTypeBootstrapToken,
				Data: map[string][]byte{"token-id": []byte(id), "token-secret": []byte(secret),
					"usage-bootstrap-authentication": []byte(usage), "expiration": []byte(expiration),
					"auth-extra-groups": []byte(groups)}})
		tokens := &bootstrapTokens{&Objects{Client: client}, func() time.Time { return now }}
		r, ok, err := tokens.AuthenticateToken(context.Background(), "abcdef.0123456789abcdef")
		if !ok {
			return
		}
		end, unreadable := time.Parse(time.RFC3339, expiration)
		if err != nil || id != "abcdef" || secret != "0123456789abcdef" || usage != "true" ||
			expiration != "" && (unreadable != nil || !end.After(now)) ||
			r.User.GetName() != "system:bootstrap:abcdef" {
			t.Errorf("it counts for %+v (%v)", r.User, err)
		}
		for _, g := range r.User.GetGroups() {
			if g != "system:bootstrappers" && !strings.HasPrefix(g, "system:bootstrappers:") {
				t.Errorf("it counts for the group %q", g)
			}
		}
	})
}
