package join

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/barque/barque/membership/token"
)

// GossipKeys are the keys of the gossip pool at one generation; the first one is used for sending.
type GossipKeys struct {
	Generation uint64   `json:"generation"`
	Keys       [][]byte `json:"keys"`
	// Successor, for an agent, is there when the cluster of which it says to be was recovered and
	// goes on as that one: it is to follow, and then these are its keys.
	Successor *Cluster `json:"heir,omitempty"`
}

// keysRequest says of which cluster the node is that asks.
type keysRequest struct {
	Cluster string `json:"cluster"`
}

// ErrNotYet is returned by Config.Barred when it cannot tell yet: the node may ask again, or ask
// another server.
var ErrNotYet = errors.New("this server does not know all nodes yet")

// gossipKeys hands the keys of the pool to a node that proves by its certificate that it is one,
// and that still belongs to the cluster. The certificate does not tell of which cluster the node
// takes itself to be, where several have one CA: when one was recovered, or began with a backup. In
// the pool it would be alone.
func (h *Handler) gossipKeys(r *http.Request, in keysRequest) (GossipKeys, error) {
	name, role, err := h.node(r)
	if err != nil {
		return GossipKeys{}, err
	}
	if err := h.belongs(name, role); err != nil {
		return GossipKeys{}, err
	}
	keys, own := h.config.GossipKeys(), h.config.Cluster()
	if in.Cluster == "" || in.Cluster == own.ID { // an older program does not say it
		if role == token.Agent && h.undecided.came(name) {
			h.config.Logger.Info("an agent of a cluster in whose place this one goes on has followed", "name", name, "client", r.RemoteAddr)
		}
		return keys, nil
	}
	if role != token.Agent || !h.config.Inherited(in.Cluster) {
		h.config.Stray(name, in.Cluster)
		return GossipKeys{}, refuse(http.StatusConflict, "%q is of cluster %q, and this one is %q, with the same CA: to be a node of this one it must join again", name, in.Cluster, own.ID)
	}
	if h.undecided.asked(name, h.config.Now()) {
		h.config.Logger.Info("an agent of a predecessor of this cluster asks for it: it follows when no server has answered for its own for a while",
			"name", name, "its", in.Cluster, "client", r.RemoteAddr)
	}
	keys.Successor = &own
	return keys, nil
}

// undecided are agents of a cluster from which this one was recovered, which ask more than once
// before they follow; where that cluster is well they do not.
type undecided struct {
	mu   sync.Mutex
	told map[string]time.Time // when it was told that it asks, by name
}

// tellAgain is how often it is told of an agent that it asks.
const tellAgain = 10 * time.Minute

// asked notes a question, and tells whether it is to be told.
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

// GossipKeys asks for the keys of the gossip pool of the cluster, by the certificate that is the
// client's identity. It fails with a *RefusedError with http.StatusConflict at a server of another
// cluster that is not the successor of that one.
func (c *Client) GossipKeys(ctx context.Context, cluster string) (GossipKeys, error) {
	var out GossipKeys
	return out, c.post(ctx, "gossip-keys", keysRequest{cluster}, &out)
}
