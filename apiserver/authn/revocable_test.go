package authn

import (
	"crypto/tls"
	cryptox509 "crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"

	"github.com/barque/barque/internal/httpserver"
)

// revoking is all authenticators of a server, and a certificate that is revoked there.
func revoking(t *testing.T, authority *signer) (authenticator.Request, *atomic.Pointer[cryptox509.Certificate]) {
	t.Helper()
	trust, bad := &trusted{}, &atomic.Pointer[cryptox509.Certificate]{}
	trust.set(authority)
	requests, _, err := New(Config{ClientCAs: trust.options, ProxyClients: []string{"client-proxy"}, Objects: &Objects{}, Now: time.Now,
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

// TestARevokedCertificateCountsForNothing: whether it is remembered as a good one, or speaks for
// others, or a name in headers comes along. It does not become a request without credentials.
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
		"a front proxy":        {name: "client-proxy", by: authority, asks: true, headers: http.Header{UserHeader: {"mary"}, GroupHeader: {"system:masters"}}, was: "mary"},
		"one without a name":   {name: "client-proxy", by: authority, asks: true, was: "client-proxy"},
		"a user with headers":  {name: "client", by: authority, asks: true, headers: http.Header{UserHeader: {"mary"}, GroupHeader: {"system:masters"}}, was: "client"},
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

// TestARevokedClientIsAStranger: its connections are bounded from then on like those of anybody.
func TestARevokedClientIsAStranger(t *testing.T) {
	authority := certificate(t, nil, "CA", time.Now().Add(2*time.Hour))
	client := certificate(t, authority, "client", time.Now().Add(time.Hour))
	requests, bad := revoking(t, authority)
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	serving := tls.Certificate{Certificate: [][]byte{authority.cert.Raw}, PrivateKey: authority.key}
	server := httpserver.New(httpserver.Config{Listener: listener, Logger: slog.New(slog.DiscardHandler),
		TLS: &tls.Config{Certificates: []tls.Certificate{serving}, ClientAuth: tls.RequestClientCert, NextProtos: []string{"h2", "http/1.1"}},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, ok, _ := requests.AuthenticateRequest(r); !ok {
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			httpserver.Authenticate(r.Context())
		})})
	ended := make(chan error, 1)
	go func() { ended <- server.Serve() }() // ends with Close
	defer func() {
		_ = server.Close()
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	}()
	transport := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true,
		Certificates: []tls.Certificate{{Certificate: [][]byte{client.cert.Raw}, PrivateKey: client.key}}}}
	defer transport.CloseIdleConnections()
	ask := func() int {
		t.Helper()
		answer, err := (&http.Client{Transport: transport}).Get("https://" + listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		_, _ = io.Copy(io.Discard, answer.Body)
		return answer.StatusCode
	}
	if status := ask(); status != http.StatusOK || server.Strangers() != 0 {
		t.Fatalf("%d, %d strangers", status, server.Strangers())
	}
	bad.Store(client.cert)
	if status := ask(); status != http.StatusUnauthorized || server.Strangers() != 1 {
		t.Errorf("%d, %d strangers", status, server.Strangers())
	}
}
