package server

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/barque/barque/internal/connlimit"
	"github.com/barque/barque/internal/kubeletapi"
)

// servingTLS is a certificate of a server, which is also a client of the group
// that kubelets accept.
func servingTLS(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1),
		Subject:   pkix.Name{CommonName: "x", Organization: []string{kubeletapi.ClientGroup}},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), IsCA: true,
		BasicConstraintsValid: true,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

// TestStrangersHoldNothing: a body that does not come ends its connection, and so do silent
// connections once there are too many. An API server is served meanwhile over its old connection.
func TestStrangersHoldNothing(t *testing.T) {
	cert, pool := servingTLS(t)
	const most = 20
	s, err := New(
		Config{NodeName: "n", TLS: &tls.Config{Certificates: []tls.Certificate{cert}, ClientCAs: pool}, Pods: podList{},
			Limits: connlimit.Limits{Total: most}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, listener) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	dial := func() net.Conn {
		conn, err := tls.Dial("tcp", listener.Addr().String(), &tls.Config{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	ends := func(conn net.Conn) {
		t.Helper()
		_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
		_, err := io.Copy(io.Discard, conn)
		if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
			t.Error("the connection is still open")
		}
	}
	connections := 0
	client := &http.Client{
		Transport: &http.Transport{
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{cert}},
			DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
				connections++
				return (&net.Dialer{}).DialContext(ctx, network, address)
			}}}
	defer client.CloseIdleConnections()
	ask := func() {
		t.Helper()
		answer, err := client.Get("https://" + listener.Addr().String() + "/pods")
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, answer.Body)
		answer.Body.Close()
		if answer.StatusCode != http.StatusOK {
			t.Fatalf("status %d", answer.StatusCode)
		}
	}
	ask()
	conn := dial()
	_, _ = io.WriteString(conn, "POST /run/a/b/c HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nx")
	ends(conn)
	var silent []net.Conn
	for range 3 * most {
		silent = append(silent, dial())
	}
	ask()
	for _, conn := range silent[:2*most] {
		ends(conn)
	}
	if connections != 1 {
		t.Errorf("the API server had to connect %d times", connections)
	}
}
