package join_test

import (
	"context"
	"crypto"
	"crypto/ed25519"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/internal/syncbuf"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/membership/revocation"
	"github.com/barque/barque/membership/token"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/pki/identity"
)

// cluster is one server of a test's cluster, with a record of its requests.
type cluster struct {
	external *pki.Bundle // of an operator's CA; nil without
	ca       *pki.Authority
	token    pki.Token
	address  string
	handler  http.Handler
	config   join.Config // of the handler
	useErr   error
	used     func() // called at each use of a token
	uses     []string

	attempts []token.Attempt // that were counted
	decided  []join.Decision

	trust     *pki.Trust
	life      time.Duration
	stillNode error
	otherKey  error
	entries   *revocation.Entries
	revoked   func(*x509.Certificate) error
	admitted  []string          // agents, before their certificates are issued
	unrelated map[string]string // clusters that nodes claimed to belong to
	now       func() time.Time
	log       syncbuf.Buffer // of the server
	audited   chan join.Audited
	encrypts  bool       // objects are encrypted
	unknown   error      // why that is not known
	at        netip.Addr // where gossip knows the agent n1, too
}

func quiet() *slog.Logger { return slog.New(slog.NewTextHandler(io.Discard, nil)) }

func certificate(t testing.TB, ca *pki.Authority, r pki.Request) *tls.Certificate {
	t.Helper()
	k, err := pki.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	i, err := identity.New(t.Context(),
		identity.Config{Name: r.CommonName, Key: k, Now: time.Now, Logger: quiet(),
			Issue: pki.TrustOf(ca).Signs(func() pki.Request { return r }, time.Now)})
	if err != nil {
		t.Fatal(err)
	}
	return i.Certificate()
}

func newCluster(t testing.TB) *cluster {
	t.Helper()
	ca, err := pki.NewAuthority("c1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	tok, err := pki.NewToken(ca.Digest())
	if err != nil {
		t.Fatal(err)
	}
	c := &cluster{ca: ca, token: tok, trust: pki.TrustOf(ca), life: pki.LeafLifetime, now: time.Now,
		unrelated: map[string]string{}, audited: make(chan join.Audited, 1000)}
	c.config = join.Config{
		Authority: c.trust,
		Lifetime:  func() time.Duration { return c.life },
		Grace:     24 * time.Hour,
		StillNode: func(context.Context, string, time.Time) error { return c.stillNode },
		Current: func(_ context.Context, cert *x509.Certificate) error {
			if cert.Subject.CommonName != "s1" {
				return fmt.Errorf("%q: %w", cert.Subject.CommonName, join.ErrNotCurrent)
			}
			return nil
		},
		Encrypts:   func(context.Context) (bool, error) { return c.encrypts, c.unknown },
		Decided:    func(_ context.Context, d join.Decision) { c.decided = append(c.decided, d) },
		Inherited:  func(cluster string) bool { return cluster == "ancestor" },
		Unrelated:  func(name, cluster string) { c.unrelated[name] = cluster },
		SharedKey:  func(digest string) ([]byte, error) { return []byte("key of " + digest), nil },
		CheckToken: func(_ context.Context, p token.Proof, _ token.Attempt) error { return c.check(p) },
		OfAPI: func(_ string, addr netip.Addr) error {
			if addr == netip.MustParseAddr("10.0.0.100") {
				return errors.New("the address is one of the API")
			}
			return nil
		},
		AddressTaken: func(_ string, addr netip.Addr) error {
			if addr == netip.MustParseAddr("10.0.0.1") {
				return errors.New("the address is that of s1")
			}
			return nil
		},
		AgentCIDRs: []netip.Prefix{netip.MustParsePrefix("203.0.113.0/24")},
		IsAt: func(name string, addr netip.Addr) bool {
			return name == "n1" && (addr == netip.MustParseAddr("198.51.100.7") || addr == c.at)
		},
		UseToken: func(_ context.Context, p token.Proof, a token.Attempt) error {
			if err := c.check(p); err != nil {
				return err
			}
			c.uses, c.attempts = append(c.uses, a.Role), append(c.attempts, a)
			if c.used != nil {
				c.used()
			}
			return c.useErr
		},
		VersionFits: func(_, role, version string) error {
			if version == "too new" {
				return errors.New("no " + role + " of a version that is too new")
			}
			return nil
		},
		NameTaken: func(name string) error {
			if name == "taken" {
				return errors.New("a node named taken is alive at 10.0.0.9")
			}
			return nil
		},
		Cluster: func() join.Cluster {
			if c.external != nil {
				return join.Cluster{ID: "c1", CA: *c.external, Settings: json.RawMessage(`{}`)}
			}
			return join.Cluster{ID: "c1", CA: pki.NewBundle(ca), Settings: json.RawMessage(`{"a":1}`)}
		},
		Keys:     func() (map[string][]byte, error) { return map[string][]byte{"ca.key": []byte("secret")}, nil },
		PeerKeys: func() (json.RawMessage, error) { return json.RawMessage(`{"of":"peers"}`), nil },
		GossipKeys: func() join.GossipKeys {
			return join.GossipKeys{Generation: 7, Keys: [][]byte{[]byte("a key")}}
		},
		Barred: func(name, role string) error {
			switch name {
			case "removed":
				return errors.New("no " + role + " any more")
			case "early":
				return join.ErrNotYet
			}
			return nil
		},
		Admit: func(_ context.Context, name string, _ *x509.CertificateRequest, gossipKey []byte) error {
			c.admitted = append(c.admitted, fmt.Sprintf("%s with %d bytes", name, len(gossipKey)))
			return nil
		},
		Revoked: func(cert *x509.Certificate) error {
			if c.revoked == nil {
				return nil
			}
			return c.revoked(cert)
		},
		OwnKey: func(context.Context, string, *x509.Certificate) error { return c.otherKey },
		Entries: func() *revocation.Entries {
			if c.entries != nil {
				return c.entries
			}
			return &revocation.Entries{Version: 9, List: []revocation.Entry{{Kind: revocation.Agent, Name: "gone"}}}
		},
		Audit:  func(a join.Audited) { c.audited <- a },
		Logger: slog.New(slog.NewTextHandler(&c.log, nil)),
		Now:    func() time.Time { return c.now() },
	}
	c.handler = join.NewHandler(c.config)
	server := httptest.NewUnstartedServer(c.handler)
	server.TLS = &tls.Config{
		Certificates: []tls.Certificate{
			*certificate(t, ca,
				pki.Request{CommonName: "s1", Organization: []string{join.ServersOrganization}, Usage: pki.Server,
					Names: []string{"10.0.0.1"}})},
		ClientAuth: tls.RequestClientCert,
	}
	server.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	server.StartTLS()
	t.Cleanup(server.Close)
	c.address = server.URL
	return c
}

// check stands in for package token.
func (c *cluster) check(p token.Proof) error {
	key, err := c.token.Key()
	if err != nil {
		return err
	}
	if p.ID != c.token.ID ||
		p.Secret != former && !ed25519.Verify(key.Public().(ed25519.PublicKey), p.Signed, p.Signature) {
		return token.ErrUnknown
	}
	return nil
}

// former is the secret of a former token, which has the ID of the other one.
const former = "0123456789abcdef"

func (c *cluster) client(t *testing.T, identity *tls.Certificate) *join.Client {
	t.Helper()
	client, err := join.NewClient(c.address, c.ca, identity, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

func (c *cluster) request() join.Request {
	return join.Request{Token: c.token.String(), Name: "n1", Address: "10.0.0.5", Clock: time.Now()}
}

func TestServerJoins(t *testing.T) {
	c := newCluster(t)
	ca, err := join.FetchCA(t.Context(), c.address, c.token)
	if err != nil {
		t.Fatal(err)
	}
	if ca.Digest() != c.ca.Digest() {
		t.Fatal("fetched another CA")
	}
	grant, err := c.client(t, nil).Server(t.Context(), c.request())
	if err != nil {
		t.Fatal(err)
	}
	if string(grant.Keys["ca.key"]) != "secret" || string(grant.PeerKeys) != `{"of":"peers"}` ||
		grant.Cluster.ID != "c1" || len(c.uses) != 1 || c.uses[0] != token.Server {
		t.Fatalf("grant %+v, uses %v", grant, c.uses)
	}
}

func TestFetchCARefusesAnotherCluster(t *testing.T) {
	c, other := newCluster(t), newCluster(t)
	if _, err := join.FetchCA(t.Context(), c.address, other.token); err == nil ||
		!strings.Contains(err.Error(), "another cluster") {
		t.Fatalf("got %v", err)
	}
}

// A machine that holds a node's certificate must not pass for a server.
func TestClientBelievesOnlyServers(t *testing.T) {
	c := newCluster(t)
	node := httptest.NewUnstartedServer(http.NotFoundHandler())
	node.TLS = &tls.Config{
		Certificates: []tls.Certificate{
			*certificate(t, c.ca, join.NodeServing("n9", netip.MustParseAddr("127.0.0.1")))}}
	node.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
	node.StartTLS()
	defer node.Close()
	c.address = node.URL
	if _, err := c.client(t, nil).Server(t.Context(), c.request()); err == nil ||
		!strings.Contains(err.Error(), "no server") {
		t.Fatalf("got %v", err)
	}
}

func TestRefusals(t *testing.T) {
	for name, bad := range map[string]struct {
		change func(*cluster, *join.Request)
		status int
		want   string
	}{
		"unknown token": {func(c *cluster, r *join.Request) {
			r.Token = pki.Token{CADigest: c.token.CADigest, ID: "aaaaaa", Secret: strings.Repeat("0", 26)}.String()
		}, 403, "not known"},
		"expired token": {func(c *cluster, _ *join.Request) { c.useErr = token.ErrExpired }, 403, "expired"},
		"used-up token": {func(c *cluster, _ *join.Request) { c.useErr = token.ErrUsedUp }, 403, "used up"},
		"bad name":      {func(_ *cluster, r *join.Request) { r.Name = "Not A Name" }, 400, "node name"},
		"long name": {func(_ *cluster, r *join.Request) { r.Name = strings.Repeat("n", 64) }, 400,
			"no more than 63 characters"},
		"bad label": {
			func(_ *cluster, r *join.Request) { r.Labels = map[string]string{"node-role.kubernetes.io/worker": ""} },
			400, "kubectl label node NAME node-role.kubernetes.io/worker="},
		"bad address":   {func(_ *cluster, r *join.Request) { r.Address = "0.0.0.0" }, 400, "address"},
		"loopback":      {func(_ *cluster, r *join.Request) { r.Address = "127.0.0.1" }, 400, "address"},
		"address taken": {func(_ *cluster, r *join.Request) { r.Address = "::ffff:10.0.0.1" }, 409, "that of s1"},
		"an unknown client learns no names": {func(c *cluster, r *join.Request) {
			r.Name, r.Token = "taken",
				pki.Token{CADigest: c.token.CADigest, ID: "aaaaaa", Secret: strings.Repeat("0", 26)}.String()
		}, 403, "not known"},
		"version": {func(_ *cluster, r *join.Request) { r.Version = "too new" }, 409,
			"no server of a version that is too new"},
		"cannot decrypt": {func(c *cluster, _ *join.Request) { c.encrypts = true }, 409, "cannot read them"},
		"encrypts?": {func(c *cluster, _ *join.Request) { c.unknown = errors.New("no leader") }, 503,
			"not known whether the objects"},
		"name taken":  {func(_ *cluster, r *join.Request) { r.Name = "taken" }, 409, "alive at"},
		"clock ahead": {func(_ *cluster, r *join.Request) { r.Clock = r.Clock.Add(10 * time.Minute) }, 409, "clock"},
		"clock behind": {func(_ *cluster, r *join.Request) { r.Clock = r.Clock.Add(-10 * time.Minute) }, 409,
			"clock"},
		"no quorum here": {func(c *cluster, _ *join.Request) { c.useErr = errors.New("store is unavailable") }, 500,
			"unavailable"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			r := c.request()
			bad.change(c, &r)
			_, err := c.client(t, nil).Server(t.Context(), r)
			var refused *join.RefusedError
			if !errors.As(err, &refused) || refused.Status != bad.status ||
				!strings.Contains(refused.Reason, bad.want) {
				t.Fatalf("got %v; want status %d and %q", err, bad.status, bad.want)
			}
			if bad.status == 409 && len(c.uses) != 0 {
				t.Fatal("a refusal that has nothing to do with the token cost one of its uses")
			}
		})
	}
}

// agent is a machine that has joined as one.
type agent struct {
	csr    []byte
	gossip []byte
	keyPEM []byte
	grant  join.AgentGrant
}

// TestAddressesOfTheAPI: an agent gets no certificate for an address by which clients may call the
// API, unless it lives there already. A server does: it may be given those of all servers.
func TestAddressesOfTheAPI(t *testing.T) {
	c := newCluster(t)
	a := c.agent(t)
	c.uses = nil
	r := c.request()
	r.Address, r.CSR, r.GossipKey = "10.0.0.100", a.csr, a.gossip
	if _, err := c.client(t, nil).Agent(t.Context(), r); err == nil ||
		!strings.Contains(err.Error(), "one of the API") || len(c.uses) > 0 {
		t.Errorf("an agent joins: %v, and uses %v", err, c.uses)
	}
	renewal := a.renewal()
	renewal.Address = r.Address
	if _, err := c.client(t, a.identity(t)).Renew(t.Context(), renewal); err == nil ||
		!strings.Contains(err.Error(), "one of the API") {
		t.Errorf("an agent moves there: %v", err)
	}
	c.at = netip.MustParseAddr(r.Address)
	if _, err := c.client(t, a.identity(t)).Renew(t.Context(), renewal); err != nil {
		t.Errorf("an agent that lives there: %v", err)
	}
	r = c.request()
	r.Address = "10.0.0.100"
	if _, err := c.client(t, nil).Server(t.Context(), r); err != nil {
		t.Errorf("a server: %v", err)
	}
}

func (c *cluster) agent(t *testing.T) *agent {
	t.Helper()
	k, err := pki.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	csr, err := pki.SigningRequest(k)
	if err != nil {
		t.Fatal(err)
	}
	public, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	keyPEM, err := pki.MarshalKey(k)
	if err != nil {
		t.Fatal(err)
	}
	r := c.request()
	r.CSR, r.GossipKey = csr, public
	grant, err := c.client(t, nil).Agent(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return &agent{csr, public, keyPEM, grant}
}

func (a *agent) identity(t *testing.T) *tls.Certificate {
	t.Helper()
	own, err := tls.X509KeyPair(a.grant.Certificates.Client, a.keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	return &own
}

func (a *agent) renewal() join.Renewal {
	return join.Renewal{CSR: a.csr, GossipKey: a.gossip, Address: "10.0.0.5"}
}

func TestAgentJoinsAndRenews(t *testing.T) {
	c := newCluster(t)
	a := c.agent(t)
	if cred, err := c.ca.VerifyCredential(a.grant.Certificates.Credential, time.Now()); err != nil ||
		cred.Name != "n1" || cred.Role != "agent" {
		t.Fatalf("credential %+v, %v", cred, err)
	}
	own := a.identity(t)
	renewed, err := c.client(t, own).Renew(t.Context(), a.renewal())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tls.X509KeyPair(renewed.Serving, a.keyPEM); err != nil {
		t.Fatal(err)
	}
	for _, address := range []string{"10.0.0.1", "127.0.0.1"} {
		r := a.renewal()
		r.Address = address
		if _, err := c.client(t, own).Renew(t.Context(), r); err == nil {
			t.Fatalf("a node got a certificate for %s", address)
		}
	}
	if _, err := c.client(t, nil).Renew(t.Context(), a.renewal()); err == nil {
		t.Fatal("renewed without a certificate")
	}
}

// An agent that was off for so long that its certificate has ended gets a new one, for its own key,
// while its Node is there and the end is not too long ago.
func TestAnEndedCertificateIsRenewed(t *testing.T) {
	for name, bad := range map[string]struct {
		change func(*cluster, *agent, *join.Renewal)
		after  time.Duration // the end
		status int           // 0: it is renewed
		want   string
	}{
		"a moment ago": {nil, time.Minute, 0, ""},
		"a day ago":    {nil, 23 * time.Hour, 0, ""},
		"too long ago": {nil, 25 * time.Hour, 401, "longer ago than a new one is given for it"},
		"the node was removed": {
			func(c *cluster, _ *agent, _ *join.Renewal) { c.stillNode = fmt.Errorf("%w: no Node", join.ErrRemoved) },
			time.Minute, 403, "was removed"},
		"nobody can tell whether it was": {
			func(c *cluster, _ *agent, _ *join.Renewal) { c.stillNode = errors.New("the store is unavailable") },
			time.Minute, 500, "unavailable"},
		"for another key": {func(_ *cluster, _ *agent, r *join.Renewal) {
			k, err := pki.GenerateKey()
			if err == nil {
				r.CSR, err = pki.SigningRequest(k)
			}
			if err != nil {
				panic(err)
			}
		}, time.Minute, 403, "for its own key only"},
		"of another CA": {func(c *cluster, _ *agent, _ *join.Renewal) { c.exchangeCA() }, time.Minute, 401,
			"does not trust any more since its CA was exchanged"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			c.life = time.Hour
			a := c.agent(t)
			own, r := a.identity(t), a.renewal()
			client := c.client(t, own)
			c.now = func() time.Time { return own.Leaf.NotAfter.Add(bad.after) }
			if bad.change != nil {
				bad.change(c, a, &r)
			}
			renewed, err := client.Renew(t.Context(), r)
			var refused *join.RefusedError
			switch {
			case bad.status == 0 && err != nil:
				t.Fatal(err)
			case bad.status == 0:
				again, err := tls.X509KeyPair(renewed.Client, a.keyPEM)
				if err != nil || !again.Leaf.NotAfter.After(c.now()) {
					t.Fatalf("the new one: %v", err)
				}
			case !errors.As(err, &refused) || refused.Status != bad.status ||
				!strings.Contains(refused.Reason, bad.want):
				t.Fatalf("got %v; want status %d and %q", err, bad.status, bad.want)
			}
		})
	}
}

// An agent that was removed gets no new certificates, though its own is good for long yet.
func TestARemovedAgentIsNotRenewed(t *testing.T) {
	c := newCluster(t)
	for name, status := range map[string]int{"n1": 0, "removed": http.StatusForbidden,
		"early": http.StatusServiceUnavailable} {
		identity := certificate(t, c.ca, join.NodeClient(name))
		csr, err := pki.SigningRequest(identity.PrivateKey.(crypto.Signer))
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.client(t, identity).Renew(t.Context(),
			join.Renewal{CSR: csr, GossipKey: make([]byte, ed25519.PublicKeySize), Address: "10.0.0.5"})
		var refused *join.RefusedError
		switch {
		case status == 0 && err != nil:
			t.Errorf("%s: %v", name, err)
		case status != 0 && (!errors.As(err, &refused) || refused.Status != status):
			t.Errorf("%s: got %v, want status %d", name, err, status)
		}
	}
}

// exchangeCA makes the cluster believe another CA. Its server goes on to show its old certificate.
func (c *cluster) exchangeCA() {
	next, err := pki.NextAuthority("c1", time.Now())
	if err != nil {
		panic(err)
	}
	key, err := next.Key()
	if err != nil {
		panic(err)
	}
	b := pki.NewBundle(next)
	b.Generation = 4
	if err := c.trust.Set(b, key); err != nil {
		panic(err)
	}
}

// The keys that all servers have are for members of the store, and for no others.
func TestCAKeys(t *testing.T) {
	c := newCluster(t)
	server := func(ca *pki.Authority, name string) *tls.Certificate {
		return certificate(t, ca,
			pki.Request{CommonName: name, Organization: []string{join.ServersOrganization},
				Usage: pki.Client | pki.Server})
	}
	key, err := c.client(t, server(c.ca, "s1")).SharedKey(t.Context(), "abc")
	if err != nil || string(key) != "key of abc" {
		t.Fatalf("%q, %v", key, err)
	}
	other, err := pki.NewAuthority("c1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for name, identity := range map[string]*tls.Certificate{
		"nobody":                    nil,
		"an agent":                  c.agent(t).identity(t),
		"a server that was removed": server(c.ca, "s9"),
		"a server of another CA":    server(other, "s1"),
		"an administrator": certificate(t, c.ca,
			pki.Request{CommonName: "barque:admin", Organization: []string{"system:masters"}, Usage: pki.Client}),
	} {
		if key, err := c.client(t, identity).SharedKey(t.Context(), "abc"); err == nil {
			t.Errorf("%s got %q", name, key)
		}
	}
	var granted []string
	for _, d := range c.decided {
		if d.Act == join.ActSharedKey && d.Granted {
			granted = append(granted, d.Name)
		}
	}
	if !slices.Equal(granted, []string{"s1"}) {
		t.Errorf("reported as granted: %q", granted)
	}
}

// TestOfWhichCAServersAre: where servers have a CA of their own, one with a certificate of the
// clients' CA gets nothing of servers. Agents are of the clients' CA, and of no other.
func TestOfWhichCAServersAre(t *testing.T) {
	c := newCluster(t)
	peers, err := pki.CAOf(pki.Peers, "c1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	key, err := c.ca.Key()
	if err := errors.Join(err, c.trust.Set(pki.NewBundle(c.ca).WithCA(pki.Peers, peers), key)); err != nil {
		t.Fatal(err)
	}
	server := pki.Request{CommonName: "s1", Organization: []string{join.ServersOrganization},
		Usage: pki.Client | pki.Server}
	agent := pki.Request{CommonName: "system:node:n1", Organization: []string{pki.NodesGroup}, Usage: pki.Client}
	both := pki.Request{CommonName: "system:node:n1", Organization: []string{pki.NodesGroup, join.ServersOrganization},
		Usage: pki.Client}
	for name, test := range map[string]struct {
		by         *pki.Authority
		is         pki.Request
		keys, ring int // the status at the CA's key, and at the keys of gossip
	}{
		"a server":                              {peers, server, http.StatusOK, http.StatusOK},
		"a server, of the clients' CA":          {c.ca, server, http.StatusUnauthorized, http.StatusUnauthorized},
		"an agent":                              {c.ca, agent, http.StatusUnauthorized, http.StatusOK},
		"an agent, of the peers' CA":            {peers, agent, http.StatusForbidden, http.StatusUnauthorized},
		"an agent that is a server, of clients": {c.ca, both, http.StatusUnauthorized, http.StatusOK},
		"an administrator": {c.ca,
			pki.Request{CommonName: "a", Organization: []string{"system:masters"}, Usage: pki.Client},
			http.StatusUnauthorized, http.StatusUnauthorized},
		"an administrator, of the peers' CA": {peers,
			pki.Request{CommonName: "a", Organization: []string{"system:masters"}, Usage: pki.Client},
			http.StatusForbidden, http.StatusForbidden},
		"a server, by an agent's name, of peers'": {peers, both, http.StatusForbidden, http.StatusUnauthorized},
	} {
		client := c.client(t, certificate(t, test.by, test.is))
		status := func(err error) int {
			var refused *join.RefusedError
			switch {
			case err == nil:
				return http.StatusOK
			case errors.As(err, &refused):
				return refused.Status
			}
			t.Errorf("%s: %v", name, err)
			return 0
		}
		if _, err := client.SharedKey(t.Context(), "abc"); status(err) != test.keys {
			t.Errorf("%s gets %d where servers get the CA's key, want %d", name, status(err), test.keys)
		}
		if _, err := client.GossipKeys(t.Context(), ""); status(err) != test.ring {
			t.Errorf("%s gets %d where members get the keys of gossip, want %d", name, status(err), test.ring)
		}
	}
}

// A machine that asks too often gets that answer, and the time to come again; nodes of the cluster
// are served meanwhile.
func TestTooManyRequests(t *testing.T) {
	c := newCluster(t)
	now := time.Now()
	c.now = func() time.Time { return now }
	unknown := c.client(t, nil)
	bad := c.request()
	bad.Token = pki.Token{CADigest: c.token.CADigest, ID: "aaaaaa", Secret: strings.Repeat("0", 26)}.String()
	var refused *join.RefusedError
	for n := range 1000 {
		_, err := unknown.Server(t.Context(), bad)
		if !errors.As(err, &refused) {
			t.Fatalf("request %d: %v", n, err)
		}
		if refused.Status == http.StatusTooManyRequests {
			break
		}
	}
	if refused.Status != http.StatusTooManyRequests || !strings.Contains(refused.Reason, "try again in 1s") ||
		refused.RetryAfter != time.Second {
		t.Fatalf("got %+v", refused)
	}
	refused = nil
	if _, err := join.FetchCA(t.Context(), c.address, c.token); !errors.As(err, &refused) ||
		refused.RetryAfter != time.Second {
		t.Errorf("asked for the CA: %v", err)
	}
	if _, err := c.client(t, certificate(t, c.ca, join.NodeClient("a1"))).GossipKeys(t.Context(), "c1"); err != nil {
		t.Errorf("a node, from the same address: %v", err)
	}
	// Where purposes have CAs of their own, servers are nodes as well, and the front proxy is none.
	peers, err := pki.CAOf(pki.Peers, "c1", now)
	proxy, err2 := pki.CAOf(pki.FrontProxy, "c1", now)
	key, err3 := c.ca.Key()
	if err := errors.Join(err, err2, err3); err != nil {
		t.Fatal(err)
	}
	if err := c.trust.Set(pki.NewBundle(c.ca).WithCA(pki.Peers, peers).WithCA(pki.FrontProxy, proxy), key); err != nil {
		t.Fatal(err)
	}
	server := pki.Request{CommonName: "s1", Organization: []string{join.ServersOrganization},
		Usage: pki.Client | pki.Server}
	if _, err := c.client(t, certificate(t, peers, server)).SharedKey(t.Context(), "abc"); err != nil {
		t.Errorf("a server with a CA of its own, from the same address: %v", err)
	}
	if _, err := c.client(t, certificate(t, c.ca, join.NodeClient("a1"))).GossipKeys(t.Context(), "c1"); err != nil {
		t.Errorf("an agent beside it: %v", err)
	}
	refused = nil
	if _, err := c.client(t, certificate(t, proxy, server)).GossipKeys(t.Context(), "c1"); !errors.As(err, &refused) ||
		refused.Status != http.StatusTooManyRequests {
		t.Errorf("one of the front proxy's CA: %v", err)
	}
	now = now.Add(time.Minute)
	good := c.request()
	good.Clock = now
	if _, err := unknown.Server(t.Context(), good); err != nil {
		t.Errorf("a minute later: %v", err)
	}
}

// TestServingNames: the DNS name of a kubelet's certificate is not that of a Service.
func TestServingNames(t *testing.T) {
	for name, want := range map[string][]string{"a1": {"10.0.0.5", "a1"},
		"a1.example.org": {"10.0.0.5", "a1.example.org"}, "metrics.audit": {"10.0.0.5"}} {
		if got := join.NodeServing(name, netip.MustParseAddr("10.0.0.5")).Names; !slices.Equal(got, want) {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// TestAnAgentGetsItsOwnAddress: a token is no way to a certificate for a stranger's address.
func TestAnAgentGetsItsOwnAddress(t *testing.T) {
	for address, want := range map[string]bool{
		"10.0.0.5": true, "192.168.7.7": true, "fd00::5": true, "100.64.0.5": true, "203.0.113.9": true,
		"8.8.8.8": false, "::ffff:8.8.8.8": false, "2001:db8::1": false, "169.254.169.254": false, "fe80::1": false,
		"198.51.100.7": false,
	} {
		c := newCluster(t)
		a := c.agent(t)
		c.uses = nil
		request := c.request()
		request.Address, request.CSR, request.GossipKey = address, a.csr, a.gossip
		_, err := c.client(t, nil).Agent(t.Context(), request)
		if (err == nil) != want ||
			err != nil &&
				!strings.Contains(err.Error(), "not of a private network, and this server is called from 127.0.0.1") {
			t.Errorf("%s: %v", address, err)
		}
		if !want && len(c.uses) > 0 {
			t.Errorf("%s: the token was used", address)
		}
		renewal := a.renewal()
		renewal.Address = address
		known := address == "198.51.100.7" // by gossip, before the ranges were demanded
		if _, err := c.client(t, a.identity(t)).Renew(t.Context(), renewal); (err == nil) != (want || known) {
			t.Errorf("%s: renewal: %v", address, err)
		}
	}
}
