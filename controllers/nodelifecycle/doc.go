// Package nodelifecycle turns evidence about nodes into what the API says about them: the Ready
// condition, the taints that go with the conditions, and in the end the eviction of pods.
//
// The evidence is gossip (Liveness), which is not a verdict: before a node is marked, and again
// before its pods are evicted, it is probed on the leader's own path. And when a large share of the
// nodes of a zone is gone at once, it is more likely that the leader is cut off than that they are
// all dead: evictions slow down or stop.
//
// A node that is alive says itself how it is: its kubelet writes its conditions, and writes them
// again when it sees that they have been marked Unknown. This package never marks a node ready.
package nodelifecycle

import (
	"context"
	"time"
)

// State of a node by gossip.
type State int

const (
	Alive   State = iota + 1
	Suspect       // not heard of; others are being asked
	Dead          // nobody hears of it
	Left          // said good-bye
)

// Life is what gossip says about a node.
type Life struct {
	State State
	Since time.Time // when State began, by this server's clock
}

// Liveness is what the controller wants to know about nodes.
type Liveness interface {
	// Life tells about one node; false when gossip has never heard of it.
	Life(node string) (Life, bool)
	// Changed returns a channel that is closed at the next change of any node.
	Changed() <-chan struct{}
	// Confirm asks the node itself, on this server's own path, and reports whether it answers. It
	// returns when ctx ends at the latest.
	Confirm(ctx context.Context, node string) bool
}

// Settings are the times and rates, in Kubernetes' meaning. The zero value is Kubernetes' defaults.
type Settings struct {
	// Period is how often every node is looked at without a reason. Default 5 s.
	Period time.Duration
	// Grace is how long a node may be without life before it is marked Unknown. Default 40 s.
	Grace time.Duration
	// StartupGrace is the same for a node of which gossip has never heard. Default 60 s.
	StartupGrace time.Duration
	// EvictionRate is how many nodes a second get the taints that evict, per zone. Default 0.1.
	EvictionRate float64
	// SecondaryEvictionRate holds in a large zone of which a large share is gone. Default 0.01; in
	// a small zone it is 0 then.
	SecondaryEvictionRate float64
	// LargeZone is above how many nodes a zone is large. Default 50.
	LargeZone int
	// UnhealthyShare is the share of a zone's nodes, at least three, from which on evictions slow
	// down. Default 0.55.
	UnhealthyShare float64
}

func (s Settings) withDefaults() Settings {
	orDefault(&s.Period, 5*time.Second)
	orDefault(&s.Grace, 40*time.Second)
	orDefault(&s.StartupGrace, max(60*time.Second, s.Grace))
	orDefault(&s.EvictionRate, 0.1)
	orDefault(&s.SecondaryEvictionRate, 0.01)
	orDefault(&s.LargeZone, 50)
	orDefault(&s.UnhealthyShare, 0.55)
	return s
}

func orDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}
