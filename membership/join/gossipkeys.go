package join

import (
	"context"
	"errors"
	"net/http"
	"strings"

	"github.com/barque/barque/membership/token"
)

// GossipKeys are the keys of the gossip pool at one generation; the first one is used for sending.
type GossipKeys struct {
	Generation uint64   `json:"generation"`
	Keys       [][]byte `json:"keys"`
}

// ErrNotYet is returned by Config.Barred when it cannot tell yet: the node may ask again, or ask another server.
var ErrNotYet = errors.New("this server does not know all nodes yet")

// gossipKeys hands the keys of the pool to a node that proves by its certificate that it is one, and that still belongs
// to the cluster.
func (h *Handler) gossipKeys(r *http.Request, _ struct{}) (GossipKeys, error) {
	name, role, err := h.node(r)
	if err != nil {
		return GossipKeys{}, err
	}
	if err := h.belongs(name, role); err != nil {
		return GossipKeys{}, err
	}
	return h.config.GossipKeys(), nil
}

// belongs refuses a node that was removed from the cluster, whose certificate is good yet.
func (h *Handler) belongs(name, role string) error {
	err := h.config.Barred(name, role)
	switch {
	case errors.Is(err, ErrNotYet):
		return refuse(http.StatusServiceUnavailable, "%w", err)
	case err != nil:
		return refuse(http.StatusForbidden, "%w", err)
	}
	return nil
}

// node returns name and role of the node whose certificate the request shows.
func (h *Handler) node(r *http.Request) (name, role string, err error) {
	if cert, err := h.caller(r, nodesGroup, 0); err == nil {
		if name, ok := strings.CutPrefix(cert.Subject.CommonName, nodeUserPrefix); ok {
			return name, token.Agent, nil
		}
	}
	cert, err := h.caller(r, ServersOrganization, 0)
	if err != nil {
		return "", "", err
	}
	return cert.Subject.CommonName, token.Server, nil
}

// GossipKeys asks for the keys of the gossip pool, by the certificate that is the client's identity.
func (c *Client) GossipKeys(ctx context.Context) (GossipKeys, error) {
	var out GossipKeys
	return out, c.post(ctx, "gossip-keys", struct{}{}, &out)
}
