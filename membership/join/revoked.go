package join

import (
	"context"
	"net/http"

	"github.com/barque/barque/membership/revocation"
)

// revoked returns the revoked certificates to a node of the cluster.
func (h *Handler) revoked(r *http.Request, _ struct{}) (*revocation.Entries, error) {
	if _, _, err := h.node(r); err != nil {
		return nil, err
	}
	return h.config.Entries(), nil
}

// Revoked asks for the revoked certificates, with the client's certificate.
func (c *Client) Revoked(ctx context.Context) (revocation.Entries, error) {
	var out revocation.Entries
	return out, c.post(ctx, "revoked", struct{}{}, &out)
}
