package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/barque/barque/apiserver/nodeleases"
	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/internal/lifecycle"
	"github.com/barque/barque/membership/credentials"
	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/membership/keyring"
	"github.com/barque/barque/membership/liveness"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/raftstore"
)

// A cluster that was recovered from a lost quorum, or that began with a backup, has another ID than
// its predecessor, the one that its agents know. The CA is the same, and so are the agents'
// certificates, the settings and the objects. So an agent follows by itself. When it sees no server
// in its pool any more it asks those that it knows for the keys, shows its certificate and says of
// which cluster it is; a server of the successor answers with what the agent needs to be of that
// one, and the agent is started again in it. Its pods stay.
//
// A server of a cluster that is well may have been recovered by mistake, and says the same. So the
// agent follows only when nobody of those that it has ever known answers for its own cluster, nor
// is seen by gossip, for as long as it takes until a node is given up: the machines of a well
// cluster may be starting, or out of reach. It counts anew when it is started, when somebody of its
// own cluster answers, and after a time in which the successor did not.
//
// It goes from a cluster to its successor and never back, whoever serves. In a cluster that is not
// the successor of its own, though it has the same CA, an agent is a stray: it is refused, says so
// in its log, and the status names it. That is so where two clusters began with one backup, and the
// agent has followed the other one: which one it is for is for an operator to say, with --rejoin.

// errFollows is why keys were not got: the agent is about to be started again.
var errFollows = errors.New("this agent follows another cluster")

const (
	// followAfter is for how long nobody but the heir must have answered until an agent follows it.
	followAfter = 40 * time.Second
	// offerHolds is how much later the next answer must come for that to be one time. The questions
	// come every fifteen seconds at least, and take some seconds where machines that are gone are
	// asked.
	offerHolds = 30 * time.Second
)

// offer is since when a cluster alone has answered, which says that it is the heir of the agent's,
// and when it did last.
type offer struct {
	heir        string
	since, last time.Time
}

// fetchKeys asks the servers that the agent has ever known.
func (a *agent) fetchKeys(ctx context.Context, generation uint64) (keyring.Ring, error) {
	keys, err := credentials.FetchKeys(ctx, append(liveness.KnownServers(a.pool), a.servers()...), generation, credentials.AskKeys(a.ids.Trust, a.ids.Client.Certificate(), a.cluster))
	return a.take(keys, err, seesServer(a.pool))
}

// seesServer tells whether a server of the pool, and so of the agent's own cluster, lives.
func seesServer(pool *gossip.Pool) bool {
	return slices.ContainsFunc(pool.Members(), func(m gossip.Member) bool { return m.Role == pki.RoleServer && m.State == gossip.Alive })
}

// take is what the agent makes of an answer, and of whether it sees a server of its own cluster.
func (a *agent) take(keys join.GossipKeys, err error, sees bool) (keyring.Ring, error) {
	var own *credentials.OwnAnswersError
	if sees || errors.As(err, &own) || err == nil && keys.Heir == nil {
		a.offered = offer{}
	}
	switch {
	case err != nil:
		return keyring.Ring{}, err
	case keys.Heir == nil:
		return keyring.Ring{Generation: keys.Generation, Keys: keys.Keys}, nil
	case sees:
		return keyring.Ring{}, fmt.Errorf("cluster %q says that it is the heir of this agent's, of which a server is seen by gossip", keys.Heir.ID)
	}
	now := time.Now()
	if a.offered.heir != keys.Heir.ID || now.Sub(a.offered.last) > offerHolds {
		a.offered = offer{heir: keys.Heir.ID, since: now}
		a.logger.Info("nobody answers for this agent's cluster, and another one says that it goes on in its place: if that stays so, the agent follows", "cluster", a.cluster, "its", keys.Heir.ID, "after", followAfter)
	}
	a.offered.last = now
	if left := followAfter - now.Sub(a.offered.since); left > 0 {
		return keyring.Ring{}, fmt.Errorf("cluster %q says that it is the heir of this agent's: it is asked again, for %s yet", keys.Heir.ID, left.Round(time.Second))
	}
	return keyring.Ring{}, a.follow(*keys.Heir)
}

// follow makes this agent one of the cluster that goes on in place of its own.
func (a *agent) follow(heir join.Cluster) error {
	if err := a.record.follow(heir); err != nil {
		return fmt.Errorf("follow cluster %q, which goes on in place of this agent's: %w", heir.ID, err)
	}
	a.logger.Warn("another cluster goes on in place of this agent's: the agent follows, and starts again for that; its pods stay", "was", a.cluster, "cluster", heir.ID)
	select {
	case a.follows <- struct{}{}:
	default: // it is told already
	}
	return errFollows
}

// startFollowing ends the agent when it is to be started again in another cluster.
func (a *agent) startFollowing(ctx context.Context) error {
	return a.stack.Start(ctx, lifecycle.Component{Name: "cluster", Run: func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return nil
		case <-a.follows:
			return ErrRestart
		}
	}})
}

// follow writes down that the node is of another cluster, with the same CA.
func (r *record) follow(heir join.Cluster) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if heir.ID == "" || len(heir.GossipKeys) == 0 {
		return errors.New("the server does not tell what is needed for that")
	}
	if err := r.sameCluster(heir); err != nil {
		return err
	}
	before := r.Cluster
	r.Cluster.ID, r.Cluster.GossipKeys, r.Cluster.KeyGeneration = heir.ID, heir.GossipKeys, heir.KeyGeneration
	if len(heir.Servers) > 0 {
		r.Cluster.Servers = heir.Servers
	}
	if err := r.save(); err != nil {
		r.Cluster = before
		return err
	}
	return nil
}

// succeeds tells whether this server's cluster goes on in place of the one with the ID.
func (s *server) succeeds(cluster string) bool {
	return slices.ContainsFunc(s.store.Predecessors(), func(p raftstore.Succession) bool { return p.Cluster == cluster })
}

// strays are nodes that have asked this server, and took themselves to be of another cluster.
type strays struct {
	mu    sync.Mutex
	known map[string]stray // by name
}

type stray struct {
	cluster string
	asked   time.Time
}

// strayShown is for how long one is told of that does not ask again; it asks every minute.
const strayShown = 5 * time.Minute

func (s *strays) note(name, cluster string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known == nil {
		s.known = make(map[string]stray)
	}
	s.known[name] = stray{cluster, time.Now()}
}

// cluster returns the one that a node said lately it is of; empty when it has not.
func (s *strays) cluster(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k, ok := s.known[name]; ok && time.Since(k.asked) < strayShown {
		return k.cluster
	}
	return ""
}

// apartAfter is how long a server must run before it knows all by gossip.
const apartAfter = time.Minute

// apartAgents are those that this server knows; none before it has run for a while.
func (s *server) apartAgents() []clusterstatus.ApartAgent {
	nodes, pool := s.nodes.Load(), s.met.Load()
	if nodes == nil || pool == nil || !(*nodes).HasSynced() || time.Since(s.started) < apartAfter {
		return nil
	}
	var out []clusterstatus.ApartAgent
	for _, object := range (*nodes).GetStore().List() {
		if n, ok := object.(*corev1.Node); ok && isApart(n, pool.Member) {
			out = append(out, clusterstatus.ApartAgent{Name: n.Name, Cluster: s.strays.cluster(n.Name)})
		}
	}
	slices.SortFunc(out, func(a, b clusterstatus.ApartAgent) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// isApart reports whether a Node is an agent's that is Ready though gossip does not know it. Nodes
// of others are never in the pool.
func isApart(n *corev1.Node, inPool func(name string) (gossip.Member, bool)) bool {
	_, known := inPool(n.Name)
	return !known && !isServers(n) && isReady(n) && (nodeleases.IsMember(n) || runsBarque(n))
}

func isReady(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}
