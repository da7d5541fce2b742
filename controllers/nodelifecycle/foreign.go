package nodelifecycle

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers/coordination/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// foreignLease is the key of the informer of foreign nodes' leases in the factory. It has only
// those, and must not be used for all leases.
type foreignLease struct{ coordinationv1.Lease }

// foreignLeases returns the informer of the leases in kube-node-lease that are not made from
// gossip.
func foreignLeases(cfg Config) cache.SharedIndexInformer {
	return cfg.Informers.InformerFor(&foreignLease{},
		func(client kubernetes.Interface, resync time.Duration) cache.SharedIndexInformer {
			return v1.NewFilteredLeaseInformer(client, corev1.NamespaceNodeLease, resync, cache.Indexers{},
				func(o *metav1.ListOptions) {
					if cfg.MemberLabel != "" {
						o.LabelSelector = "!" + cfg.MemberLabel
					}
				})
		})
}

// lease is a term's memory of a foreign node's signs of life.
type lease struct {
	since   time.Time         // when this term began to observe the node; zero before
	told    *metav1.MicroTime // the newest renewTime, by the node's clock
	renewed time.Time         // when that was seen, by this server's clock
}

// foreignEvidence is the evidence on a foreign node at one moment.
type foreignEvidence struct {
	// since is when this leader began to observe the node. alive is when it last saw a sign of
	// life; since without one.
	since, alive time.Time
	// ready is the Ready condition; "" when the node never wrote one.
	ready corev1.ConditionStatus
}

// renew records a lease, and reports whether it has changed. A renewTime that goes back, because
// the node's clock was set, is also a sign of life.
func (m *memory) renew(l *coordinationv1.Lease, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.of(l.Name)
	if l.Spec.RenewTime == nil || l.Spec.RenewTime.Equal(r.foreign.told) {
		return false
	}
	r.foreign.told, r.foreign.renewed = l.Spec.RenewTime.DeepCopy(), now
	return true
}

// foreign collects the evidence on a foreign node.
func (m *memory) foreign(node *corev1.Node, now time.Time) foreignEvidence {
	told := m.words.hear(node, now)
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.of(node.Name)
	if r.foreign.since.IsZero() {
		r.foreign.since = now
	}
	e := foreignEvidence{since: r.foreign.since, alive: r.foreign.since, ready: statusOf(node, corev1.NodeReady)}
	for _, sign := range []time.Time{told, r.foreign.renewed} {
		if sign.After(e.alive) {
			e.alive = sign
		}
	}
	return e
}

// judgeForeign judges a foreign node. It is not unreachable before its grace is over.
func judgeForeign(e foreignEvidence, s Settings, now time.Time) judgement {
	grace := s.Grace
	if e.ready == "" {
		grace = s.StartupGrace
	}
	left := grace - now.Sub(e.alive)
	switch {
	case left <= 0:
		return judgement{unknown: true, again: s.Period}
	case e.ready == corev1.ConditionTrue:
		return judgement{again: left}
	}
	return judgement{again: min(left, s.Period)} // its taints may wait for their turn
}

// foreignHealth counts a node that has missed half of its grace as gone: the first of many that
// stop at once is then not evicted as if it were the only one. A node that this leader has not
// observed yet is unheard.
func foreignHealth(e foreignEvidence, s Settings, now time.Time) nodeHealth {
	switch {
	case now.Sub(e.alive) >= s.Grace/2:
		return gone
	case e.alive.Equal(e.since):
		return unheard
	}
	return ready
}

// judgeForeign reads the lease of a node from the store before the node becomes Unknown.
func (t *term) judgeForeign(ctx context.Context, node *corev1.Node) (judgement, error) {
	e, now := t.memory.foreign(node, time.Now()), time.Now()
	j := judgeForeign(e, t.cfg.Settings, now)
	if !j.unknown || e.ready == corev1.ConditionUnknown {
		return j, nil
	}
	l, err := t.client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, node.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return j, nil
	case err != nil:
		return judgement{}, fmt.Errorf("reading the lease of node %s before it is marked Unknown: %w", node.Name, err)
	case t.memory.renew(l, now):
		return judgeForeign(t.memory.foreign(node, now), t.cfg.Settings, now), nil
	}
	return j, nil
}
