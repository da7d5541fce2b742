// Package logintest has the other ends of logins, for tests: an OpenID Connect issuer, and the
// kubeconfig of a webhook.
package logintest

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// Issuer issues ID tokens, and shows its keys by HTTPS.
type Issuer struct {
	*httptest.Server
	key crypto.Signer
}

// NewIssuer starts an issuer that ends with the test.
func NewIssuer(t testing.TB) *Issuer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	i := &Issuer{key: key}
	mux := http.NewServeMux()
	mux.HandleFunc("/.well-known/openid-configuration", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, map[string]any{"issuer": i.URL, "jwks_uri": i.URL + "/keys"})
	})
	mux.HandleFunc("/keys", func(w http.ResponseWriter, _ *http.Request) {
		answer(w,
			jose.JSONWebKeySet{
				Keys: []jose.JSONWebKey{{Key: key.Public(), KeyID: "k", Algorithm: string(jose.ES256), Use: "sig"}}})
	})
	i.Server = httptest.NewTLSServer(mux)
	t.Cleanup(i.Close)
	return i
}

func answer(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(value)
}

// CA of the issuer's certificate, in PEM.
func (i *Issuer) CA() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: i.Certificate().Raw}))
}

// Token returns a token for the audience "barque", valid for an hour, with these claims.
func (i *Issuer) Token(t testing.TB, claims map[string]any) string {
	t.Helper()
	all := map[string]any{"iss": i.URL, "aud": "barque", "sub": "1", "iat": time.Now().Unix(),
		"exp": time.Now().Add(time.Hour).Unix()}
	maps.Copy(all, claims)
	payload, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: i.key, KeyID: "k"}},
		nil)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := signer.Sign(payload)
	if err != nil {
		t.Fatal(err)
	}
	token, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// Config is an entry of the list jwt of an AuthenticationConfiguration, with the fields of the
// issuer; more fields follow it.
func (i *Issuer) Config() string {
	return fmt.Sprintf("- issuer: {url: %q, audiences: [barque], certificateAuthority: %q}\n", i.URL, i.CA())
}

// Kubeconfig writes a kubeconfig for the server of a webhook, and returns its path.
func Kubeconfig(t testing.TB, server *httptest.Server) string {
	t.Helper()
	c := clientcmdapi.NewConfig()
	c.Clusters["w"] = &clientcmdapi.Cluster{Server: server.URL}
	if server.TLS != nil {
		c.Clusters["w"].CertificateAuthorityData = pem.EncodeToMemory(
			&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	}
	c.AuthInfos["w"] = &clientcmdapi.AuthInfo{}
	c.Contexts["w"] = &clientcmdapi.Context{Cluster: "w", AuthInfo: "w"}
	c.CurrentContext = "w"
	path := filepath.Join(t.TempDir(), "webhook.kubeconfig")
	if err := clientcmd.WriteToFile(*c, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// Write writes a file, and returns its path.
func Write(t testing.TB, path, content string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// Hanging starts a server that answers no request before the test ends.
func Hanging(t testing.TB) *httptest.Server {
	t.Helper()
	over := make(chan struct{})
	s := httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-over:
		case <-r.Context().Done():
		}
	}))
	t.Cleanup(func() { close(over); s.Close() })
	return s
}
