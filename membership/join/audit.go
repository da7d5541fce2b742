package join

import (
	"net/http"
	"time"

	"github.com/barque/barque/membership/token"
	"github.com/barque/barque/pki"
)

// Audited is the record of one request that was granted or refused. It has no secrets.
type Audited struct {
	Request  *http.Request
	Received time.Time
	// User and Groups are the proven identity of the caller: the token's, or its certificate's.
	// They are empty of a refused token.
	User   string
	Groups []string
	Status int    // of the answer
	Reason string // of a refusal
	// Claims are what the request says, proven or not, by their names.
	Claims map[string]string
}

// Names of claims.
const (
	ClaimToken   = "token-id"
	ClaimNode    = "node"
	ClaimRole    = "role"
	ClaimAddress = "address"
	ClaimVersion = "version"
	ClaimKey     = "key-digest"
)

// The user of a token, as of Kubernetes' own bootstrap tokens.
const (
	tokenUserPrefix = "system:bootstrap:"
	tokensGroup     = "system:bootstrappers"
)

// longestClaim bounds what a stranger can write into the log.
const longestClaim = 253

// longestReason bounds the reason, which may quote the request.
const longestReason = 1024

// audit records the outcome of a request with its decoded body.
func (h *Handler) audit(r *http.Request, in any, received time.Time, err error) {
	if h.config.Audit == nil {
		return
	}
	a := Audited{Request: r, Received: received, Status: http.StatusOK, Claims: map[string]string{}}
	if err != nil {
		a.Status, a.Reason = statusOf(err), cut(err.Error(), longestReason)
	}
	switch in := in.(type) {
	case Request:
		h.describe(&a, in, err == nil)
	case sharedKeyRequest:
		a.claim(ClaimKey, in.Digest)
	case Renewal:
		a.claim(ClaimAddress, in.Address)
	}
	// A certificate that has expired proves its holder only where the request was granted.
	_, byToken := in.(Request)
	if !byToken && r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		cert := r.TLS.PeerCertificates[0]
		a.claim(ClaimNode, cert.Subject.CommonName)
		if err == nil || h.isNode(r) {
			a.User, a.Groups = cert.Subject.CommonName, cert.Subject.Organization
		}
	}
	h.config.Audit(a)
}

// describe records a request to join.
func (h *Handler) describe(a *Audited, in Request, granted bool) {
	role := token.Agent
	if a.Request.URL.Path == Prefix+"server" {
		role = token.Server
	}
	a.claim(ClaimRole, role)
	a.claim(ClaimNode, in.Name)
	a.claim(ClaimAddress, in.Address)
	a.claim(ClaimVersion, in.Version)
	t, err := pki.ParseToken(in.Token)
	if err != nil {
		return
	}
	a.claim(ClaimToken, t.ID)
	if granted {
		a.User, a.Groups = tokenUserPrefix+t.ID, []string{tokensGroup}
	}
}

func (a *Audited) claim(name, value string) {
	if value != "" {
		a.Claims[name] = cut(value, longestClaim)
	}
}

func cut(text string, n int) string {
	if len(text) > n {
		return text[:n] + "…"
	}
	return text
}
