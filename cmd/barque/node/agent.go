package node

import (
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"github.com/barque/barque/internal/lifecycle"
	"github.com/barque/barque/internal/version"
	"github.com/barque/barque/membership/balancer"
	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/membership/keyring"
	"github.com/barque/barque/pki"
)

// agent is what the parts of an agent are made of, in the order in which they are.
type agent struct {
	options  *Options
	logger   *slog.Logger
	record   *record
	settings Settings
	ca       *pki.Authority
	key      crypto.Signer
	client   *pki.Identity // as system:node:<name>
	serving  *pki.Identity // of the node's own server
	proof    *credential
	pool     *gossip.Pool
	stack    *lifecycle.Stack

	renewing sync.Mutex // one renewal gets all certificates
}

// RunAgent runs an agent until the context ends.
func RunAgent(ctx context.Context, o Options, logger *slog.Logger) (err error) {
	if err := o.complete(); err != nil {
		return err
	}
	held, err := lockData(ctx, o.DataDir)
	if err != nil {
		return err
	}
	defer held.Close()
	bridgeLogs(logger)
	a := &agent{options: &o, logger: logger, stack: lifecycle.New(logger)}
	defer func() { err = errors.Join(err, a.stack.Stop()) }()
	for _, step := range []func(context.Context) error{a.enlist, a.startGossip, a.startBalancer, a.startNode} {
		if err := step(ctx); err != nil {
			return err
		}
	}
	logger.Info("agent is ready", "name", o.Name, "cluster", a.record.Cluster.ID)
	return a.stack.Wait(ctx)
}

func (a *agent) enlist(ctx context.Context) (err error) {
	o := a.options
	if a.record, err = enlistAgent(ctx, o, a.logger); err != nil {
		return err
	}
	if a.settings, err = a.record.settings(); err != nil {
		return err
	}
	if a.ca, err = pki.LoadAuthority(pkiDir(o.DataDir)); err != nil {
		return fmt.Errorf("the cluster's CA: %w", err)
	}
	if a.key, err = pki.LoadOrCreateKey(filepath.Join(pkiDir(o.DataDir), "node.key")); err != nil {
		return err
	}
	if a.proof, err = newCredential(o, a.credential); err != nil {
		return err
	}
	for _, want := range []struct {
		into **pki.Identity
		file string
		pick func(join.Certificates) []byte
	}{
		{&a.client, "node-client.crt", func(c join.Certificates) []byte { return c.Client }},
		{&a.serving, "node-serving.crt", func(c join.Certificates) []byte { return c.Serving }},
	} {
		*want.into, err = pki.NewIdentity(ctx, pki.IdentityConfig{
			Name: want.file, Key: a.key, Path: filepath.Join(pkiDir(o.DataDir), want.file), Now: time.Now, Logger: a.logger,
			Issue: func(ctx context.Context, _ crypto.Signer) ([]byte, error) {
				c, err := a.renew(ctx)
				return want.pick(c), err
			},
		})
		if err != nil {
			return err
		}
	}
	return a.stack.Start(ctx, lifecycle.Component{Name: "certificates", Run: func(ctx context.Context) error {
		return lifecycle.All(ctx, a.client.Run, a.serving.Run)
	}})
}

// renew asks the servers, one after the other, for new certificates. It shows them the one on disk: when
// an agent starts late in its certificate's life there is no identity yet to take it from.
func (a *agent) renew(ctx context.Context) (join.Certificates, error) {
	a.renewing.Lock()
	defer a.renewing.Unlock()
	csr, err := pki.SigningRequest(a.key)
	if err != nil {
		return join.Certificates{}, err
	}
	dir := pkiDir(a.options.DataDir)
	own, err := tls.LoadX509KeyPair(filepath.Join(dir, "node-client.crt"), filepath.Join(dir, "node.key"))
	if err != nil {
		return join.Certificates{}, fmt.Errorf("this agent's certificate: %w", err)
	}
	request := join.Renewal{CSR: csr, GossipKey: a.proof.key.Public().(ed25519.PublicKey), Address: a.options.NodeIP}
	err = errors.New("no server of the cluster is known")
	for _, s := range a.record.servers() {
		client, e := join.NewClient(s.API.String(), a.ca, &own, time.Now)
		if e != nil {
			return join.Certificates{}, e
		}
		c, e := client.Renew(ctx, request)
		client.Close()
		if e == nil {
			// The credential for gossip came with them, and this is what shows it to the others.
			return c, errors.Join(saveCertificates(a.options.DataDir, c), a.proof.renew())
		}
		err = e
	}
	return join.Certificates{}, err
}

// credential reads this agent's gossip credential, which came with its certificates.
func (a *agent) credential(ed25519.PublicKey) ([]byte, error) {
	return os.ReadFile(filepath.Join(pkiDir(a.options.DataDir), "gossip.credential"))
}

func (a *agent) startGossip(ctx context.Context) (err error) {
	o, ring := a.options, a.record.gossipRing()
	a.pool, err = gossip.New(gossip.Config{
		Name: o.Name, ClusterID: a.record.Cluster.ID, Advertise: o.at(o.GossipPort),
		Facts: gossip.Facts{Zone: o.Zone, Version: version.String(), KeyGeneration: ring.Generation},
		Keys:  ring.Keys, Authority: a.ca, Proof: a.proof.proof,
		Seeds:  a.record.gossipSeeds,
		Logger: a.logger.With("part", "gossip"),
	})
	if err != nil {
		return err
	}
	refresher := newRefresher(o.Name, a.pool, ownRing(a.record, a.pool), a.fetchKeys, keyring.RefresherConfig{Logger: a.logger.With("part", "gossip")})
	return a.stack.Start(ctx, lifecycle.Component{Name: "gossip", Run: func(ctx context.Context) error {
		return lifecycle.All(ctx, a.pool.Run, refresher.Run, func(ctx context.Context) error {
			return rememberServers(ctx, a.record, a.pool, func() []string { return nil }, a.logger)
		})
	}})
}

// startBalancer gives this node one address of the API that leads to a living server, whichever.
func (a *agent) startBalancer(ctx context.Context) error {
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", a.options.APIPort))
	if err != nil {
		return fmt.Errorf("open the local port that leads to the API: %w; choose another with --api-port", err)
	}
	b := balancer.New(balancer.Config{
		Listener: listener,
		Servers:  a.apiServers,
		Probe:    balancer.ReadyProbe(&tls.Config{RootCAs: a.ca.Pool()}),
		Return:   returnAfter,
		Logger:   a.logger.With("part", "balancer"),
	})
	return a.stack.Start(ctx, lifecycle.Component{Name: "balancer", Run: b.Run})
}

// returnAfter is how long a server must be back before agents that it comes first for begin to return to it.
const returnAfter = 2 * time.Minute

// apiServers are all servers that gossip and the record know of, in this agent's own order. Who of them lives the
// balancer finds out: that gossip has lost one is no reason to leave it.
func (a *agent) apiServers() []netip.AddrPort {
	var out []netip.AddrPort
	for _, s := range append(knownServers(a.pool), a.record.servers()...) {
		if !slices.Contains(out, s.API) {
			out = append(out, s.API)
		}
	}
	return balancer.Spread(a.options.Name, out)
}

func (a *agent) startNode(ctx context.Context) error {
	w := &worker{
		options: a.options, settings: a.settings,
		client: &rest.Config{
			Host: fmt.Sprintf("https://127.0.0.1:%d", a.options.APIPort),
			QPS:  -1,
			// The client's own TLS set-up would read the certificate once; this one asks for it at
			// each handshake.
			Transport: &http.Transport{
				TLSClientConfig:     &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: a.ca.Pool(), GetClientCertificate: a.client.GetClientCertificate},
				ForceAttemptHTTP2:   true,
				TLSHandshakeTimeout: 10 * time.Second,
				MaxIdleConnsPerHost: 25,
				// The balancer cuts connections to servers that fall silent. This is for a way that is cut for
				// this connection alone.
				HTTP2: &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 5 * time.Second},
			},
		},
		tls:    kubeletServerTLS(a.serving, a.ca),
		labels: nodeLabels(a.options),
		health: newHealth(a.pool.SetHealth),
		logger: a.logger,
	}
	return w.start(ctx, a.stack)
}
