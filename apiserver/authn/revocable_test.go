package authn

import (
	"context"
	cryptox509 "crypto/x509"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"

	"github.com/barque/barque/internal/cutoff"
)

// revoking is all authenticators of a server, and a certificate that is revoked there.
func revoking(t *testing.T, authority *signer) (authenticator.Request, *atomic.Pointer[cryptox509.Certificate]) {
	t.Helper()
	trust, bad := &trusted{}, &atomic.Pointer[cryptox509.Certificate]{}
	trust.set(authority)
	requests, _, err := New(
		Config{ClientCAs: trust.options, ProxyClients: []string{"client-proxy"}, Objects: &Objects{}, Now: time.Now,
			Revoked: func(leaf *cryptox509.Certificate) error {
				if is := bad.Load(); is != nil && leaf.Equal(is) {
					return errors.New("it is revoked")
				}
				return nil
			}})
	if err != nil {
		t.Fatal(err)
	}
	return requests, bad
}

// TestARevokedCertificateCountsForNothing: also if it is cached as a good one, or is a proxy's, or
// a name in headers comes along. It does not become a request without credentials.
func TestARevokedCertificateCountsForNothing(t *testing.T) {
	authority := certificate(t, nil, "CA", time.Now().Add(2*time.Hour))
	between := certificate(t, authority, "between", time.Now().Add(time.Hour))
	for what, c := range map[string]struct {
		name    string
		by      *signer
		asks    bool // before it is revoked
		headers http.Header
		was     string // the user before
	}{
		"not seen before":      {name: "client", by: authority, was: "client"},
		"remembered":           {name: "client", by: authority, asks: true, was: "client"},
		"of another authority": {name: "client", by: between, asks: true, was: "client"},
		"a front proxy": {name: "client-proxy", by: authority, asks: true,
			headers: http.Header{UserHeader: {"mary"}, GroupHeader: {"system:masters"}}, was: "mary"},
		"one without a name": {name: "client-proxy", by: authority, asks: true, was: "client-proxy"},
		"a user with headers": {name: "client", by: authority, asks: true,
			headers: http.Header{UserHeader: {"mary"}, GroupHeader: {"system:masters"}}, was: "client"},
	} {
		requests, bad := revoking(t, authority)
		cert := certificate(t, c.by, c.name, time.Now().Add(time.Hour)).cert
		ask := func() (string, error) {
			r := with(cert)
			if c.by == between {
				r = with(cert, between.cert)
			}
			for name, values := range c.headers {
				r.Header[http.CanonicalHeaderKey(name)] = values
			}
			response, ok, err := requests.AuthenticateRequest(r)
			if !ok {
				return "", err
			}
			return response.User.GetName(), err
		}
		if c.asks {
			if name, err := ask(); name != c.was || err != nil {
				t.Errorf("%s, before: %q, %v", what, name, err)
			}
		}
		bad.Store(cert)
		if name, err := ask(); name != "" || err == nil {
			t.Errorf("%s: %q, %v", what, name, err)
		}
		bad.Store(nil)
		if name, err := ask(); name != c.was || err != nil {
			t.Errorf("%s, of another one: %q, %v", what, name, err)
		}
	}
}

// TestWhatACertificateProvesEndsWithItsCA: the CA is trusted no more while a request waits behind
// its authentication. Requests of users by another proof go on.
func TestWhatACertificateProvesEndsWithItsCA(t *testing.T) {
	authority, next := certificate(t, nil, "CA", time.Now().Add(2*time.Hour)),
		certificate(t, nil, "next", time.Now().Add(2*time.Hour))
	for what, c := range map[string]struct {
		by   *signer
		name string
		ends bool
	}{
		"a user": {authority, "client", true}, "a server for a user": {authority, "client-proxy", true},
		"of another CA": {next, "client", false},
	} {
		trust := &trusted{}
		trust.set(authority)
		requests, _, err := New(
			Config{ClientCAs: trust.options, ProxyClients: []string{"client-proxy"}, Objects: &Objects{},
				Now: time.Now})
		if err != nil {
			t.Fatal(err)
		}
		r := with(certificate(t, c.by, c.name, time.Now().Add(time.Hour)).cert)
		r.Header = http.Header{UserHeader: {"mary"}}
		lasting := cutoff.New(cutoff.ByCluster, nil,
			func(*cryptox509.Certificate) (cryptox509.VerifyOptions, bool) { return trust.options() },
			func(*http.Request) bool { return true })
		cutoff.WithProof(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, ok, _ := requests.AuthenticateRequest(r); ok != c.ends {
				t.Errorf("%s: authenticated is %t", what, ok)
			}
			trust.set(next)
			lasting.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if err := context.Cause(r.Context()); (err != nil) != c.ends {
					t.Errorf("%s: ended by %v", what, err)
				}
			})).ServeHTTP(w, r)
		})).ServeHTTP(httptest.NewRecorder(), r)
	}
}
