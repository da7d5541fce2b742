// Package nodelifecycle turns evidence about nodes into what the API says about them: the Ready
// condition, the taints that go with the conditions, and in the end the eviction of pods.
//
// The evidence is gossip and the heartbeats of the store (Liveness), which are no verdict: before
// anything is written about a node, and again before pods are deleted, the node itself is asked on
// the leader's own path. A flap therefore costs nothing. And when a large share of the nodes of a
// zone is gone at once, it is more likely that the leader is cut off than that they are all dead:
// evictions slow down or stop.
//
// What happens to a node that nobody hears of and that does not answer:
//
//   - At once it gets the taint node.kubernetes.io/unreachable:NoSchedule, and no other. Kubernetes
//     adds it when the grace is over; until then its scheduler goes on placing pods on a dead node.
//     It touches no pod that is there, and is taken off as soon as the node is heard of again and
//     its kubelet answers, or writes.
//   - A second later, the pods that were bound to it and that its kubelet has never acknowledged
//     (no status.startTime) are deleted, so that their controllers replace them. On a node that
//     said good-bye they wait for its return, as long as it has its grace. This is an
//     ordinary graceful deletion: the object stays, Terminating, until the kubelet confirms that
//     nothing of it runs, or until the Node object is removed. So if the kubelet did get to know
//     the pod, and only could not say so, the pod ends when it is back, and a controller that
//     promises at most one pod of a name (StatefulSet) goes on waiting, as it has to. The deletion
//     holds for the version of the pod that was seen, so one that is acknowledged in that moment
//     stays. Pods that have started, pods without a controller, and pods that tolerate unreachable
//     nodes without limit are not touched: a node that is cut off loses nothing that was known to
//     run.
//   - When the grace is over, Ready and the other conditions go Unknown, and the taint that evicts
//     follows, with Kubernetes' times and rates.
//
// A node that is alive says itself how it is: its kubelet writes its conditions, and writes them
// again when it sees that they have been marked Unknown. This package never marks a node ready. It
// marks one as not ready that is alive and says by gossip that it is ill, if its kubelet, which may
// be what is ill, has not written so itself.
//
// Where gossip and the leader's path are both cut and the kubelet still reaches the API, the two
// would contradict each other for ever. So a kubelet that sees the taint on its own node repeats
// its conditions every ten seconds, which postpones the end of the grace: the node stays ready,
// gets no new pods, and nothing flips, also where the grace is shorter than ten seconds: what a
// kubelet says counts for fifteen. No healthy node has the taint, so an idle cluster writes
// nothing.
//
// A node that is no member of the cluster (Liveness.Member: an upstream kubelet, virtual-kubelet,
// KWOK) lives by its Lease in kube-node-lease and by its status, as Kubernetes has it:
//
//   - A sign of its life is a change of the lease's renewTime, or of the heartbeat in its Ready
//     condition. It counts from when this leader has seen it, so the node's clock does not matter.
//     A new leader begins with the whole grace.
//   - When the grace is over, Ready and the other conditions go Unknown, and the taints and
//     evictions follow. The node itself is asked nothing, for it may have no kubelet server.
//     Instead the leader reads the lease once more from the store: its informer may be late.
//   - It gets no taint before, and no pod is replaced before its eviction.
//   - Its kubelet alone says that it is ready again.
//   - A renewal is noted, and nothing else is done. The node is looked at when its grace could be
//     over.
//
// The lease of a member says nothing here, stored or not.
//
// A new leader begins where the old one was. Since when a node is silent is what its own gossip
// says, which has listened all the time; a node of which it has never heard gets its grace from
// when this process started. Who evicts, and when, stands in the taints; since when those are there
// that people put on, which do not say it, every server remembers from when it saw them.
package nodelifecycle

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// State of a node by what is heard of it.
type State int

const (
	Alive   State = iota + 1
	Suspect       // somebody hears of it and somebody does not
	Dead          // nobody hears of it
	Left          // said good-bye; its kubelet may still run
)

// Life is what is heard of a node.
type Life struct {
	State State
	Since time.Time // when State began, by this server's clock
	// Ill says what keeps the node from running pods, by its own word, though it is Alive; "" is
	// nothing.
	Ill string
}

// Liveness is what the controller wants to know about nodes.
type Liveness interface {
	// Life tells about one node; false when nothing was ever heard of it.
	Life(node string) (Life, bool)
	// Member reports whether a node is a member of the cluster. Any other node lives by its Lease
	// and its status.
	Member(node *corev1.Node) bool
	// Changed returns a channel that is closed at the next change of any node.
	Changed() <-chan struct{}
	// Confirm asks the node itself, on this server's own path, and reports whether it answers. It
	// returns when ctx ends at the latest.
	Confirm(ctx context.Context, node *corev1.Node) bool
}

// Settings are the times and rates, in Kubernetes' meaning. The zero value is Kubernetes' defaults.
type Settings struct {
	// Period is how often every node is looked at without a reason. Default 5 s.
	Period time.Duration
	// Grace is how long a node may be without life before it is marked Unknown. Default 40 s.
	Grace time.Duration
	// StartupGrace is the same for a node of which nothing was ever heard since this server
	// started. Default 60 s, or Grace if that is more.
	StartupGrace time.Duration
	// GoodbyeGrace is the same for a node that said good-bye: it may be starting again, and its
	// pods run on meanwhile. Default 40 s, or Grace if that is more.
	GoodbyeGrace time.Duration
	// ConfirmTimeout bounds one question to a node, which is little more than three round trips. A
	// node that is too slow for it in a moment of load is asked again before anything is done that
	// hurts. Default 1 s.
	ConfirmTimeout time.Duration
	// EvictionRate is how many nodes a second get the taints that evict, per zone. Default 0.1;
	// negative is none.
	EvictionRate float64
	// SecondaryEvictionRate holds in a large zone of which a large share is gone. Default 0.01,
	// negative is none; in a small zone it is none then.
	SecondaryEvictionRate float64
	// LargeZone is above how many nodes a zone is large. Default 50; with a negative one all are.
	LargeZone int
	// UnhealthyShare is the share of a zone's nodes, at least three, from which on evictions slow
	// down. Default 0.55.
	UnhealthyShare float64
}

func (s Settings) withDefaults() Settings {
	orDefault(&s.Period, 5*time.Second)
	orDefault(&s.Grace, 40*time.Second)
	orDefault(&s.StartupGrace, max(60*time.Second, s.Grace))
	orDefault(&s.GoodbyeGrace, max(40*time.Second, s.Grace))
	orDefault(&s.ConfirmTimeout, time.Second)
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
