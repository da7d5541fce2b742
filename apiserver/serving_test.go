package apiserver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"

	"github.com/barque/barque/apiserver/secureport"
	"github.com/barque/barque/internal/connlimit"
	"github.com/barque/barque/internal/syncbuf"
	"github.com/barque/barque/internal/tlsoptions"
)

// address is the address of the server's port.
func (c *cluster) address() string { return strings.TrimPrefix(c.host, "https://") }

// ends waits until a connection has ended, a minute at most.
func ends(t *testing.T, conn net.Conn) {
	t.Helper()
	if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	_, err := io.Copy(io.Discard, conn)
	if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
		t.Error("the connection is still open")
	}
}

// TestStrangersHoldNothing: a body that does not come ends its connection, without credentials and
// with bad ones; so do connections without a request, once there are too many. Meanwhile a client
// is served, and its watch goes on.
func TestStrangersHoldNothing(t *testing.T) {
	t.Parallel()
	var logged syncbuf.Buffer
	const most = 40
	c := startCluster(t, func(cfg *Config) {
		cfg.Connections = connlimit.Limits{Total: most}
		cfg.Logger = slog.New(slog.NewTextHandler(&logged, nil))
	})
	watching, err := c.admin.CoreV1().Namespaces().Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watching.Stop()
	dial := func() net.Conn {
		t.Helper()
		conn, err := tls.Dial("tcp", c.address(),
			&tls.Config{InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	for name, header := range map[string]string{"no credentials": "",
		"bad credentials": "Authorization: Bearer bad\r\n", "a bad path": "Upgrade: x\r\n"} {
		t.Run(name, func(t *testing.T) {
			conn := dial()
			_, _ = fmt.Fprintf(conn,
				"POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nHost: x\r\n%sContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{", header)
			ends(t, conn)
		})
	}
	var silent []net.Conn
	for i := range 3 * most {
		conn := dial()
		if i%2 == 0 {
			_, _ = io.WriteString(conn, "POST /api HTTP/1.1\r\nHost: ") // a header that does not end
		}
		silent = append(silent, conn)
	}
	name := "beside-strangers"
	if _, err := c.admin.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	fresh := kubernetes.NewForConfigOrDie(
		restclient.AnonymousClientConfig(
			&restclient.Config{Host: c.host, TLSClientConfig: restclient.TLSClientConfig{CAData: c.ca.pem}}))
	if _, err := fresh.Discovery().RESTClient().Get().AbsPath("/livez").DoRaw(t.Context()); err != nil &&
		!apierrors.IsForbidden(err) { // RBAC, which is empty here
		t.Errorf("health without credentials: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for found := false; !found; {
		select {
		case e, ok := <-watching.ResultChan():
			if !ok {
				t.Fatal("the watch has ended")
			}
			namespace, is := e.Object.(*corev1.Namespace)
			found = is && namespace.Name == name
		case <-ctx.Done():
			t.Fatal("the watch has no event")
		}
	}
	for _, conn := range silent[:2*most] {
		ends(t, conn)
	}
	if n := strings.Count(logged.String(), "have not authenticated"); n == 0 || n > 20 {
		t.Errorf("%d lines about closed connections", n)
	}
}

// TestTLSOptions: without options no CBC suite and no TLS below 1.2 is accepted. With them the
// server accepts those that they name. HTTP/2 stays.
func TestTLSOptions(t *testing.T) {
	t.Parallel()
	const gcm, cbc = tls.TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256, tls.TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA
	only12 := func(suites ...uint16) *tls.Config {
		return &tls.Config{MaxVersion: tls.VersionTLS12, CipherSuites: suites}
	}
	for name, s := range map[string]struct {
		options tlsoptions.Options
		good    map[string]*tls.Config
		bad     map[string]*tls.Config
	}{
		"defaults": {tlsoptions.Options{},
			map[string]*tls.Config{"TLS 1.3": {}, "TLS 1.2": only12(), "GCM": only12(gcm)},
			map[string]*tls.Config{"CBC": only12(cbc),
				"TLS 1.1": {MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}}},
		"TLS 1.3": {tlsoptions.Options{MinVersion: "VersionTLS13"},
			map[string]*tls.Config{"TLS 1.3": {}}, map[string]*tls.Config{"TLS 1.2": only12()}},
		"one suite": {tlsoptions.Options{CipherSuites: []string{"TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"}},
			map[string]*tls.Config{"GCM": only12(gcm), "TLS 1.3": {}},
			map[string]*tls.Config{"another": only12(tls.TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384)}},
	} {
		t.Run(name, func(t *testing.T) {
			c := startCluster(t, func(cfg *Config) { cfg.TLS = s.options })
			shake := func(config *tls.Config) error {
				config = config.Clone()
				config.RootCAs, config.NextProtos = x509.NewCertPool(), []string{"h2"}
				config.RootCAs.AppendCertsFromPEM(c.ca.pem)
				conn, err := tls.Dial("tcp", c.address(), config)
				if err != nil {
					return err
				}
				defer conn.Close()
				if got := conn.ConnectionState().NegotiatedProtocol; got != "h2" {
					return fmt.Errorf("the protocol is %q", got)
				}
				return nil
			}
			for what, config := range s.good {
				if err := shake(config); err != nil {
					t.Errorf("%s: %v", what, err)
				}
			}
			for what, config := range s.bad {
				if err := shake(config); err == nil {
					t.Errorf("%s is spoken", what)
				}
			}
		})
	}
}

// TestHardenedServing: no profiles, nothing without credentials but health, few streams, and
// requests succeed after a GOAWAY.
func TestHardenedServing(t *testing.T) {
	t.Parallel()
	o := secureport.NewOptions()
	o.Profiling, o.Anonymous, o.GoawayChance, o.HTTP2Streams, o.MinRequestTimeout = false, false, 0.02, 7, 1
	c := startCluster(t, func(cfg *Config) { cfg.Serving = o })
	get := func(config *restclient.Config, path string) error {
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		_, err = client.Discovery().RESTClient().Get().AbsPath(path).DoRaw(t.Context())
		return err
	}
	stranger := &restclient.Config{Host: c.host, TLSClientConfig: restclient.TLSClientConfig{CAData: c.ca.pem}}
	for _, path := range secureport.OpenPaths {
		if err := get(stranger, path); apierrors.IsUnauthorized(err) { // RBAC, which is empty here, judges
			t.Errorf("%s: %v", path, err)
		}
	}
	for _, path := range []string{"/api", "/metrics", "/debug/pprof/"} {
		if err := get(stranger, path); !apierrors.IsUnauthorized(err) {
			t.Errorf("%s without credentials: %v", path, err)
		}
	}
	admin := c.ca.client(t, c.host, pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}})
	if err := get(admin, "/debug/pprof/"); err == nil {
		t.Error("there are profiles")
	}
	for range 300 { // some six times the client has to connect again
		if err := get(admin, "/version"); err != nil {
			t.Fatal(err)
		}
	}
	watching, err := c.admin.CoreV1().ConfigMaps("default").Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watching.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for open := true; open; {
		select {
		case _, open = <-watching.ResultChan():
		case <-ctx.Done():
			t.Fatal("a watch lasts for longer than --min-request-timeout and twice that")
		}
	}
}

// TestProfilesByDefault: administrators have them.
func TestProfilesByDefault(t *testing.T) {
	t.Parallel()
	c := startCluster(t)
	var status int
	c.admin.Discovery().RESTClient().Get().AbsPath("/debug/pprof/").Do(t.Context()).StatusCode(&status)
	if status != http.StatusOK {
		t.Errorf("status %d", status)
	}
}
