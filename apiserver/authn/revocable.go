package authn

import (
	cryptox509 "crypto/x509"
	"net/http"

	"k8s.io/apiserver/pkg/authentication/authenticator"

	"github.com/barque/barque/internal/cutoff"
)

// revocable authenticates as next does, by certificates of the cluster's CAs, unless the client's
// is revoked.
type revocable struct {
	revoked func(leaf *cryptox509.Certificate) error
	next    authenticator.Request
}

// AuthenticateRequest implements authenticator.Request. A certificate that next refuses gets next's
// error, which shows nothing about revocation.
func (c *revocable) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	response, ok, err := c.next.AuthenticateRequest(r)
	if ok && c.revoked != nil && r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		if why := c.revoked(r.TLS.PeerCertificates[0]); why != nil {
			return nil, false, why
		}
	}
	if ok {
		cutoff.Proven(r.Context(), cutoff.ByCluster)
	}
	return response, ok, err
}
