// Package lone runs Barque's API server alone, in this process, over a store in memory: for
// programs that compare its answers (`make answers`), or the effects of the objects that it serves
// (`make bench-network`). Nothing else of a cluster runs.
package lone

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
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/barque/barque/apiserver"
	"github.com/barque/barque/cluster-test/kubeapiserver"
	"github.com/barque/barque/raftstore"
)

// Server is an API server that runs.
type Server struct {
	URL  string
	CA   []byte       // of its certificate, as PEM
	HTTP *http.Client // trusts it
	// Stop waits until it has ended.
	Stop func()
}

// Start starts one on a listener at the loopback, and waits until it is ready. The token is a
// member's of system:masters; a directory has a file with it. It ends with the context, or with
// Stop.
func Start(ctx context.Context, work, token string, ln net.Listener) (*Server, error) {
	tokens := filepath.Join(work, "tokens.csv")
	if err := os.WriteFile(tokens, []byte(token+",admin,1,system:masters\n"), 0o600); err != nil {
		return nil, err
	}
	cert, err := selfSigned()
	if err != nil {
		return nil, err
	}
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]})
	signer, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	store := raftstore.NewInMemory(raftstore.Options{})
	api, err := apiserver.New(apiserver.Config{
		Name:        "lone",
		Store:       store,
		Listener:    ln,
		Advertise:   netip.MustParseAddrPort(ln.Addr().String()),
		Certificate: func() (*tls.Certificate, error) { return cert, nil },
		ClientCA:    func() ([]byte, error) { return ca, nil },
		ServiceAccounts: apiserver.ServiceAccounts{
			Keys: func() (crypto.Signer, []crypto.PublicKey) { return signer, nil }},
		KubeletClient: func() *tls.Config { return &tls.Config{} },
		IsKubelet: func(node *corev1.Node, _ tls.ConnectionState) error {
			return fmt.Errorf("node %q has no kubelet", node.Name)
		},
		ServiceCIDR: netip.MustParsePrefix(kubeapiserver.ServiceCIDR),
		TokenFile:   tokens,
		Logger:      slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	if err != nil {
		return nil, err
	}
	running, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	// It ends with the context, which Stop ends and waits for.
	go func() { done <- api.Run(running) }()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	s := &Server{
		URL: "https://" + ln.Addr().String(), CA: ca,
		HTTP: &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}},
		Stop: func() { cancel(); <-done; _ = store.Close() },
	}
	client, err := kubernetes.NewForConfig(
		&rest.Config{Host: s.URL, BearerToken: token, QPS: -1, TLSClientConfig: rest.TLSClientConfig{CAData: ca}})
	if err == nil {
		err = kubeapiserver.Retry(ctx, nil, func() error { return api.Prepare(ctx, client) })
	}
	if err == nil {
		err = kubeapiserver.Retry(ctx, nil, func() error { return kubeapiserver.Ready(ctx, s.HTTP, s.URL) })
	}
	if err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

// selfSigned makes a certificate for the loopback that is its own authority.
func selfSigned() (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "lone"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
