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

// A cluster that was recovered from a lost quorum, or began with a backup, has another ID than its
// predecessor. The agents know the predecessor's ID. The CA, the agents' certificates, the settings
// and the objects are the same, so an agent follows by itself. When it sees no server in its pool
// any more, it asks its known servers for the gossip keys. It authenticates by its certificate and
// sends its cluster's ID. A server of the successor answers with the agent's new data, and the
// agent restarts in the new cluster. Its pods stay.
//
// A server of a healthy cluster may have been recovered by mistake, and gives the same answer. So
// the agent follows only after followAfter without any sign of its own cluster: no answer of a
// known server, and no server in gossip. The machines of a healthy cluster may be starting, or out
// of reach. The time begins again at the agent's start, after an answer of its own cluster, and
// after a pause in the successor's answers.
//
// An agent moves from a cluster to its successor and never back. In an unrelated cluster with the
// same CA an agent is unrelated: it is refused, logs that, and appears in the status. That happens
// if two clusters began with one backup, and the agent has followed the other one. An operator
// selects its cluster with --rejoin.

// errFollows is why keys were not got: the agent is about to be started again.
var errFollows = errors.New("this agent follows another cluster")

const (
	// followAfter is how long only the successor must have answered before an agent follows it.
	followAfter = 40 * time.Second
	// offerHolds is how much later the next answer must come for that to be one time. The questions
	// come every fifteen seconds at least, and take some seconds where machines that are gone are
	// asked.
	offerHolds = 30 * time.Second
)

// offer is the period in which only one cluster has answered, as the successor of the agent's.
type offer struct {
	successor   string
	since, last time.Time
}

// Follower lets an agent follow its cluster's successor.
type Follower struct {
	record  *Record
	cluster string        // ID of the cluster that the agent was started in
	Follows chan struct{} // holds a token when it is to be started again, in the successor of that one
	offered offer         // the successor's offer; for Take only
	logger  *slog.Logger
}

// NewFollower is for an agent that starts with the record.
func NewFollower(r *Record, logger *slog.Logger) *Follower {
	return &Follower{record: r, cluster: r.ClusterID(), Follows: make(chan struct{}, 1), logger: logger}
}

// Take evaluates an answer. sees reports whether gossip shows a server of the agent's own cluster.
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
		return keyring.Ring{},
			fmt.Errorf(
				"cluster %q claims to be the successor of this agent's, but gossip sees a server of the agent's own",
				keys.Successor.ID)
	}
	now := time.Now()
	if a.offered.successor != keys.Successor.ID || now.Sub(a.offered.last) > offerHolds {
		a.offered = offer{successor: keys.Successor.ID, since: now}
		a.logger.Info(
			"no server of this agent's cluster answers, and another cluster says that it goes on in its place: the agent follows if that continues", "cluster", a.cluster, "its", keys.Successor.ID, "after", followAfter)
	}
	a.offered.last = now
	if left := followAfter - now.Sub(a.offered.since); left > 0 {
		return keyring.Ring{},
			fmt.Errorf(
				"cluster %q claims to be the successor of this agent's: the agent follows if that continues for another %s", keys.Successor.ID, left.Round(time.Second))
	}
	return keyring.Ring{}, a.follow(*keys.Successor)
}

// follow moves this agent to the successor of its cluster.
func (a *Follower) follow(successor join.Cluster) error {
	if err := a.record.follow(successor); err != nil {
		return fmt.Errorf("follow cluster %q, which goes on in place of this agent's: %w", successor.ID, err)
	}
	a.logger.Warn("another cluster goes on in place of this agent's: the agent follows it and restarts; its pods stay",
		"was", a.cluster, "cluster", successor.ID)
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
		return errors.New("the server does not send the required data")
	}
	if err := r.sameCluster(successor); err != nil {
		return err
	}
	before := r.Cluster
	r.Cluster.ID, r.Cluster.GossipKeys, r.Cluster.KeyGeneration = successor.ID, successor.GossipKeys,
		successor.KeyGeneration
	if len(successor.Servers) > 0 {
		r.Cluster.Servers = successor.Servers
	}
	if err := r.Save(); err != nil {
		r.Cluster = before
		return err
	}
	return nil
}

// Unrelated are nodes that have asked this server, and took themselves to be of another cluster.
type Unrelated struct {
	mu    sync.Mutex
	known map[string]unrelatedNode // by name
}

type unrelatedNode struct {
	cluster string
	asked   time.Time
}

// unrelatedShown is how long such a node is reported after its last request; it asks every minute.
const unrelatedShown = 5 * time.Minute

// Note records a node's request and its cluster.
func (s *Unrelated) Note(name, cluster string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.known == nil {
		s.known = make(map[string]unrelatedNode)
	}
	s.known[name] = unrelatedNode{cluster, time.Now()}
}

// Cluster returns the cluster in a node's recent request; empty without one.
func (s *Unrelated) Cluster(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if k, ok := s.known[name]; ok && time.Since(k.asked) < unrelatedShown {
		return k.cluster
	}
	return ""
}
