package credentials

import (
	"cmp"
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/barque/barque/membership/balancer"
	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/pki/identity"
)

// AgentConfig configures an agent's certificates.
type AgentConfig struct {
	Address netip.Addr
	DataDir string
	Named   []join.Server // at the addresses of --server: also asked
	Record  Record
	Logger  *slog.Logger
}

// Agent holds the certificates of an agent. A server issues them together: in time, and when gossip
// shows a change of the cluster's CAs.
type Agent struct {
	config  AgentConfig
	record  Record
	Trust   *pki.Trust
	key     crypto.Signer
	Client  *identity.Identity // as system:node:<name>
	Serving *identity.Identity // of the node's own server
	proof   *credential
	logger  *slog.Logger
	failed  failures

	renewing sync.Mutex
	mu       sync.Mutex
	pool     *gossip.Pool // nil until gossip runs
}

// LoadAgent reads the certificates; they may have ended.
func LoadAgent(o AgentConfig) (*Agent, error) {
	dir, r := Dir(o.DataDir), o.Record
	ids := &Agent{config: o, record: r, logger: o.Logger}
	var err error
	if ids.Trust, err = pki.NewTrust(r.CA()); err != nil {
		return nil, fmt.Errorf("%s: the cluster's CA: %w", r.Path(), err)
	}
	if ids.key, err = pki.LoadOrCreateKey(filepath.Join(dir, "node.key")); err != nil {
		return nil, err
	}
	gossipKey, err := GossipKeyOf(o.DataDir)
	if err != nil {
		return nil, err
	}
	ids.proof = &credential{key: gossipKey}
	data, err := os.ReadFile(filepath.Join(dir, credentialFile))
	if err != nil {
		return nil, fmt.Errorf("this agent's gossip credential: %w; join again: %s", err, rejoinCommand(r))
	}
	ids.proof.set(data, ids.Trust.Bundle().Generation)
	for _, want := range []struct {
		into **identity.Identity
		file string
	}{{&ids.Client, clientFile}, {&ids.Serving, servingFile}} {
		if *want.into, err = identity.Load(want.file, filepath.Join(dir, want.file), ids.key); err != nil {
			return nil, fmt.Errorf("this agent's certificate: %w; join again: %s", err, rejoinCommand(r))
		}
	}
	return ids, nil
}

// rejoinCommand is the command that readmits an agent unknown to the cluster. Its pods stay.
func rejoinCommand(r Record) string {
	server := "https://SERVER:6443"
	if known := r.Servers(); len(known) > 0 {
		server = "https://" + known[0].API.String()
	}
	return fmt.Sprintf(
		"make a token on a server with `barque token create`, and start this agent once with `barque agent --rejoin --server %s --token TOKEN`", server)
}

func (ids *Agent) upkeep() identity.Upkeep {
	return identity.Upkeep{
		Name: "of this agent", Now: time.Now, Logger: ids.logger, Renew: ids.failed.counting(ids.renew),
		Terms:   func() []identity.Term { return []identity.Term{ids.Client.Term(), ids.Serving.Term()} },
		Wanted:  ids.wanted,
		Changed: ids.gossipChanged,
	}
}

// wanted tells why the certificates are to be renewed before their time.
func (ids *Agent) wanted() string {
	switch {
	case !ids.Trust.Issued(ids.Client.Certificate().Leaf):
		return "they are of the CA before"
	case ids.newestCA() > ids.Trust.Bundle().Generation:
		return "the cluster's CAs have changed"
	case ids.proof.proof().Trust < ids.Trust.Bundle().Generation:
		// The exchange of the CA waits until gossip shows it.
		return "the agent's certificates of the new CAs could not be stored"
	}
	return ""
}

// file is where a certificate is.
func (ids *Agent) file(name string) string {
	return filepath.Join(Dir(ids.config.DataDir), name)
}

func (ids *Agent) gossipPool() *gossip.Pool {
	ids.mu.Lock()
	defer ids.mu.Unlock()
	return ids.pool
}

func (ids *Agent) gossipChanged() <-chan struct{} { return ids.gossipPool().Changed() }

// newestCA is the newest generation of CAs that a living server has taken over.
func (ids *Agent) newestCA() (generation uint64) {
	if pool := ids.gossipPool(); pool != nil {
		generation, _ = newest(pool, "", func(f gossip.Facts) uint64 { return f.Trust })
	}
	return generation
}

// Run keeps the certificates good, once gossip runs.
func (ids *Agent) Run(pool *gossip.Pool) func(context.Context) error {
	ids.mu.Lock()
	ids.pool = pool
	ids.mu.Unlock()
	return ids.upkeep().Run
}

// Ready renews due certificates before the agent starts. A certificate that is valid for some time
// may wait. An expired one blocks the start until a server issues a new one or refuses.
func (ids *Agent) Ready(ctx context.Context) error {
	for {
		err := ids.upkeep().Check(ctx)
		var refused *join.RefusedError
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.As(err, &refused) &&
			(refused.Status == http.StatusForbidden || refused.Status == http.StatusUnauthorized):
			return fmt.Errorf(
				"this agent's certificates have ended, and the cluster gives it no new ones: %w. To let it in again: %s", err, rejoinCommand(ids.record))
		}
		ids.logger.Warn("this agent's certificates have ended; waiting for a server that gives it new ones", "notAfter",
			ids.Client.Term().NotAfter, "retryIn", readyRetry, "err", err)
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(readyRetry):
		}
	}
}

// readyRetry is how soon an agent asks again that cannot begin without new certificates.
const readyRetry = 3 * time.Second

// renew asks the servers for new certificates, one after the other. It authenticates by the old
// certificate, which may have expired.
func (ids *Agent) renew(ctx context.Context) error {
	ids.renewing.Lock()
	defer ids.renewing.Unlock()
	csr, err := pki.SigningRequest(ids.key)
	if err != nil {
		return err
	}
	request := join.Renewal{CSR: csr, GossipKey: ids.proof.public(), Address: ids.config.Address.String()}
	err = errors.New("no server of the cluster is known")
	for _, s := range ids.toAsk() {
		client, e := join.NewClient(s.API.String(), ids.Trust, ids.Client.Certificate(), time.Now)
		if e != nil {
			return e
		}
		c, e := client.Renew(ctx, request)
		client.Close()
		if e == nil {
			return ids.use(c)
		}
		err = e
	}
	return err
}

// toAsk orders the servers to ask: those with the newest CAs first, the rest at random, so that
// many agents spread.
func (ids *Agent) toAsk() []join.Server {
	servers := append(ids.record.Servers(), ids.config.Named...)
	rand.Shuffle(len(servers), func(i, j int) { servers[i], servers[j] = servers[j], servers[i] })
	if pool := ids.gossipPool(); pool != nil {
		knows := func(s join.Server) uint64 {
			if m, ok := pool.Member(s.Name); ok && m.State == gossip.Alive {
				return m.Facts.Trust
			}
			return 0
		}
		slices.SortStableFunc(servers, func(a, b join.Server) int { return cmp.Compare(knows(b), knows(a)) })
	}
	return servers
}

// use takes new certificates, and the CAs that came with them. They are on disk before anyone sees
// them; after a crash in between they are renewed again.
func (ids *Agent) use(c join.Certificates) error {
	if c.CA.Generation > ids.Trust.Bundle().Generation {
		if err := ids.record.Believe(c.CA); err != nil {
			return err // and retried, as long as the CAs in use are the old ones
		}
		if err := ids.Trust.Set(c.CA); err != nil {
			return err
		}
		ids.logger.Info("the cluster's CAs have changed", "generation", c.CA.Generation, "cas", len(c.CA.CAs))
	}
	if err := SaveCertificates(ids.config.DataDir, c); err != nil {
		return err
	}
	if err := errors.Join(ids.Client.Use(c.Client), ids.Serving.Use(c.Serving)); err != nil {
		return err
	}
	// Gossip is updated last: its generation tells the others that everything of these CAs is done.
	ids.proof.set(c.Credential, ids.Trust.Bundle().Generation)
	return nil
}

// ReadyProbe asks a server whether it is ready.
func (ids *Agent) ReadyProbe() func(context.Context, netip.AddrPort, int) error {
	var mu sync.Mutex
	var of *x509.CertPool
	var own *tls.Certificate
	var probe func(context.Context, netip.AddrPort, int) error
	return func(ctx context.Context, server netip.AddrPort, lane int) error {
		mu.Lock()
		// The probe keeps its connections until the CAs or the certificate change. It presents the
		// certificate because servers close the connections of unknown clients after each request.
		// Otherwise every probe would be a handshake.
		if pool, cert := ids.Trust.Pool(), ids.Client.Certificate(); pool != of || cert != own {
			of, own = pool, cert
			probe = balancer.ReadyProbe(
				&tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool,
					GetClientCertificate: ids.Client.GetClientCertificate,
					VerifyConnection:     join.IsServerOf(ids.Trust)})
		}
		ask := probe
		mu.Unlock()
		return ask(ctx, server, lane)
	}
}

// GossipProof returns the agent's proof for gossip.
func (ids *Agent) GossipProof() gossip.Proof { return ids.proof.proof() }
