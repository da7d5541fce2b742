package node

import (
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/barque/barque/internal/lifecycle"
	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/pki"
)

// serverIdentities are the certificates that a server shows. It holds the CA key, so it issues
// them to itself and renews them by itself.
type serverIdentities struct {
	ca              *pki.Authority
	serviceAccounts crypto.Signer
	peer            *pki.Identity // to other servers, both as client and as server
	api             *pki.Identity // of the API
	kubeletClient   *pki.Identity // of the API server as a client of kubelets
	kubelet         *pki.Identity // of this node's own server
	admin           crypto.Signer // key of the administrator's kubeconfig
	proof           *credential
}

func newServerIdentities(ctx context.Context, o *Options, s Settings, logger *slog.Logger) (*serverIdentities, error) {
	dir := pkiDir(o.DataDir)
	ca, err := pki.LoadAuthority(dir)
	if err != nil {
		return nil, fmt.Errorf("the cluster's CA: %w", err)
	}
	ids := &serverIdentities{ca: ca}
	if ids.serviceAccounts, err = pki.LoadOrCreateKey(filepath.Join(dir, serviceAccountKey)); err != nil {
		return nil, err
	}
	key, err := pki.LoadOrCreateKey(filepath.Join(dir, "node.key"))
	if err != nil {
		return nil, err
	}
	if ids.admin, err = pki.LoadOrCreateKey(filepath.Join(dir, "admin.key")); err != nil {
		return nil, err
	}
	servers := []string{join.ServersOrganization}
	for _, want := range []struct {
		into    **pki.Identity
		request pki.Request
	}{
		{&ids.peer, pki.Request{CommonName: o.Name, Organization: servers, Usage: pki.Client | pki.Server, Names: []string{o.Name, o.NodeIP}}},
		{&ids.api, pki.Request{CommonName: "barque:apiserver", Organization: servers, Usage: pki.Server, Names: apiNames(o, s)}},
		{&ids.kubeletClient, pki.Request{CommonName: "barque:apiserver", Organization: []string{"system:masters"}, Usage: pki.Client}},
		{&ids.kubelet, join.NodeServing(o.Name, o.addr())},
	} {
		request := want.request
		*want.into, err = pki.NewIdentity(ctx, pki.IdentityConfig{Name: request.CommonName, Key: key, Now: time.Now, Logger: logger,
			Issue: ca.Issuer(func() pki.Request { return request }, time.Now)})
		if err != nil {
			return nil, err
		}
	}
	ids.proof, err = newCredential(o, func(public ed25519.PublicKey) ([]byte, error) {
		return ca.SignCredential(pki.Credential{Name: o.Name, Role: roleServer, Public: public, NotAfter: time.Now().Add(pki.LeafLifetime)})
	})
	return ids, err
}

// apiNames are all names by which clients call the API server.
func apiNames(o *Options, s Settings) []string {
	return []string{"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc." + s.Domain,
		"localhost", o.Name, o.NodeIP, "127.0.0.1", s.apiAddr().String()}
}

// run renews the certificates in time.
func (ids *serverIdentities) run(ctx context.Context) error {
	return lifecycle.All(ctx, ids.peer.Run, ids.api.Run, ids.kubeletClient.Run, ids.kubelet.Run, ids.proof.run)
}

// kubeletClientTLS is how the API server calls kubelets.
func (ids *serverIdentities) kubeletClientTLS() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: ids.ca.Pool(), GetClientCertificate: ids.kubeletClient.GetClientCertificate}
}

// kubeletServerTLS is how this node's own server is called.
func kubeletServerTLS(serving *pki.Identity, ca *pki.Authority) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: serving.GetCertificate, ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: ca.Pool()}
}

// credential is this node's proof to the gossip pool, renewed like a certificate.
type credential struct {
	key   ed25519.PrivateKey
	issue func(ed25519.PublicKey) ([]byte, error)

	mu   sync.Mutex
	data []byte
}

func newCredential(o *Options, issue func(ed25519.PublicKey) ([]byte, error)) (*credential, error) {
	key, err := gossipKeyOf(o.DataDir)
	if err != nil {
		return nil, err
	}
	c := &credential{key: key, issue: issue}
	return c, c.renew()
}

func (c *credential) renew() error {
	data, err := c.issue(c.key.Public().(ed25519.PublicKey))
	if err != nil {
		return fmt.Errorf("gossip credential: %w", err)
	}
	c.mu.Lock()
	c.data = data
	c.mu.Unlock()
	return nil
}

// run renews the credential when a third of its life is over. A failure is tried again then: two
// more chances are left.
func (c *credential) run(ctx context.Context) error {
	ticker := time.NewTicker(pki.LeafLifetime / 3)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
			if err := c.renew(); err != nil {
				return err
			}
		}
	}
}

func (c *credential) proof() gossip.Proof {
	c.mu.Lock()
	defer c.mu.Unlock()
	return gossip.Proof{Credential: c.data, Key: c.key}
}

// pool is the CA as a set of roots.
func pool(ca *pki.Authority) func() *x509.CertPool {
	roots := ca.Pool()
	return func() *x509.CertPool { return roots }
}
