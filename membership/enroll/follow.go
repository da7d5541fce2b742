package enroll

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/barque/barque/membership/credentials"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/membership/keyring"
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
	// followAfter is for how long nobody but the successor must have answered until an agent
	// follows it.
	followAfter = 40 * time.Second
	// offerHolds is how much later the next answer must come for that to be one time. The questions
	// come every fifteen seconds at least, and take some seconds where machines that are gone are
	// asked.
	offerHolds = 30 * time.Second
)

// offer is since when a cluster alone has answered, which says that it is the successor of the
// agent's, and when it did last.
type offer struct {
	successor   string
	since, last time.Time
}

// Follower lets an agent follow its cluster's successor.
type Follower struct {
	record  *Record
	cluster string        // ID of the one that the agent was started in
	Follows chan struct{} // holds a token when it is to be started again, in the successor of that one
	offered offer         // who says that it is that successor; Take's own
	logger  *slog.Logger
}

// NewFollower is for an agent that starts with the record.
func NewFollower(r *Record, logger *slog.Logger) *Follower {
	return &Follower{record: r, cluster: r.ClusterID(), Follows: make(chan struct{}, 1), logger: logger}
}

// Take is what the agent makes of an answer, and of whether it sees a server of its own cluster.
func (a *Follower) Take(keys join.GossipKeys, err error, sees bool) (keyring.Ring, error) {
	var own *credentials.OwnAnswersError
	if sees || errors.As(err, &own) || err == nil && keys.Successor == nil {
		a.offered = offer{}
	}
	switch {
	case err != nil:
		return keyring.Ring{}, err
	case keys.Successor == nil:
		return keyring.Ring{Generation: keys.Generation, Keys: keys.Keys}, nil
	case sees:
		return keyring.Ring{}, fmt.Errorf("cluster %q says that it is the successor of this agent's, of which a server is seen by gossip", keys.Successor.ID)
	}
	now := time.Now()
	if a.offered.successor != keys.Successor.ID || now.Sub(a.offered.last) > offerHolds {
		a.offered = offer{successor: keys.Successor.ID, since: now}
		a.logger.Info("nobody answers for this agent's cluster, and another one says that it goes on in its place: if that stays so, the agent follows", "cluster", a.cluster, "its", keys.Successor.ID, "after", followAfter)
	}
	a.offered.last = now
	if left := followAfter - now.Sub(a.offered.since); left > 0 {
		return keyring.Ring{}, fmt.Errorf("cluster %q says that it is the successor of this agent's: it is asked again, for %s yet", keys.Successor.ID, left.Round(time.Second))
	}
	return keyring.Ring{}, a.follow(*keys.Successor)
}

// follow makes this agent one of the cluster that goes on in place of its own.
func (a *Follower) follow(successor join.Cluster) error {
	if err := a.record.follow(successor); err != nil {
		return fmt.Errorf("follow cluster %q, which goes on in place of this agent's: %w", successor.ID, err)
	}
	a.logger.Warn("another cluster goes on in place of this agent's: the agent follows, and starts again for that; its pods stay", "was", a.cluster, "cluster", successor.ID)
	select {
	case a.Follows <- struct{}{}:
	default: // it is told already
	}
	return errFollows
}

// follow writes down that the node is of another cluster, with the same CA.
func (r *Record) follow(successor join.Cluster) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if successor.ID == "" || len(successor.GossipKeys) == 0 {
		return errors.New("the server does not tell what is needed for that")
	}
	if err := r.sameCluster(successor); err != nil {
		return err
	}
	before := r.Cluster
	r.Cluster.ID, r.Cluster.GossipKeys, r.Cluster.KeyGeneration = successor.ID, successor.GossipKeys, successor.KeyGeneration
	if len(successor.Servers) > 0 {
		r.Cluster.Servers = successor.Servers
	}
	if err := r.Save(); err != nil {
		r.Cluster = before
		return err
	}
	return nil
}

// Strays are nodes that have asked this server, and took themselves to be of another cluster.
type Strays struct {
	mu    sync.Mutex
	known map[string]stray // by name
}

type stray struct {
	cluster string
	asked   time.Time
}

// strayShown is for how long one is told of that does not ask again; it asks every minute.
const strayShown = 5 * time.Minute

// Note notes that a node has asked, and of which cluster it is.
func (s *Strays) Note(name, cluster string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known == nil {
		s.known = make(map[string]stray)
	}
	s.known[name] = stray{cluster, time.Now()}
}

// Cluster returns the one that a node said lately it is of; empty when it has not.
func (s *Strays) Cluster(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k, ok := s.known[name]; ok && time.Since(k.asked) < strayShown {
		return k.cluster
	}
	return ""
}
