package join

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/barque/barque/internal/httpserver"
	"github.com/barque/barque/membership/revocation"
	"github.com/barque/barque/membership/token"
	"github.com/barque/barque/pki"
)

// renew issues new certificates to an agent that shows its old one. The TLS handshake has proven
// that it has the key.
func (h *Handler) renew(r *http.Request, in Renewal) (_ Certificates, err error) {
	cert, err := h.caller(r, pki.NodesGroup, h.config.Grace)
	if err != nil {
		return Certificates{}, err
	}
	defer func() {
		h.decided(r.Context(), r,
			Decision{Act: ActRenew, Role: token.Agent, Name: strings.TrimPrefix(cert.Subject.CommonName, pki.NodeUser),
				Address: in.Address}, err)
	}()
	name, ok := strings.CutPrefix(cert.Subject.CommonName, pki.NodeUser)
	if !ok || len(in.GossipKey) != ed25519.PublicKeySize {
		return Certificates{},
			refuse(http.StatusBadRequest, "only a node can renew its certificates, with its gossip key")
	}
	csr, err := requestOf(in.CSR)
	if err != nil {
		return Certificates{}, err
	}
	if err := h.ownKey(r.Context(), name, cert, csr); err != nil {
		return Certificates{}, err
	}
	if h.config.Now().After(cert.NotAfter) {
		if err := h.mayComeBack(r.Context(), cert, name); err != nil {
			return Certificates{}, err
		}
		h.config.Logger.Info("an agent whose certificate had expired gets a new one", "name", name, "ended",
			cert.NotAfter, "client", r.RemoteAddr)
	} else if err := h.belongs(name, token.Agent); err != nil {
		return Certificates{}, err
	}
	addr, err := h.address(name, in.Address)
	if err != nil {
		return Certificates{}, err
	}
	if !h.config.IsAt(name, addr) {
		if err := h.config.OfAPI(name, addr); err != nil {
			return Certificates{}, refuse(http.StatusConflict, "%w", err)
		}
		if err := h.ownAddress(r, addr); err != nil {
			return Certificates{}, err
		}
	}
	// This server may lag behind the one that issued the present certificate.
	return h.issue(name, addr, csr, in.GossipKey, pki.RevisionOf(cert))
}

// ownKey refuses a certificate with another key than the agent's, and a request for another key
// than the certificate's. A thief of a CA's key signs for any name: while the CA is exchanged, it
// would get a certificate of the new one.
func (h *Handler) ownKey(ctx context.Context, name string, cert *x509.Certificate, csr *x509.CertificateRequest) error {
	if !slices.Equal(csr.RawSubjectPublicKeyInfo, cert.RawSubjectPublicKeyInfo) {
		return refuse(http.StatusForbidden, "a certificate of %q is renewed for its own key only", name)
	}
	return h.hasOwnKey(ctx, name, cert)
}

// hasOwnKey refuses a certificate that is not known to be the agent's.
func (h *Handler) hasOwnKey(ctx context.Context, name string, cert *x509.Certificate) error {
	err := h.config.OwnKey(ctx, name, cert)
	if errors.Is(err, revocation.ErrOtherKey) || errors.Is(err, revocation.ErrNoKey) {
		return refuse(http.StatusForbidden, "the certificate of %q counts for nothing here: %w", name, err)
	}
	return err
}

// ErrRemoved is returned by Config.StillNode for a node that was removed from the cluster.
var ErrRemoved = errors.New("the node was removed from the cluster")

// mayComeBack returns the reason why a node with a recently expired certificate gets no new one.
func (h *Handler) mayComeBack(ctx context.Context, cert *x509.Certificate, name string) error {
	err := h.config.StillNode(ctx, name, cert.NotAfter)
	if errors.Is(err, ErrRemoved) {
		return refuse(http.StatusForbidden, "the certificate of %q ended at %s and is not renewed: %w", name,
			cert.NotAfter.UTC().Format(time.RFC3339), err)
	}
	return err
}

// sharedKey returns a shared key, the CA's or that of service accounts, to a server that is a
// member of the store and whose certificate is its present one.
func (h *Handler) sharedKey(r *http.Request, in sharedKeyRequest) (out SharedKey, err error) {
	cert, err := h.caller(r, ServersOrganization, 0)
	if err != nil {
		return out, err
	}
	defer func() {
		h.decided(r.Context(), r, Decision{Act: ActSharedKey, Role: token.Server, Name: cert.Subject.CommonName}, err)
	}()
	switch err := h.config.Current(r.Context(), cert); {
	case errors.Is(err, ErrNotCurrent):
		return out, refuse(http.StatusForbidden, "the certificate of %q: %w", cert.Subject.CommonName, err)
	case err != nil:
		return out, err
	}
	if out.Key, err = h.config.SharedKey(in.Digest); err != nil {
		return SharedKey{}, refuse(http.StatusNotFound, "%w", err)
	}
	h.config.Logger.Info("a server has got a key that all servers share", "name", cert.Subject.CommonName, "digest",
		in.Digest, "client", r.RemoteAddr)
	return out, nil
}

// ErrNotCurrent is part of the error of Config.Current for a certificate that is not the present
// one of a member.
var ErrNotCurrent = errors.New("it is not the present certificate of a member of the store")

// caller returns the client's certificate, after checking that a CA of this cluster issued it for
// the organization at its holder's join: that of peers for servers, and else that of clients. It
// may have expired up to grace ago.
func (h *Handler) caller(r *http.Request, organization string, grace time.Duration) (*x509.Certificate, error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return nil, refuse(http.StatusUnauthorized, "a client certificate of this cluster is needed")
	}
	cert, now := r.TLS.PeerCertificates[0], h.config.Now()
	at := now
	if ended := now.Sub(cert.NotAfter); ended > 0 && ended <= grace {
		at = cert.NotAfter // all other checks remain
	}
	purpose := pki.Clients
	if organization == ServersOrganization {
		purpose = pki.Peers
	}
	err := h.config.Authority.VerifyFor(purpose, cert, r.TLS.PeerCertificates[1:], x509.ExtKeyUsageClientAuth, at)
	var unknown x509.UnknownAuthorityError
	switch {
	case err != nil && now.After(cert.NotAfter) && at == now:
		return nil,
			refuse(http.StatusUnauthorized,
				"the certificate of %q ended at %s, longer ago than a new one is given for it (%s)",
				cert.Subject.CommonName, cert.NotAfter.UTC().Format(time.RFC3339), grace)
	case errors.As(err, &unknown):
		return nil,
			refuse(http.StatusUnauthorized,
				"the certificate of %q is of a CA that this cluster does not trust, or does not trust any more since its CA was exchanged", cert.Subject.CommonName)
	case err != nil:
		return nil, refuse(http.StatusUnauthorized, "client certificate of %q: %w", cert.Subject.CommonName, err)
	}
	if pki.SignedOnRequest(cert) {
		return nil,
			refuse(http.StatusForbidden,
				"the certificate of %q was signed for a CertificateSigningRequest: it is good for the Kubernetes API only; to become a member, join with a token", cert.Subject.CommonName)
	}
	if !slices.Contains(cert.Subject.Organization, organization) {
		return nil,
			refuse(http.StatusForbidden, "client certificate of %q is not one of %s", cert.Subject.CommonName,
				organization)
	}
	if err := h.config.Revoked(cert); err != nil {
		httpserver.Estrange(r.Context())
		return nil, refuse(http.StatusForbidden, "%w", err)
	}
	httpserver.Authenticate(r.Context())
	return cert, nil
}
