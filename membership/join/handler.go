package join

import (
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/barque/barque/internal/httpserver"
	"github.com/barque/barque/internal/nodename"
	"github.com/barque/barque/membership/revocation"
	"github.com/barque/barque/membership/token"
	"github.com/barque/barque/pki"
)

// maxBody bounds how much a server reads from an unauthenticated client.
const maxBody = 64 << 10

// maxSkew is how far two clocks may be apart. Certificates and tokens are judged by them.
const maxSkew = time.Minute

// Config of a Handler.
type Config struct {
	Authority *pki.Trust
	// Lifetime returns how long the certificates of agents last.
	Lifetime func() time.Duration
	// CheckToken checks a token for a role; UseToken also counts the use. See package token.
	CheckToken, UseToken func(ctx context.Context, p token.Proof, a token.Attempt) error
	// Decided is called with every grant, before it is sent, and every refusal; nil does nothing.
	Decided func(ctx context.Context, d Decision)
	// NameTaken returns the reason why no other machine may have the name, or nil.
	NameTaken func(name string) error
	// VersionFits returns the reason why a node of the role may not join with its version, or nil.
	VersionFits func(name, role, version string) error
	// Encrypts reports whether the store has encrypted objects, which earlier versions cannot read;
	// nil: it has none.
	Encrypts func(ctx context.Context) (bool, error)
	// Replace takes a dead server of the name out of the store, in favour of a new one. It fails
	// when that one lives or is needed, and may be repeated.
	Replace func(ctx context.Context, name string) error
	// AddressTaken returns the reason why the node of that name may not have the address, or nil.
	// Clients trust any server with a certificate for the address that they call. So a node must
	// not get one for an address of the API.
	AddressTaken func(name string, addr netip.Addr) error
	// OfAPI returns the reason why an agent may not have the name, or the address, or nil: the API
	// may be called by it. Servers may have such ones. An agent keeps an address at which gossip
	// knows it.
	OfAPI func(name string, addr netip.Addr) error
	// AgentCIDRs are the public addresses that agents may have without calling from them.
	AgentCIDRs []netip.Prefix
	// IsAt reports whether gossip knows the node as living at the address.
	IsAt    func(name string, addr netip.Addr) bool
	Cluster func() Cluster
	Keys    func() (map[string][]byte, error)
	// PeerKeys returns ServerGrant.PeerKeys; nil: there are none.
	PeerKeys func() (json.RawMessage, error)
	// GossipKeys returns this server's newest keys. Barred returns the reason why a node of the
	// role gets neither keys nor new certificates although its own is valid, or nil. It returns
	// ErrNotYet if that is unknown.
	GossipKeys func() GossipKeys
	Barred     func(name, role string) error
	// Inherited reports whether this cluster succeeds the one with the ID. Unrelated is called for
	// a node of an unrelated cluster.
	Inherited func(cluster string) bool
	Unrelated func(name, cluster string)
	// Grace is how long after its expiry an agent's certificate still gets it a new one, subject to
	// StillNode. StillNode returns ErrRemoved for a removed node whose certificate expired at that
	// time.
	Grace     time.Duration
	StillNode func(ctx context.Context, name string, ended time.Time) error
	// Current returns the reason why the certificate is not the present one of a member of the
	// store, or nil. A CA's signature does not suffice: a thief of its key can sign, too. SharedKey
	// returns the shared key with the digest in PEM, of a CA or of service accounts: only members
	// get it.
	Current   func(ctx context.Context, cert *x509.Certificate) error
	SharedKey func(digest string) ([]byte, error)
	// Admit is called before the certificates of an agent that joins are issued: earlier ones of
	// the name are void from then on. Revoked returns the reason why a genuine certificate counts
	// no more, or nil; Entries are all that count no more. nil of each means that none is revoked.
	Admit   func(ctx context.Context, name string, key *x509.CertificateRequest, gossipKey []byte) error
	Revoked func(cert *x509.Certificate) error
	// OwnKey returns the reason why a genuine certificate is not that of the agent of the name: it
	// has another key; nil believes the name.
	OwnKey  func(ctx context.Context, name string, cert *x509.Certificate) error
	Entries func() *revocation.Entries
	// Audit takes the record of each request with a readable body, granted or refused; nil drops
	// them. Requests that are one too many are not recorded.
	Audit  func(Audited)
	Logger *slog.Logger
	Now    func() time.Time
}

// Handler serves Prefix. It authenticates by itself: by token, or by the client's certificate.
type Handler struct {
	config    Config
	mux       *http.ServeMux
	limiter   *limiter
	undecided undecided
}

// NewHandler returns the server's side of joining.
func NewHandler(c Config) *Handler {
	if c.Admit == nil {
		c.Admit = func(context.Context, string, *x509.CertificateRequest, []byte) error { return nil }
	}
	if c.Revoked == nil {
		c.Revoked = func(*x509.Certificate) error { return nil }
	}
	if c.OwnKey == nil {
		c.OwnKey = func(context.Context, string, *x509.Certificate) error { return nil }
	}
	if c.Entries == nil {
		c.Entries = func() *revocation.Entries { return &revocation.Entries{} }
	}
	h := &Handler{config: c, mux: http.NewServeMux(), limiter: newLimiter(c.Now)}
	h.mux.HandleFunc("GET "+Prefix+"ca", h.ca)
	h.mux.HandleFunc("POST "+Prefix+"node", answer(h, h.joinSigned))
	h.mux.HandleFunc("POST "+Prefix+"server", answer(h, former(h, token.Server, h.server)))
	h.mux.HandleFunc("POST "+Prefix+"agent", answer(h, former(h, token.Agent, h.agent)))
	h.mux.HandleFunc("POST "+Prefix+"renew", answer(h, h.renew))
	h.mux.HandleFunc("POST "+Prefix+"gossip-keys", answer(h, h.gossipKeys))
	h.mux.HandleFunc("POST "+Prefix+"shared-key", answer(h, h.sharedKey))
	h.mux.HandleFunc("POST "+Prefix+"revoked", answer(h, h.revoked))
	return h
}

// ServeHTTP answers clients without a node certificate only within their allowance.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h.isNode(r) {
		h.mux.ServeHTTP(w, r)
		return
	}
	from := clientOf(r)
	leave, after, first := h.limiter.enter(from)
	if leave == nil {
		if first {
			h.config.Logger.Warn("join requests are refused for a while: there are too many", "client", from,
				"retryAfter", after)
		}
		w.Header().Set("Retry-After", fmt.Sprintf("%d", int(after.Seconds())))
		h.say(w, r, http.StatusTooManyRequests,
			fmt.Sprintf("too many requests to join, from this address (%s) or from all: try again in %s", from, after))
		return
	}
	defer leave()
	h.mux.ServeHTTP(w, r)
}

// httpError is a refusal with its status.
type httpError struct {
	status int
	err    error
}

func (e *httpError) Error() string { return e.err.Error() }
func (e *httpError) Unwrap() error { return e.err }

// HTTPStatus is for handlers beside this one that call Agent.
func (e *httpError) HTTPStatus() int { return e.status }

func refuse(status int, format string, args ...any) error {
	return &httpError{status, fmt.Errorf(format, args...)}
}

// answer reads a JSON request, calls f, and writes its result or its error.
func answer[In, Out any](h *Handler, f func(r *http.Request, in In) (Out, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var in In
		if err := readBody(w, r, &in); err != nil {
			h.fail(w, r, err)
			return
		}
		received := h.config.Now()
		out, err := f(r, in)
		h.audit(r, in, received, err) // before the answer: a grant may be used at once
		if err != nil {
			h.fail(w, r, err)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(out); err != nil {
			h.config.Logger.Warn("join answer could not be sent", "client", r.RemoteAddr, "err", err)
		}
	}
}

// readBody decodes the body of a request, which has to arrive within bodyTimeout.
func readBody(w http.ResponseWriter, r *http.Request, in any) error {
	control := http.NewResponseController(w)
	// Deadlines of connections use the machine's clock, unlike the validity of certificates.
	if err := control.SetReadDeadline(time.Now().Add(bodyTimeout)); err != nil {
		return fmt.Errorf("bound how long the request may take: %w", err)
	}
	body := http.MaxBytesReader(w, r.Body, maxBody)
	if err := json.NewDecoder(body).Decode(in); err != nil {
		return refuse(http.StatusBadRequest, "the request is not the JSON that this server expects: %w", err)
	}
	if _, err := io.Copy(io.Discard, body); err != nil {
		return refuse(http.StatusBadRequest, "the request does not end: %w", err)
	}
	// The answer may take longer. net/http does not define the effect of a deadline that passes
	// meanwhile.
	if err := control.SetReadDeadline(time.Time{}); err != nil {
		return fmt.Errorf("lift the bound on how long the request may take: %w", err)
	}
	return nil
}

func (h *Handler) fail(w http.ResponseWriter, r *http.Request, err error) {
	status := statusOf(err)
	if say, unsaid := h.limiter.refused(clientOf(r), token.IsRefusal(err)); say {
		h.config.Logger.Warn("join request refused", "path", r.URL.Path, "client", r.RemoteAddr, "status", status,
			"reason", err, "unsaidBefore", unsaid)
	}
	h.say(w, r, status, err.Error())
}

// statusOf returns the status of a refusal.
func statusOf(err error) int {
	var refused *httpError
	switch {
	case errors.As(err, &refused):
		return refused.status
	case token.IsRefusal(err):
		return http.StatusForbidden
	}
	return http.StatusInternalServerError
}

// say answers with a refusal.
func (h *Handler) say(w http.ResponseWriter, r *http.Request, status int, reason string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(failure{Error: reason}); err != nil {
		h.config.Logger.Debug("join answer could not be sent", "client", r.RemoteAddr, "err", err)
	}
}

func (h *Handler) ca(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/x-pem-file")
	if _, err := w.Write(h.config.Authority.PEM()); err != nil {
		h.config.Logger.Debug("CA certificate could not be sent", "err", err)
	}
}

// readsObjects refuses a server of a version that cannot read the objects in the store.
func (h *Handler) readsObjects(ctx context.Context, in Request, role string) error {
	if role != token.Server || in.DataKeys >= DataKeysForm || h.config.Encrypts == nil {
		return nil
	}
	switch encrypts, err := h.config.Encrypts(ctx); {
	case err != nil:
		return refuse(http.StatusServiceUnavailable,
			"it is not known whether the objects of this cluster are encrypted, which the version of %s could not read: %w", in.Name, err)
	case encrypts:
		return refuse(http.StatusConflict,
			"the objects of this cluster are encrypted, and the version of %s cannot read them: "+
				"install the cluster's version on it (docs/encryption.md)", in.Name)
	}
	return nil
}

// knowsCA refuses a server of a version that would lose new fields of the CAs.
func knowsCA(in Request, role string, cluster *Cluster) error {
	if role != token.Server {
		return nil
	}
	form := cluster.CA.Form()
	if in.CAs >= form {
		return nil
	}
	why := "an operator has brought the CA of this cluster, and the version of %s does not know such CAs"
	if form == pki.SeparateForm {
		why = "this cluster has a CA of its own for servers, and the version of %s does not know such CAs"
	}
	return refuse(http.StatusConflict, why+": install the cluster's version on it (docs/operations.md)", in.Name)
}

// admit checks all that is common to both roles, and with fits the rest. The token comes first:
// without one a client learns nothing of the cluster's nodes, and no key of its choice is computed
// with. Its use is counted last, so that a machine that is refused for another reason can try again
// with it.
func (h *Handler) admit(
	r *http.Request, in Request, p token.Proof, attempt token.Attempt, fits func() error,
) (netip.Addr, error) {
	role := attempt.Role
	if err := h.config.CheckToken(r.Context(), p, attempt); err != nil {
		return netip.Addr{}, err
	}
	httpserver.Authenticate(r.Context())
	if err := nodename.Check(in.Name); err != nil {
		return netip.Addr{}, refuse(http.StatusBadRequest, "%w: give another one with --name", err)
	}
	for _, key := range slices.Sorted(maps.Keys(in.Labels)) {
		if err := nodename.CheckLabel(key, in.Labels[key]); err != nil {
			return netip.Addr{}, refuse(http.StatusBadRequest, "%w (--node-label)", err)
		}
	}
	if err := sealable(in); err != nil {
		return netip.Addr{}, err
	}
	if err := fits(); err != nil {
		return netip.Addr{}, err
	}
	addr, err := h.address(in.Name, in.Address)
	if err != nil {
		return netip.Addr{}, err
	}
	if role == token.Agent {
		if err := h.ownAddress(r, addr); err != nil {
			return netip.Addr{}, err
		}
		if err := h.config.OfAPI(in.Name, addr); err != nil {
			return netip.Addr{}, refuse(http.StatusConflict, "%w", err)
		}
	}
	if skew := in.Clock.Sub(h.config.Now()); skew.Abs() > maxSkew {
		return netip.Addr{},
			refuse(http.StatusConflict,
				"the clock of %s is off by %s against this server's (at most %s is allowed); set it, for example with an NTP client, and join again",
				in.Name, skew.Round(time.Second), maxSkew)
	}
	if err := h.config.VersionFits(in.Name, role, in.Version); err != nil {
		return netip.Addr{}, refuse(http.StatusConflict, "%w", err)
	}
	cluster := h.config.Cluster()
	if err := cmp.Or(h.readsObjects(r.Context(), in, role), knowsCA(in, role, &cluster)); err != nil {
		return netip.Addr{}, err
	}
	if in.Replace && role == token.Server {
		if err := h.config.Replace(r.Context(), in.Name); err != nil {
			return netip.Addr{}, refuse(http.StatusConflict, "%w", err)
		}
	}
	if err := h.config.NameTaken(in.Name); err != nil {
		return netip.Addr{}, refuse(http.StatusConflict, "%w", err)
	}
	return addr, h.config.UseToken(r.Context(), p, attempt)
}

// address reads the address of a node and checks its permission.
func (h *Handler) address(node, text string) (netip.Addr, error) {
	addr, err := netip.ParseAddr(text)
	if err != nil || addr.IsUnspecified() || addr.IsLoopback() || addr.IsMulticast() {
		return netip.Addr{},
			refuse(http.StatusBadRequest, "node address %q is not an IP address that others can reach", text)
	}
	if err := h.config.AddressTaken(node, addr.Unmap()); err != nil {
		return netip.Addr{}, refuse(http.StatusConflict, "%w", err)
	}
	return addr.Unmap(), nil
}

// shared is the address space of carriers (RFC 6598), which private networks use as well.
var shared = netip.MustParsePrefix("100.64.0.0/10")

// ownAddress refuses an address that may be a stranger's: the agent gets a certificate for it. An
// address of a private network is the cluster's affair. A public one must be that from which the
// agent calls, or in a range that an administrator has named. Servers get the CA's key anyway.
func (h *Handler) ownAddress(r *http.Request, addr netip.Addr) error {
	if addr.IsPrivate() || shared.Contains(addr) ||
		slices.ContainsFunc(h.config.AgentCIDRs, func(p netip.Prefix) bool { return p.Contains(addr) }) {
		return nil
	}
	from, err := netip.ParseAddrPort(r.RemoteAddr)
	if err == nil && from.Addr().Unmap().WithZone("") == addr {
		return nil
	}
	return refuse(http.StatusForbidden,
		"the node address %s is not of a private network, and this server is called from %s: give the address from which the machine calls with --node-ip, or start the servers with --agent-cidr and the range of such addresses",
		addr, r.RemoteAddr)
}

// joinSigned lets a machine in that has signed its request with its token's key, and seals the
// answer to the machine's own key.
func (h *Handler) joinSigned(r *http.Request, in SignedRequest) (out Sealed, err error) {
	var request Request
	if err := json.Unmarshal(in.Request, &request); err != nil {
		return out,
			refuse(http.StatusBadRequest, "the signed request is not the JSON that this server expects: %w", err)
	}
	request.Token = "" // it would be a former one's
	defer func() { h.joined(r, request, err) }()
	sum := sha256.Sum256(request.SealTo)
	attempt := token.Attempt{Role: request.Role, Name: request.Name, Secret: hex.EncodeToString(sum[:])}
	proof := token.Proof{ID: request.TokenID, Signed: signed(in.Request), Signature: in.Signature}
	var grant any
	switch request.Role {
	case token.Server:
		grant, err = h.server(r, request, proof, attempt)
	case token.Agent:
		grant, err = h.agent(r, request, proof, attempt)
	default:
		err = refuse(http.StatusBadRequest, "the role %q is neither %s nor %s", request.Role, token.Server, token.Agent)
	}
	if err != nil {
		return out, err
	}
	plain, err := json.Marshal(grant)
	if err != nil {
		return out, err
	}
	out.Sealed, err = pki.SealTo(request.SealTo, plain, bound(in.Request))
	return out, err
}

// former lets a machine in that shows a former token.
func former[Grant any](
	h *Handler, role string, admit func(*http.Request, Request, token.Proof, token.Attempt) (Grant, error),
) func(*http.Request, Request) (Grant, error) {
	return func(r *http.Request, in Request) (grant Grant, err error) {
		t, err := pki.ParseToken(in.Token)
		if err == nil && !t.Former() {
			err = errors.New("a join token of this form is not shown to a server")
		}
		if err != nil {
			return grant, refuse(http.StatusBadRequest, "%w", err)
		}
		in.Role, in.TokenID = role, t.ID
		defer func() { h.joined(r, in, err) }()
		return admit(r, in, token.Proof{ID: t.ID, Secret: t.Secret},
			token.Attempt{Role: role, Name: in.Name, Secret: in.Attempt})
	}
}

// joined logs and reports the outcome of a request to join.
func (h *Handler) joined(r *http.Request, in Request, err error) {
	if err == nil {
		h.config.Logger.Info("a machine was admitted", "role", in.Role, "name", in.Name, "address", in.Address,
			"version", in.Version, "tokenID", in.TokenID, "client", r.RemoteAddr)
	}
	h.decided(r.Context(), r,
		Decision{Act: ActJoin, Role: in.Role, Name: in.Name, Address: in.Address, TokenID: in.TokenID,
			Version: in.Version}, err)
}

// sealable refuses a key to which nothing could be sealed, before a use of the token is counted.
// Requests with a former token have none.
func sealable(in Request) error {
	if len(in.SealTo) == 0 && in.Token != "" {
		return nil
	}
	if _, err := pki.SealTo(in.SealTo, nil, nil); err != nil {
		return refuse(http.StatusBadRequest, "%w", err)
	}
	return nil
}

func (h *Handler) server(r *http.Request, in Request, p token.Proof, a token.Attempt) (ServerGrant, error) {
	if _, err := h.admit(r, in, p, a, func() error { return nil }); err != nil {
		return ServerGrant{}, err
	}
	return h.grant(r.Context(), in)
}

// grant returns the data for a server. The keys are those of the bundle: after a step of a CA
// exchange in between, the new server would lack one. An exchange may also have begun since the
// server was admitted that its version does not know.
func (h *Handler) grant(ctx context.Context, in Request) (g ServerGrant, err error) {
	for ctx.Err() == nil {
		g.Cluster = h.config.Cluster()
		if err := knowsCA(in, token.Server, &g.Cluster); err != nil {
			return ServerGrant{}, err
		}
		if h.config.PeerKeys != nil {
			if g.PeerKeys, err = h.config.PeerKeys(); err != nil {
				return ServerGrant{}, err
			}
		}
		if g.Keys, err = h.config.Keys(); err != nil || h.config.Cluster().CA.Generation == g.Cluster.CA.Generation {
			return g, err
		}
	}
	return ServerGrant{}, context.Cause(ctx)
}

func (h *Handler) agent(r *http.Request, in Request, p token.Proof, a token.Attempt) (AgentGrant, error) {
	if len(in.GossipKey) != ed25519.PublicKeySize {
		return AgentGrant{},
			refuse(http.StatusBadRequest, "the gossip key has %d bytes, want %d", len(in.GossipKey),
				ed25519.PublicKeySize)
	}
	var csr *x509.CertificateRequest
	addr, err := h.admit(r, in, p, a, func() (err error) {
		csr, err = requestOf(in.CSR)
		return err
	})
	if err != nil {
		return AgentGrant{}, err
	}
	if err := h.config.Admit(r.Context(), in.Name, csr, in.GossipKey); err != nil {
		return AgentGrant{}, err
	}
	certificates, err := h.issue(in.Name, addr, csr, in.GossipKey, 0)
	if err != nil {
		return AgentGrant{}, err
	}
	return AgentGrant{Cluster: h.config.Cluster(), Certificates: certificates}, nil
}

// requestOf reads the signing request of an agent, and refuses one that its own key has not signed.
func requestOf(csr []byte) (*x509.CertificateRequest, error) {
	request, err := pki.ParseRequest(csr)
	if err != nil {
		return nil, refuse(http.StatusBadRequest, "%w", err)
	}
	return request, nil
}

// issue issues an agent's certificates, dated with the revision at least.
func (h *Handler) issue(
	name string, addr netip.Addr, csr *x509.CertificateRequest, gossipKey []byte, revision uint64,
) (c Certificates, err error) {
	now, ca, life := h.config.Now(), h.config.Authority, h.config.Lifetime()
	c.CA = ca.Bundle() // before they are issued: they are never of an older CA than this bundle
	client, serving := NodeClient(name), NodeServing(name, addr)
	client.Lifetime, serving.Lifetime = life, life
	client.Revision, serving.Revision = revision, revision
	if c.Client, err = ca.Issue(client, csr.PublicKey, now); err != nil {
		return c, refuse(http.StatusBadRequest, "%w", err)
	}
	if c.Serving, err = ca.Issue(serving, csr.PublicKey, now); err != nil { // its names may be forbidden to the CA
		return c, refuse(http.StatusConflict, "%w", err)
	}
	c.Credential, err = ca.SignCredential(
		pki.Credential{Name: name, Role: token.Agent, Public: gossipKey, NotAfter: now.Add(life)})
	return c, err
}

// NodeClient describes the certificate with which a kubelet calls the API server.
func NodeClient(name string) pki.Request {
	return pki.Request{CommonName: pki.NodeUser + name, Organization: []string{pki.NodesGroup}, Usage: pki.Client}
}

// NodeServing describes the certificate that a kubelet's own server shows. Callers demand the
// subject. A name of two labels is left out of the others, because NAME.NAMESPACE is a Service.
func NodeServing(name string, addr netip.Addr) pki.Request {
	names := []string{addr.String()}
	if strings.Count(name, ".") != 1 {
		names = append(names, name)
	}
	return pki.Request{CommonName: pki.NodeUser + name, Organization: []string{pki.NodesGroup}, Usage: pki.Server,
		Names: names}
}
