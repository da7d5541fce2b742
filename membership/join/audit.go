package join

import (
	"encoding/json"
	"net/http"
	"strings"
	"time"

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
	// Claims are the statements of the request, proven or not, by their names.
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

// longestClaim bounds a stranger's text in the log.
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
	case SignedRequest:
		var request Request
		if json.Unmarshal(in.Request, &request) == nil {
			request.Token = ""
			h.describe(&a, request, err == nil)
		}
	case sharedKeyRequest:
		a.claim(ClaimKey, in.Digest)
	case Renewal:
		a.claim(ClaimAddress, in.Address)
	}
	// A certificate that has expired proves its holder only where the request was granted.
	if !byToken(in) && r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		cert := r.TLS.PeerCertificates[0]
		a.claim(ClaimNode, cert.Subject.CommonName)
		if err == nil || h.isNode(r) {
			a.User, a.Groups = cert.Subject.CommonName, cert.Subject.Organization
		}
	}
	h.config.Audit(a)
}

// byToken reports whether a token, and no certificate, identifies the caller.
func byToken(in any) bool {
	switch in.(type) {
	case Request, SignedRequest:
		return true
	}
	return false
}

// describe records a request to join. A former token is in the request itself.
func (h *Handler) describe(a *Audited, in Request, granted bool) {
	role, id := in.Role, in.TokenID
	if in.Token != "" {
		role, id = strings.TrimPrefix(a.Request.URL.Path, Prefix), ""
		if t, err := pki.ParseToken(in.Token); err == nil {
			id = t.ID
		}
	}
	a.claim(ClaimRole, role)
	a.claim(ClaimNode, in.Name)
	a.claim(ClaimAddress, in.Address)
	a.claim(ClaimVersion, in.Version)
	a.claim(ClaimToken, id)
	if granted {
		a.User, a.Groups = tokenUserPrefix+id, []string{tokensGroup}
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
