package apiserver

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"

	"github.com/barque/barque/raftstore"
)

// testCA signs the certificates of a test cluster.
type testCA struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newCA(t testing.TB) *testCA { return newNamedCA(t, "test-ca") }

func newNamedCA(t testing.TB, name string) *testCA {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &testCA{cert, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

func (ca *testCA) issue(t testing.TB, subject pkix.Name, ips ...net.IP) *tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: subject, IPAddresses: ips,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, ca.cert, key.Public(), ca.key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// client is the configuration of a client with a certificate.
func (ca *testCA) client(t testing.TB, host string, subject pkix.Name) *restclient.Config {
	t.Helper()
	cert := ca.issue(t, subject)
	der, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	return &restclient.Config{Host: host, QPS: -1, TLSClientConfig: restclient.TLSClientConfig{
		CAData:   ca.pem,
		CertData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]}),
		KeyData:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}),
	}}
}

// cluster is a running server over a store in memory.
type cluster struct {
	*Server
	ca    *testCA
	host  string
	ready time.Duration // from its start to readyz
	admin kubernetes.Interface

	kubelet int32 // port of a kubelet, if a test has started one
}

func startCluster(t testing.TB, change ...func(*Config)) *cluster {
	t.Helper()
	began := time.Now()
	c := startUnready(t, change...)
	c.awaitReady(t)
	c.ready = time.Since(began)
	return c
}

// startUnready is startCluster without waiting until the server is ready.
func startUnready(t testing.TB, change ...func(*Config)) *cluster {
	t.Helper()
	store := raftstore.NewInMemory(raftstore.Options{})
	t.Cleanup(func() { _ = store.Close() })
	ca := newCA(t)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	saKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serving := ca.issue(t, pkix.Name{CommonName: "kube-apiserver"}, net.IPv4(127, 0, 0, 1))
	cfg := Config{
		Name:            "test",
		Store:           store,
		Listener:        ln,
		Advertise:       netip.MustParseAddrPort(ln.Addr().String()),
		Certificate:     func() (*tls.Certificate, error) { return serving, nil },
		ClientCA:        func() ([]byte, error) { return ca.pem, nil },
		ServiceAccounts: ServiceAccounts{Keys: func() (crypto.Signer, []crypto.PublicKey) { return saKey, nil }},
		ServiceCIDR:     netip.MustParsePrefix("10.43.0.0/16"),
		Logger:          slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
	for _, f := range change {
		f(&cfg)
	}
	s, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("server: %v", err)
		}
	})
	c := &cluster{Server: s, ca: ca, host: "https://" + ln.Addr().String()}
	c.admin = kubernetes.NewForConfigOrDie(
		ca.client(t, c.host, pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}}))
	return c
}

func (c *cluster) awaitReady(t testing.TB) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(context.Background(), 10*time.Millisecond, time.Minute, true,
		func(ctx context.Context) (bool, error) {
			body, err := c.admin.Discovery().RESTClient().Get().AbsPath("/readyz").Param("verbose", "").Param("exclude",
				BootstrapCheck).DoRaw(ctx)
			if err != nil {
				last = fmt.Errorf("%w: %s", err, body)
			}
			return err == nil, nil
		})
	if err != nil {
		t.Fatalf("not ready: %v", last)
	}
}

// atRest calls a function until nothing was written meanwhile: a server that has started goes on
// writing for a while, and readings of the store's revision change by that.
func (c *cluster) atRest(t testing.TB, read func()) {
	t.Helper()
	revision := func() uint64 { return must(c.cfg.Store.View(t.Context(), raftstore.ViewOptions{}))(t).Revision() }
	await(t, "the store is at rest", func(context.Context) (error, bool) {
		before := revision()
		read()
		after := revision()
		return fmt.Errorf("revision %d became %d", before, after), before == after
	})
}

func (c *cluster) raw(t testing.TB, path string, header http.Header) (int, []byte) {
	t.Helper()
	client, err := restclient.HTTPClientFor(
		c.ca.client(t, c.host, pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}}))
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	req, err := http.NewRequest(http.MethodGet, c.host+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range header {
		req.Header[k] = v
	}
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, body
}

func TestStartsReady(t *testing.T) {
	c := startCluster(t)
	t.Logf("ready after %s", c.ready)
}

// A watch ends when its server stops, and does not delay it.
func TestStopEndsWatches(t *testing.T) {
	var w watch.Interface
	t.Run("serve", func(t *testing.T) {
		c := startCluster(t)
		var err error
		if w, err = c.admin.CoreV1().ConfigMaps("").Watch(context.Background(), metav1.ListOptions{}); err != nil {
			t.Fatal(err)
		}
	})
	// The server has stopped now: the subtest's cleanup waits for it.
	deadline := time.After(2 * time.Minute) // a watch that is not ended goes on for ever
	for {
		select {
		case _, open := <-w.ResultChan():
			if !open {
				return
			}
		case <-deadline:
			t.Fatal("the watch goes on after the server has stopped")
		}
	}
}
