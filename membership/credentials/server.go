package credentials

import (
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/barque/barque/internal/atomicfile"
	"github.com/barque/barque/internal/clusterusers"
	"github.com/barque/barque/internal/kubeletapi"
	"github.com/barque/barque/internal/lifecycle"
	"github.com/barque/barque/internal/tlsoptions"
	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/pki/identity"
)

// ServerConfig configures a server's certificates.
type ServerConfig struct {
	Name    string
	Address netip.Addr
	APIPort uint16
	// APIAddress is the API's own, at which the leader answers; the zero Addr without one.
	APIAddress netip.Addr
	DataDir    string
	Names      []string // by which clients call the API server
	ProxyName  string   // of the API server, as a client of extension API servers
	Lifetime   time.Duration
	Revision   func() uint64 // of the store; nil dates nothing
	Record     Record
	Logger     *slog.Logger
}

// Files are the paths of a certificate and its key; empty without one.
type Files struct {
	CertFile string
	KeyFile  string
}

// Server holds a server's certificates. The server has the CA key, so it issues them itself, all at
// once: in time, when the CAs change, and on an operator's request. Their keys are new with each
// renewal. They are in memory only, but for that of Peer, see peerKey. A start needs only the CA's
// key.
type Server struct {
	config        ServerConfig
	Home          *Home
	Trust         *pki.Trust
	logger        *slog.Logger
	failed        failures
	Peer          *identity.Identity // to other servers, both as client and as server
	API           *identity.Identity // of the API
	KubeletClient *identity.Identity // of the API server as a client of kubelets
	serverClient  *identity.Identity // to the API of other servers
	Kubelet       *identity.Identity // of this node's own server
	proxy         *identity.Identity // of the API server as a client of extension API servers
	admin         *identity.Identity // in the administrator's kubeconfig
	proof         *credential
	peerKey       *peerKey
	recordKeys    atomic.Pointer[func(ctx context.Context) error] // see RecordKeysBy
	keptKey       atomic.Pointer[string]                          // see NodeCertificates.KeptKey

	// Announce makes the certificates of the moment known to the other servers: they give shared
	// keys to no other peer certificate. It is set before the first FetchKey and before Serving;
	// nil does nothing.
	Announce func(ctx context.Context) error

	// id is the server's ID in the store, which its certificates name once the store is open.
	id atomic.Pointer[string]

	renewing sync.Mutex
	issuedBy *pki.Bundle // the CAs of the last renewal, see follow; guarded by renewing
	// starting lets certificates be of the present CA alone, when the next one forbids them: a
	// server that did not start would never learn that the exchange is given up. behind is set when
	// one is so: this server takes no part in the exchange. Both are guarded by renewing.
	starting, behind bool

	mu      sync.Mutex    // guards what follows
	ready   bool          // the API serves, so the kubeconfig leads somewhere
	unsaved bool          // the kubeconfig on disk is not that of the certificates
	changed chan struct{} // closed and replaced after every renewal
}

// adminUser is the name in the administrator's kubeconfig.
const adminUser = "barque:admin"

// NewServer reads the CAs and their keys, and issues the certificates.
func NewServer(ctx context.Context, o ServerConfig) (*Server, error) {
	home, err := LoadHome(o.DataDir, o.Record)
	if err != nil {
		return nil, err
	}
	ids := &Server{config: o, Home: home, Trust: home.Trust, logger: o.Logger, changed: make(chan struct{})}
	var unsaved error
	if ids.peerKey, unsaved, err = loadPeerKey(o.DataDir); err != nil {
		return nil, err
	}
	if unsaved != nil {
		o.Logger.Warn("a restart while the CA is exchanged would make this server a stranger to the others", "err",
			unsaved)
	}
	ids.starting = true
	for _, want := range ids.kinds() {
		issue := func(_ context.Context, key crypto.Signer) ([]byte, error) {
			out, err := ids.Trust.IssueFor(want.purpose, ids.held(want.request), key.Public(), time.Now())
			if ids.starting && errors.Is(err, pki.ErrNextCA) {
				o.Logger.Warn("this server's certificate", "of", want.name, "err", err)
				ids.behind = true
				return ids.Trust.IssueNow(ids.held(want.request), key.Public(), time.Now())
			}
			if err == nil && want.purpose == pki.Peers {
				out = append(out, ids.voucher(want.request, key)...)
			}
			return out, err
		}
		config := identity.Config{Name: want.name, Now: time.Now, Logger: o.Logger, Issue: issue}
		if want.purpose == pki.Peers {
			config.Key = ids.peerKey.used()
		}
		*want.into, err = identity.New(ctx, config)
		if err != nil {
			return nil, err
		}
	}
	ids.starting = false
	gossipKey, err := GossipKeyOf(o.DataDir)
	if err != nil {
		return nil, err
	}
	ids.proof = &credential{key: gossipKey}
	ids.saveProxy()
	return ids, ids.prove(ids.Trust.Bundle().Generation)
}

// kind is a certificate of a server.
type kind struct {
	into    **identity.Identity
	name    string
	request pki.Request
	purpose pki.Purpose // of the CA that issues it
}

// kinds are all certificates of a server.
func (ids *Server) kinds() []kind {
	o, servers := ids.config, []string{join.ServersOrganization}
	out := []kind{
		{&ids.Peer, "peer",
			pki.Request{CommonName: o.Name, Organization: servers, Usage: pki.Client | pki.Server,
				Names: []string{o.Name, o.Address.String()}}, pki.Peers},
		{&ids.API, "api",
			pki.Request{CommonName: "barque:apiserver", Organization: servers, Usage: pki.Server, Names: o.Names},
			pki.Clients},
		// Not of system:masters: a node writes the address of its kubelet, and an API server there
		// would obey.
		{&ids.KubeletClient, "kubelet-client",
			pki.Request{CommonName: kubeletapi.ClientUser, Organization: []string{kubeletapi.ClientGroup},
				Usage: pki.Client}, pki.Clients},
		{&ids.serverClient, "server-client",
			pki.Request{CommonName: clusterusers.ServerClient, Organization: []string{clusterusers.ServerClients},
				Usage: pki.Client}, pki.Clients},
		{&ids.Kubelet, "kubelet", join.NodeServing(o.Name, o.Address), pki.Clients},
		{&ids.proxy, "front-proxy", pki.Request{CommonName: o.ProxyName, Usage: pki.Client}, pki.FrontProxy},
		{&ids.admin, AdminName,
			pki.Request{CommonName: adminUser, Organization: []string{"system:masters"}, Usage: pki.Client},
			pki.Clients},
	}
	for i := range out {
		out[i].request.Lifetime = o.Lifetime
	}
	return out
}

// Requests describes all certificates of a server, for a CA that may be forbidden to issue them.
func (o *ServerConfig) Requests() (out []pki.Request) {
	for _, k := range (&Server{config: *o}).kinds() {
		out = append(out, k.request)
	}
	return out
}

// Requests describes all certificates of this server.
func (ids *Server) Requests() []pki.Request { return ids.config.Requests() }

// Hold makes all certificates name the server's ID in the store, by which they can be revoked, and
// dates them anew. The administrator's, which people copy, stays without: it outlives its server.
func (ids *Server) Hold(ctx context.Context, id string) error {
	ids.id.Store(&id)
	return ids.RenewAtStart(ctx)
}

// held adds the holder to a request. Certificates are dated with the revision after the present
// one. That is an old one after a restart, so nothing is concluded from it alone.
func (ids *Server) held(request pki.Request) pki.Request {
	id := ids.id.Load()
	if id == nil || request.CommonName == adminUser {
		return request
	}
	request.Holder = *id
	if ids.config.Revision != nil {
		request.Revision = ids.config.Revision() + 1
	}
	return request
}

// Others returns the certificates of this server beside Peer's, and the administrator's.
func (ids *Server) Others() (machine []*x509.Certificate, admin *x509.Certificate) {
	for _, i := range ids.identities() {
		if i != ids.Peer && i != ids.admin {
			machine = append(machine, i.Certificate().Leaf)
		}
	}
	return machine, ids.admin.Certificate().Leaf
}

// identities returns the certificates in the order of renewal.
func (ids *Server) identities() []*identity.Identity {
	return []*identity.Identity{
		ids.Peer, ids.API, ids.KubeletClient, ids.serverClient, ids.Kubelet, ids.proxy, ids.admin,
	}
}

// Run renews the certificates in time.
func (ids *Server) Run(ctx context.Context) error {
	return lifecycle.All(ctx, ids.upkeep().Run, ids.saveAgain)
}

func (ids *Server) upkeep() identity.Upkeep {
	return identity.Upkeep{
		Name: "of this server", Terms: ids.terms, Renew: ids.failed.counting(ids.follow), Now: time.Now,
		Logger: ids.logger, Changed: ids.Trust.Changed,
		Wanted: func() string {
			if ids.proof.proof().Trust != ids.Trust.Bundle().Generation {
				return "the cluster's CAs have changed"
			}
			return ""
		},
	}
}

// saveEvery is how soon a kubeconfig is written again that could not be.
const saveEvery = time.Minute

// saveAgain writes the kubeconfig when that has failed: with the old CA's certificate, after an
// exchange, it is void.
func (ids *Server) saveAgain(ctx context.Context) error {
	ticker := time.NewTicker(saveEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		ids.mu.Lock()
		unsaved := ids.unsaved
		ids.mu.Unlock()
		if !unsaved {
			continue
		}
		ids.renewing.Lock()
		err := ids.save(ctx)
		ids.renewing.Unlock()
		if err != nil {
			ids.logger.Error("the administrator's kubeconfig still cannot be written", "retryIn", saveEvery, "err", err)
		} else {
			ids.logger.Info("the administrator's kubeconfig is written")
		}
	}
}

// announcePatience bounds the recording of the keys before the kubeconfig is written.
const announcePatience = 5 * time.Second

var errUnrecorded = errors.New("while the CA is exchanged, the new key is recorded before the file is written")

// announce records the key of the kubeconfig before anybody has the file: while the CA is
// exchanged, one that is not recorded counts for nothing. Otherwise the file is written without a
// quorum, too.
func (ids *Server) announce(ctx context.Context) error {
	if ids.Announce == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, announcePatience)
	defer cancel()
	err := ids.Announce(ctx)
	if err != nil && ids.Trust.Bundle().ExchangesCA() {
		return fmt.Errorf("%w: %w", errUnrecorded, err)
	}
	if err != nil {
		ids.logger.Warn(
			"the key of the administrator's kubeconfig is not recorded yet, which an exchange of the CA needs; the server records it once the store can be written", "err", err)
	}
	return nil
}

// save writes the administrator's kubeconfig. The caller holds renewing.
func (ids *Server) save(ctx context.Context) error {
	err := ids.announce(ctx)
	if err == nil {
		err = ids.writeAdminKubeconfig()
	}
	ids.mu.Lock()
	defer ids.mu.Unlock()
	ids.unsaved = err != nil
	return err
}

func (ids *Server) terms() []identity.Term {
	var terms []identity.Term
	for _, i := range ids.identities() {
		terms = append(terms, i.Term())
	}
	return terms
}

// Renew renews all certificates, and the gossip credential last: its generation tells the others
// that everything of the current CAs is done. A failure to write the kubeconfig is no failure of
// the renewal: the kubeconfig is a copy and is written again.
func (ids *Server) Renew(ctx context.Context) error { return ids.renew(ctx, false) }

// RenewAtStart is Renew for a server that is not a member with all its parts yet: see starting.
func (ids *Server) RenewAtStart(ctx context.Context) error { return ids.renew(ctx, true) }

func (ids *Server) renew(ctx context.Context, starting bool) error {
	ids.renewing.Lock()
	defer ids.renewing.Unlock()
	ids.starting, ids.behind = starting, false
	defer func() { ids.starting = false }()
	b := ids.Trust.Bundle()
	ids.issuedBy = nil
	for _, i := range ids.identities() {
		renew := i.Renew
		if i == ids.Peer {
			renew = ids.renewPeer
		}
		if err := renew(ctx); err != nil {
			return err
		}
	}
	ids.saveProxy()
	ids.mu.Lock()
	ready := ids.ready
	close(ids.changed)
	ids.changed = make(chan struct{})
	ids.mu.Unlock()
	if ready {
		if err := ids.save(ctx); err != nil {
			ids.logger.Error(
				"the administrator's kubeconfig cannot be written; the earlier one is good until its certificate ends, or its CA is exchanged", "retryIn", saveEvery, "err", err)
		}
	}
	if by := withoutAccounts(b); !ids.behind {
		ids.issuedBy = &by
	}
	return ids.prove(b.Generation)
}

// Serving is called when the API serves: from now on the administrator's kubeconfig exists and
// stays valid. A full disk must not stop a server, whose work includes deletions: the earlier
// kubeconfig is valid for long.
func (ids *Server) Serving(ctx context.Context) error {
	ids.renewing.Lock()
	defer ids.renewing.Unlock()
	ids.mu.Lock()
	ids.ready = true
	ids.mu.Unlock()
	err := ids.save(ctx)
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		ids.logger.Error("the administrator's kubeconfig is not renewed, because the disk is full", "retryIn",
			saveEvery, "err", err)
		return nil
	}
	if errors.Is(err, errUnrecorded) {
		ids.logger.Warn("the administrator's kubeconfig is not renewed yet", "retryIn", saveEvery, "err", err)
		return nil
	}
	return err
}

// ProxyFiles are the files of the certificate for extension API servers, because the aggregator
// reads files. Without them, as on a disk that was always full, extensions do not learn the user.
func (ids *Server) ProxyFiles() Files {
	files := ids.proxyPaths()
	if _, err := tls.LoadX509KeyPair(files.CertFile, files.KeyFile); err != nil {
		return Files{}
	}
	return files
}

func (ids *Server) proxyPaths() Files {
	return Files{
		CertFile: filepath.Join(ids.config.DataDir, "front-proxy.crt"),
		KeyFile:  filepath.Join(ids.config.DataDir, "front-proxy.key"),
	}
}

// saveProxy writes the files of the certificate for extension API servers. A failure, as on a full
// disk, stops neither a start nor an exchange.
func (ids *Server) saveProxy() {
	cert, files := ids.proxy.Certificate(), ids.proxyPaths()
	key, ok := cert.PrivateKey.(crypto.Signer)
	err := fmt.Errorf("a key of type %T", cert.PrivateKey)
	if ok {
		var keyPEM []byte
		if keyPEM, err = pki.MarshalKey(key); err == nil {
			err = errors.Join(atomicfile.Write(files.KeyFile, keyPEM, 0o600),
				atomicfile.Write(files.CertFile, pki.ChainPEM(cert), 0o600))
		}
	}
	if err != nil {
		ids.logger.Error(
			"the certificate for extension API servers cannot be written; aggregated APIs fail when the earlier one ends", "err", err)
	}
}

// Renewed returns a channel that is closed at the next renewal.
func (ids *Server) Renewed() <-chan struct{} {
	ids.mu.Lock()
	defer ids.mu.Unlock()
	return ids.changed
}

// prove makes known that this server has taken part in the generation, unless it is behind it.
func (ids *Server) prove(generation uint64) error {
	if ids.behind {
		generation--
	}
	o := ids.config
	data, err := ids.Trust.SignCredential(
		pki.Credential{Name: o.Name, Role: pki.RoleServer, Public: ids.proof.public(),
			NotAfter: time.Now().Add(o.Lifetime)})
	if err != nil {
		return fmt.Errorf("gossip credential: %w", err)
	}
	ids.proof.set(data, generation)
	return nil
}

// KubeletClientTLS is the API server's TLS configuration for kubelets. The result is the same as
// long as the CAs are.
func (ids *Server) KubeletClientTLS() func() *tls.Config {
	return ids.Trust.ForEach(func(roots *x509.CertPool) *tls.Config {
		return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots,
			GetClientCertificate: ids.KubeletClient.GetClientCertificate}
	})
}

// KubeletTLS is this server's TLS configuration for the kubelet of one member: its address does not
// suffice, because another machine may have it by now.
func (ids *Server) KubeletTLS() func(member string) *tls.Config {
	toAny := ids.KubeletClientTLS()
	return func(member string) *tls.Config {
		config := toAny().Clone()
		config.VerifyConnection = func(state tls.ConnectionState) error { return join.IsKubelet(member, state) }
		return config
	}
}

// KubeletServerTLS is how this node's own server is called. Each connection is held against the CAs
// of the moment.
func KubeletServerTLS(serving *identity.Identity, trust *pki.Trust, options tlsoptions.Options) *tls.Config {
	ofNow := trust.ForEach(func(roots *x509.CertPool) *tls.Config {
		c := &tls.Config{NextProtos: []string{"h2", "http/1.1"},
			GetCertificate: serving.GetCertificate, ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: roots,
			VerifyConnection: trust.SameCluster}
		options.Apply(c)
		return c
	})
	base := &tls.Config{GetCertificate: serving.GetCertificate,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return ofNow(), nil }}
	options.Apply(base)
	return base
}

// credential is this node's proof to the gossip pool. It is renewed together with the node's
// certificates.
type credential struct {
	key ed25519.PrivateKey

	mu    sync.Mutex
	data  []byte
	trust uint64 // generation of the CAs that the node has taken over
}

func (c *credential) public() ed25519.PublicKey { return c.key.Public().(ed25519.PublicKey) }

func (c *credential) set(data []byte, trust uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.data, c.trust = data, trust
}

func (c *credential) proof() gossip.Proof {
	c.mu.Lock()
	defer c.mu.Unlock()
	return gossip.Proof{Credential: c.data, Key: c.key, Trust: c.trust}
}

// GossipProof returns the server's proof for gossip.
func (ids *Server) GossipProof() gossip.Proof { return ids.proof.proof() }

// keyTimeout bounds how long one server is asked for a key.
const keyTimeout = 5 * time.Second

// FetchKey asks the other servers for a key that all servers share: the CA's, or that of service
// accounts. Both sides prove by their certificates that they are servers of this cluster.
func (ids *Server) FetchKey(ctx context.Context, digest string) ([]byte, error) {
	if ids.Announce != nil {
		if err := ids.Announce(ctx); err != nil {
			return nil, err
		}
	}
	err := errors.New("no other server is known")
	for _, other := range ids.Home.record.Servers() {
		if other.Name == ids.config.Name {
			continue
		}
		key, e := ids.keyFrom(ctx, other, digest)
		if e == nil {
			return key, nil
		}
		err = fmt.Errorf("%s: %w", other.Name, e)
	}
	return nil, err
}

func (ids *Server) keyFrom(ctx context.Context, other join.Server, digest string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, keyTimeout)
	defer cancel()
	client, err := join.NewClient(other.API.String(), ids.Trust, ids.Peer.Certificate(), time.Now)
	if err != nil {
		return nil, err
	}
	defer client.Close()
	return client.SharedKey(ctx, digest)
}

// CallTLS is how this server calls the API of others.
func (ids *Server) CallTLS() *tls.Config { return ids.callTLS(ids.serverClient) }

// CallAsAdmin is how this server calls servers of versions before 30 November 2026. These
// answer nobody but administrators.
func (ids *Server) CallAsAdmin() *tls.Config { return ids.callTLS(ids.admin) }

func (ids *Server) callTLS(as *identity.Identity) *tls.Config {
	return &tls.Config{
		MinVersion:           tls.VersionTLS13,
		InsecureSkipVerify:   true, // VerifyConnection does, against the CAs of the moment
		GetClientCertificate: as.GetClientCertificate,
		VerifyConnection: func(state tls.ConnectionState) error {
			certs := state.PeerCertificates
			if err := ids.Trust.Verify(certs[0], certs[1:], x509.ExtKeyUsageServerAuth, time.Now()); err != nil {
				return err
			}
			return join.IsServer(state)
		},
	}
}
