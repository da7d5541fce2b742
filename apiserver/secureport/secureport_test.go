package secureport

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/barque/barque/internal/httpserver"
)

// TestARevokedClientIsAStranger: a connection was authenticated by a certificate that is revoked
// then. After the next request it counts among the connections of strangers again. A token that is
// refused on a connection without a certificate changes nothing: a proxy has others on it. Nor does
// a refused user of an authenticating proxy.
func TestARevokedClientIsAStranger(t *testing.T) {
	for what, c := range map[string]struct {
		certificate bool
		anonymous   bool // a refused client is anonymous
		proxy       bool // whether the connection is an authenticating proxy's
		strangers   int
	}{
		"a certificate": {true, false, false, 1}, "a certificate, and anonymous users": {true, true, false, 1},
		"a token":        {false, false, false, 0},
		"a proxy's user": {true, false, true, 0}, "a proxy's anonymous user": {true, true, true, 0},
	} {
		t.Run(what, func(t *testing.T) {
			var revoked atomic.Bool
			authenticates := Authenticator(
				authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
					switch {
					case !revoked.Load():
						return &authenticator.Response{User: &user.DefaultInfo{Name: "ann"}}, true, nil
					case c.anonymous:
						return &authenticator.Response{User: &user.DefaultInfo{Name: user.Anonymous}}, true, nil
					}
					return nil, false, errors.New("it is revoked")
				}), func(*http.Request) bool { return c.proxy })
			certPEM, keyPEM, err := selfSigned("localhost", time.Now())
			if err != nil {
				t.Fatal(err)
			}
			pair, err := tls.X509KeyPair(certPEM, keyPEM)
			if err != nil {
				t.Fatal(err)
			}
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			var from atomic.Value // the client's address
			server := httpserver.New(
				httpserver.Config{Listener: listener,
					TLS:    &tls.Config{Certificates: []tls.Certificate{pair}, ClientAuth: tls.RequestClientCert},
					Logger: slog.New(slog.DiscardHandler),
					Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
						from.Store(r.RemoteAddr)
						_, _, _ = authenticates.AuthenticateRequest(r)
					})})
			served := make(chan error, 1)
			go func() { served <- server.Serve() }()
			defer func() {
				if err := server.Close(); err != nil {
					t.Error(err)
				}
				<-served
			}()
			roots := x509.NewCertPool()
			roots.AppendCertsFromPEM(certPEM)
			client := &tls.Config{RootCAs: roots, ServerName: "localhost"}
			if c.certificate {
				client.GetClientCertificate = func(
					*tls.CertificateRequestInfo,
				) (*tls.Certificate, error) {
					return &pair, nil
				}
			}
			transport := &http.Transport{TLSClientConfig: client}
			defer transport.CloseIdleConnections()
			call := func() string {
				response, err := (&http.Client{Transport: transport}).Get("https://" + listener.Addr().String())
				if err != nil {
					t.Fatal(err)
				}
				if _, err := io.Copy(io.Discard, response.Body); err != nil {
					t.Fatal(err)
				}
				_ = response.Body.Close()
				return from.Load().(string)
			}
			first := call()
			if n := server.Strangers(); n != 0 {
				t.Errorf("%d strangers while it counts", n)
			}
			revoked.Store(true)
			if call() != first {
				t.Fatal("the second request has a connection of its own")
			}
			if n := server.Strangers(); n != c.strangers {
				t.Errorf("%d strangers, want %d", n, c.strangers)
			}
			revoked.Store(false)
			call()
			if n := server.Strangers(); n != 0 {
				t.Errorf("%d strangers when it counts again", n)
			}
		})
	}
}
