package main

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	clustertest "github.com/barque/barque/cluster-test"
	"github.com/barque/barque/cluster-test/program"
	"github.com/barque/barque/cluster-test/sides"
	"github.com/barque/barque/internal/osthread"
)

// workers are the threads, or the processes, of each proxy: one for each core of the machines that
// this is run on.
const workers = 2

// backendPort is where the backend serves, on the address of the node.
const backendPort = 8440

// node is the agent on which all proxies run. It has no control plane in its process.
const node = "a1"

// site is a cluster of a server and an agent, and the backend. All proxies run in the network
// namespace of the agent, and clients are outside of it: all packets take the same way.
type site struct {
	work    string
	cluster *clustertest.Cluster
	config  *rest.Config
	address string // of the agent
	pid     int    // of the agent's process, in which Barque's gateway is
	backend string // its address
	roots   *x509.CertPool
	server  *program.Program // the backend
}

func newSite(ctx context.Context) (s *site, err error) {
	s = &site{}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close())
		}
	}()
	if s.work, err = os.MkdirTemp("", "edgebench-"); err != nil {
		return s, err
	}
	if err := s.certify(); err != nil {
		return s, err
	}
	progress("starting a server and an agent")
	if s.cluster, err = clustertest.Up(ctx, clustertest.Options{Servers: 1, Agents: 1}); err != nil {
		return s, err
	}
	if err := s.find(ctx); err != nil {
		return s, err
	}
	if s.config, err = clientcmd.BuildConfigFromFlags("", s.cluster.Kubeconfig()); err != nil {
		return s, err
	}
	s.config.QPS = -1
	s.backend = s.at(backendPort)
	own, err := os.Executable()
	if err != nil {
		return s, err
	}
	if s.server, err = s.start("backend", exec.Command(own, serveBackend, s.backend)); err != nil {
		return s, err
	}
	err = s.server.Await(ctx, func() error {
		c, err := (&load{to: s.backend, host: hostOf(0), protocol: http1}).connect(ctx)
		if err == nil {
			err = c.exchange()
			c.close()
		}
		return err
	})
	return s, err
}

// find learns where the agent is.
func (s *site) find(ctx context.Context) error {
	r := s.cluster.DevResult(ctx, "status", "-o", "json")
	if r.Error != nil {
		return r.Error
	}
	var status struct {
		Nodes []struct {
			Name, Address string
			PID           int
		}
	}
	if err := json.Unmarshal([]byte(r.Out), &status); err != nil {
		return err
	}
	for _, n := range status.Nodes {
		if n.Name == node {
			s.address, s.pid = n.Address, n.PID
			return nil
		}
	}
	return fmt.Errorf("the cluster has no node %s: %s", node, r.Out)
}

// start starts a program on the agent's machine.
func (s *site) start(name string, cmd *exec.Cmd) (*program.Program, error) {
	in := func(f func() error) error { return osthread.InNetwork(s.cluster.Netns(node), f) }
	return program.Start(in, s.work, name, cmd)
}

// use is the use of the agent's process.
func (s *site) use() (sides.Usage, error) { return sides.Process(s.pid) }

func (s *site) close() (err error) {
	if s.server != nil {
		err = s.server.Stop()
	}
	if s.cluster != nil {
		err = errors.Join(err, s.cluster.Down())
	}
	if s.work != "" {
		err = errors.Join(err, os.RemoveAll(s.work))
	}
	return err
}

// at is a port of the agent.
func (s *site) at(port int) string { return net.JoinHostPort(s.address, fmt.Sprint(port)) }

func (s *site) file(name string) string { return filepath.Join(s.work, name) }
func (s *site) chain() string           { return s.file("edge.crt") }
func (s *site) key() string             { return s.file("edge.key") }

func (s *site) write(name string, data []byte) error { return os.WriteFile(s.file(name), data, 0o600) }

// read reads a file that this program has written.
func (s *site) read(path string) []byte {
	data, err := os.ReadFile(path)
	if err != nil {
		panic(err)
	}
	return data
}

// domain is that of all routes.
const domain = "edge.example.com"

// hostOf is the host of a route.
func hostOf(n int) string { return fmt.Sprintf("route-%d.%s", n, domain) }

// hosts are those of the first routes.
func hosts(n int) (all []string) {
	for i := range n {
		all = append(all, hostOf(i))
	}
	return all
}

// certify makes the certificate of all proxies.
func (s *site) certify() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: domain}, DNSNames: []string{"*." + domain},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(30 * 24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return err
	}
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return err
	}
	s.roots = x509.NewCertPool()
	s.roots.AddCert(certificate)
	return errors.Join(
		s.write("edge.crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		s.write("edge.key", pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: raw})))
}

// tls is the configuration of clients.
func (s *site) tls() *tls.Config { return &tls.Config{RootCAs: s.roots} }

// backendIP is the address of the backend, for an EndpointSlice.
func (s *site) backendIP() netip.Addr { return netip.MustParseAddr(s.address) }
