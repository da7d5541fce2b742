package kubeapiserver

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// ServiceCIDR is the range of the addresses of services.
const ServiceCIDR = "10.43.0.0/16"

// Options of a cluster.
type Options struct {
	Bin     string // has the programs: see Build
	Work    string // a directory of the cluster's own
	Members int    // of etcd, and as many kube-apiservers; 1 when 0
	// NoSync leaves out etcd's fsync, where speed and safety are not looked at.
	NoSync bool
	// Controllers adds a kube-controller-manager and a kube-scheduler to each kube-apiserver. Of
	// each kind the first one leads as long as it lives.
	Controllers    bool
	ControllerArgs []string // of the kube-controller-managers, beside those that they need
	// Hosts are where the members run, each with its kube-apiserver and the actors of that. Without
	// them all are on this machine's loopback.
	Hosts []Host
}

// Host is a network that a server has to itself.
type Host struct {
	Address string
	// Do calls f on a thread in the host's network.
	Do func(f func() error) error
}

var loopback = Host{Address: "127.0.0.1", Do: func(f func() error) error { return f() }}

// Cluster is servers that run.
type Cluster struct {
	Servers []*Server
	// Client is the certificate of a member of system:masters.
	Client tls.Certificate
}

// Server is a kube-apiserver and the member of etcd that it asks.
type Server struct {
	URL       string
	Authority []byte // whose certificates are trusted, as PEM
	Roots     *x509.CertPool

	ctx       context.Context // of the cluster
	host      Host
	client    *http.Client
	program   string
	store     string
	work      string
	args      []string
	api, etcd *process
	actors    []actor // kube-controller-manager and kube-scheduler
	storeArgs []string
}

// Start starts etcd and kube-apiservers over it, with upstream's defaults but for privileged
// containers, which they allow, as Barque does. They end with the context, or with Stop.
func Start(ctx context.Context, o Options) (c *Cluster, err error) {
	members := max(1, o.Members)
	ports, err := freePorts(3 * members)
	if err != nil {
		return nil, err
	}
	hosts := o.Hosts
	if hosts == nil {
		hosts = slices.Repeat([]Host{loopback}, members)
	}
	url := func(i, port int) string { return "http://" + net.JoinHostPort(hosts[i].Address, ports[3*i+port]) }
	var stores, peers []string
	for i := range members {
		stores = append(stores, url(i, 0))
		peers = append(peers, fmt.Sprintf("m%d=%s", i, url(i, 1)))
	}
	c = &Cluster{}
	defer func() {
		if err != nil {
			c.Stop()
			c = nil
		}
	}()
	authority, signing, err := c.secrets(o.Work)
	if err != nil {
		return c, err
	}
	bin, err := filepath.Abs(o.Bin)
	if err != nil {
		return c, err
	}
	for i := range members {
		address := hosts[i].Address
		s := &Server{
			ctx: ctx, host: hosts[i], URL: "https://" + net.JoinHostPort(address, ports[3*i+2]),
			work: filepath.Join(o.Work, fmt.Sprintf("m%d", i)), program: filepath.Join(bin, "kube-apiserver"),
		}
		if err := os.MkdirAll(s.work, 0o700); err != nil {
			return c, err
		}
		peer := url(i, 1)
		args := []string{"--name", fmt.Sprintf("m%d", i), "--data-dir", filepath.Join(s.work, "etcd"),
			"--listen-client-urls", stores[i], "--advertise-client-urls", stores[i],
			"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster",
			strings.Join(peers, ",")}
		if o.NoSync {
			args = append(args, "--unsafe-no-fsync")
		}
		s.store, s.storeArgs = filepath.Join(bin, "etcd"), args
		if s.etcd, err = s.run(s.store, args...); err != nil {
			return c, err
		}
		// Each asks its own member first, and the others when that is gone.
		ordered := append(append([]string{}, stores[i:]...), stores[:i]...)
		s.args = []string{"--etcd-servers", strings.Join(ordered, ","),
			"--bind-address", address, "--advertise-address", address, "--secure-port", ports[3*i+2], "--cert-dir",
			filepath.Join(s.work, "certs"),
			"--client-ca-file", authority, "--authorization-mode", "RBAC", "--allow-privileged",
			"--service-cluster-ip-range", ServiceCIDR, "--endpoint-reconciler-type", "none",
			"--service-account-issuer", "https://kubernetes.default.svc", "--service-account-key-file", signing,
			"--service-account-signing-key-file", signing}
		c.Servers = append(c.Servers, s)
	}
	for _, s := range c.Servers {
		if err := s.start(c.Client); err != nil {
			return c, err
		}
	}
	if !o.Controllers {
		return c, nil
	}
	for _, s := range c.Servers {
		args := append([]string{"--service-account-private-key-file", signing}, o.ControllerArgs...)
		if err := s.addActors(bin, corev1.DefaultSchedulerName, c.Client, args...); err != nil {
			return c, err
		}
	}
	return c, c.lead()
}

// Stop ends all servers.
func (c *Cluster) Stop() {
	for _, s := range c.Servers {
		for _, a := range s.actors {
			if a.process != nil {
				a.process.stop()
			}
		}
	}
	for _, s := range c.Servers {
		if s.api != nil {
			s.api.stop()
		}
	}
	for _, s := range c.Servers {
		if s.etcd != nil {
			s.etcd.stop()
		}
	}
}

// run starts a program on the server's host.
func (s *Server) run(program string, args ...string) (p *process, err error) {
	err = s.host.Do(func() (err error) {
		p, err = start(s.ctx, s.work, program, args...)
		return err
	})
	return p, err
}

// start starts the kube-apiserver and waits until it is ready.
func (s *Server) start(client tls.Certificate) (err error) {
	if s.api, err = s.run(s.program, s.args...); err != nil {
		return err
	}
	return s.api.await(s.ctx, func() error {
		if s.client == nil {
			// The server has made it for itself.
			own, err := os.ReadFile(filepath.Join(s.work, "certs", "apiserver.crt"))
			if err != nil {
				return err
			}
			s.Authority = own
			s.Roots = x509.NewCertPool()
			s.Roots.AppendCertsFromPEM(own)
			s.client = &http.Client{
				Transport: &http.Transport{
					TLSClientConfig: &tls.Config{RootCAs: s.Roots, Certificates: []tls.Certificate{client}}}}
		}
		return Ready(s.ctx, s.client, s.URL)
	})
}

// Restart kills the kube-apiserver, starts it again, and returns how long it took from its start
// until it was ready.
func (s *Server) Restart() (time.Duration, error) {
	s.api.kill()
	s.client.CloseIdleConnections()
	began := time.Now()
	err := s.start(tls.Certificate{})
	return time.Since(began), err
}

// Processes returns the processes of the kube-apiserver, the member of etcd, and the actors.
func (s *Server) Processes() []int {
	var pids []int
	if s.api != nil { // else the server is not ours: see Act
		pids = append(pids, s.api.pid, s.etcd.pid)
	}
	for _, a := range s.actors {
		pids = append(pids, a.process.pid)
	}
	return pids
}

// Ready asks a server whether it is, by all checks.
func Ready(ctx context.Context, client *http.Client, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/readyz", nil)
	if err != nil {
		return err
	}
	res, err := client.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	var body bytes.Buffer
	if _, err := body.ReadFrom(res.Body); err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", res.Status, &body)
	}
	return nil
}

// secrets writes the authority of clients and the key that signs the tokens of service accounts,
// and makes the client's certificate.
func (c *Cluster) secrets(work string) (authority, signing string, err error) {
	authority, signing = filepath.Join(work, "clients.crt"), filepath.Join(work, "accounts.key")
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return "", "", err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return "", "", err
	}
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "clients"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(24 * time.Hour),
	}
	issued, err := x509.CreateCertificate(rand.Reader, ca, ca, key.Public(), key)
	if err != nil {
		return "", "", err
	}
	if c.Client, err = issue(ca, key); err != nil {
		return "", "", err
	}
	return authority, signing, errors.Join(
		os.WriteFile(signing, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600),
		os.WriteFile(authority, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: issued}), 0o600))
}

// issue makes the certificate of an administrator.
func issue(ca *x509.Certificate, signer crypto.Signer) (tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return tls.Certificate{}, err
	}
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: "admin", Organization: []string{"system:masters"}},
		NotBefore: ca.NotBefore, NotAfter: ca.NotAfter, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, ca, key.Public(), signer)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, err
}
