// Package nodelifecycle writes nodes' health into the API: the Ready condition, the taints for the
// conditions, and in the end the evictions of pods.
//
// Its evidence is gossip and the heartbeats of the store (Liveness). These are not final. Before a
// write about a node, and again before pods are deleted, the leader probes the node directly. A
// flap therefore costs nothing. When many nodes of a zone disappear at once, the leader is more
// likely cut off than all nodes dead: evictions slow down or stop.
//
// The steps for a node that is silent in gossip and does not answer the probe:
//
//   - At once it gets the taint node.kubernetes.io/unreachable:NoSchedule, and no other. Kubernetes
//     adds it when the grace is over; until then its scheduler places pods on a dead node. The
//     taint affects no existing pod. It is removed as soon as gossip hears the node again and its
//     kubelet answers, or writes.
//   - A second later, the pods bound to the node that its kubelet has never acknowledged (no
//     status.startTime) are deleted, so that their controllers replace them. On a node that said
//     good-bye they wait for its return until its grace is over. This is an ordinary graceful
//     deletion: the object stays, Terminating, until the kubelet confirms the end, or until the
//     Node object is removed. If the kubelet did know the pod and could not say so, the pod ends
//     when the node is back. A controller that promises at most one pod of a name (StatefulSet)
//     waits meanwhile, as it must. The deletion is for the seen version of the pod, so a pod that
//     is acknowledged in that moment stays. Pods that have started, pods without a controller, and
//     pods that tolerate unreachable nodes without limit are not touched: a node that is cut off
//     loses no pod that was known to run.
//   - When the grace is over, Ready and the other conditions become Unknown. The evicting taint
//     follows, with Kubernetes' times and rates.
//
// A live node reports its own state: its kubelet writes its conditions, and writes them again when
// they are marked Unknown. This package never marks a node as ready. It marks a live node as not
// ready when the node reports an illness by gossip and its kubelet has not written it. The kubelet
// may be the ill part.
//
// Where gossip and the leader's probe are both cut and the kubelet still reaches the API, the two
// would contradict each other for ever. So a kubelet that sees the taint on its own node writes its
// conditions every ten seconds, which postpones the end of the grace. The node stays ready, gets no
// new pods, and nothing flips. This also holds for a grace below ten seconds: a kubelet's write
// counts for fifteen. No healthy node has the taint, so an idle cluster writes nothing.
//
// A foreign node is no member of the cluster (Liveness.Member): an upstream kubelet,
// virtual-kubelet, KWOK. It is judged by its Lease in kube-node-lease and by its status, as in
// Kubernetes:
//
//   - A sign of life is a change of the lease's renewTime, or of the heartbeat in its Ready
//     condition. It counts from when this leader has seen it, so the node's clock does not matter.
//     A new leader begins with the whole grace.
//   - When the grace is over, Ready and the other conditions become Unknown, and the taints and
//     evictions follow. The node itself is not probed, for it may have no kubelet server. Instead
//     the leader reads the lease once more from the store: its informer may be late.
//   - It gets no taint before, and no pod is replaced before its eviction.
//   - Only its kubelet marks it as ready again.
//   - A renewal is recorded without any other work. The node is checked when its grace could be
//     over.
//
// The lease of a member is ignored, stored or not.
//
// A new leader continues the old one's work. The time since which a node is silent comes from the
// leader's own gossip, which has listened all the time. For a node that it has never heard, the
// grace counts from the start of this process. The evictions and their times are in the taints. A
// taint that an operator added may have no time; every server remembers when it first saw such a
// taint.
package nodelifecycle

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// State of a node by gossip.
type State int

const (
	Alive   State = iota + 1
	Suspect       // some servers hear it and others do not
	Dead          // no server hears it
	Left          // said good-bye; its kubelet may still run
)

// Life is gossip's knowledge of a node.
type Life struct {
	State State
	Since time.Time // when State began, by this server's clock
	// Ill is the live node's own reason why it cannot run pods; "" for none.
	Ill string
}

// Liveness provides evidence about nodes.
type Liveness interface {
	// Life returns the evidence on a node; false when gossip never heard of it.
	Life(node string) (Life, bool)
	// Member reports whether a node is a member of the cluster. Any other node is judged by its
	// Lease and its status.
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
	// ConfirmTimeout bounds one probe of a node, which takes little more than three round trips. A
	// node that is too slow under load is probed again before a change that hurts. Default 1 s.
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
