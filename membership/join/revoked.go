package join

import (
	"context"
	"net/http"

	"github.com/barque/barque/membership/revocation"
)

// revokedRequest has the version of the list that the node has.
type revokedRequest struct {
	Have uint64 `json:"have,omitempty"`
}

// revoked returns the revoked certificates to a node of the cluster. One that has the list gets its
// version alone.
func (h *Handler) revoked(r *http.Request, in revokedRequest) (*revocation.Entries, error) {
	if _, _, err := h.node(r); err != nil {
		return nil, err
	}
	is := h.config.Entries()
	if is.Version <= in.Have {
		return &revocation.Entries{Version: is.Version}, nil
	}
	return is.ForAgents(), nil
}

// Revoked asks for the revoked certificates, with the client's certificate. There are none in an
// answer with a version that is no higher than the one that the caller has.
func (c *Client) Revoked(ctx context.Context, have uint64) (revocation.Entries, error) {
	var out revocation.Entries
	return out, c.post(ctx, "revoked", revokedRequest{have}, &out)
}
