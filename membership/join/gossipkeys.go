package join

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/barque/barque/membership/token"
	"github.com/barque/barque/pki"
)

// GossipKeys are the keys of the gossip pool at one generation; the first one is used for sending.
type GossipKeys struct {
	Generation uint64   `json:"generation"`
	Keys       [][]byte `json:"keys"`
	// Successor, for an agent, is set if the cluster in its request was recovered as that one. The
	// agent is to follow, and these are its keys then.
	Successor *Cluster `json:"heir,omitempty"`
}

// keysRequest has the cluster of the requesting node.
type keysRequest struct {
	Cluster string `json:"cluster"`
}

// ErrNotYet is returned by Config.Barred if the answer is not known yet: the node may retry, or ask
// another server.
var ErrNotYet = errors.New("this server does not know all nodes yet")

// gossipKeys returns the keys of the pool to a node that its certificate proves and that still
// belongs to the cluster. The certificate does not name the cluster, and several clusters share a
// CA after a recovery or a restore. A node of another cluster would be alone in the pool.
func (h *Handler) gossipKeys(r *http.Request, in keysRequest) (GossipKeys, error) {
	name, role, err := h.node(r)
	if err != nil {
		return GossipKeys{}, err
	}
	if err := h.belongs(name, role); err != nil {
		return GossipKeys{}, err
	}
	if role == token.Agent {
		if err := h.hasOwnKey(r.Context(), name, r.TLS.PeerCertificates[0]); err != nil {
			return GossipKeys{}, err
		}
	}
	keys, own := h.config.GossipKeys(), h.config.Cluster()
	if in.Cluster == "" || in.Cluster == own.ID { // an older version does not send it
		if role == token.Agent && h.undecided.came(name) {
			h.config.Logger.Info("an agent of this cluster's predecessor has followed", "name", name, "client",
				r.RemoteAddr)
		}
		return keys, nil
	}
	if role != token.Agent || !h.config.Inherited(in.Cluster) {
		h.config.Unrelated(name, in.Cluster)
		return GossipKeys{},
			refuse(http.StatusConflict,
				"%q is of cluster %q, and this one is %q, with the same CA: to be a node of this one it must join again", name, in.Cluster, own.ID)
	}
	if h.undecided.asked(name, h.config.Now()) {
		h.config.Logger.Info(
			"an agent of this cluster's predecessor asks for the keys: it follows when no server has answered for its own cluster for a while",
			"name", name, "its", in.Cluster, "client", r.RemoteAddr)
	}
	keys.Successor = &own
	return keys, nil
}

// undecided are agents of this cluster's predecessor, which ask repeatedly before they follow. They
// do not follow while their own cluster is healthy.
type undecided struct {
	mu   sync.Mutex
	told map[string]time.Time // time of the last log line, by name
}

// tellAgain is the interval of log lines about one agent's requests.
const tellAgain = 10 * time.Minute

// asked records a request, and reports whether to log it.
func (u *undecided) asked(name string, now time.Time) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if told, ok := u.told[name]; ok && now.Sub(told).Abs() < tellAgain {
		return false
	}
	if u.told == nil {
		u.told = make(map[string]time.Time)
	}
	u.told[name] = now
	return true
}

// came tells whether an agent that is of this cluster was undecided before.
func (u *undecided) came(name string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	_, was := u.told[name]
	delete(u.told, name)
	return was
}

// belongs refuses a node that was removed from the cluster but whose certificate is still valid.
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

// Agent returns the name of the agent that makes a request, by its certificate. It is for handlers
// beside this one that agents call.
func (h *Handler) Agent(r *http.Request) (name string, err error) {
	name, role, err := h.node(r)
	switch {
	case err != nil:
		return "", err
	case role != token.Agent:
		return "", refuse(http.StatusForbidden, "%q is no agent", name)
	}
	return name, errors.Join(h.belongs(name, role), h.hasOwnKey(r.Context(), name, r.TLS.PeerCertificates[0]))
}

// node returns the name and role in the request's client certificate.
func (h *Handler) node(r *http.Request) (name, role string, err error) {
	role, organization := token.Server, ServersOrganization
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		is := r.TLS.PeerCertificates[0].Subject
		if strings.HasPrefix(is.CommonName, pki.NodeUser) && slices.Contains(is.Organization, pki.NodesGroup) {
			role, organization = token.Agent, pki.NodesGroup
		}
	}
	cert, err := h.caller(r, organization, 0)
	if err != nil {
		return "", "", err
	}
	return strings.TrimPrefix(cert.Subject.CommonName, pki.NodeUser), role, nil
}

// GossipKeys asks for the gossip keys of the cluster, with the client's certificate. At a server of
// an unrelated cluster it fails with a *RefusedError with http.StatusConflict.
func (c *Client) GossipKeys(ctx context.Context, cluster string) (GossipKeys, error) {
	var out GossipKeys
	return out, c.post(ctx, "gossip-keys", keysRequest{cluster}, &out)
}
