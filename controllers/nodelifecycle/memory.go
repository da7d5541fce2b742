package nodelifecycle

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// memory is what a term remembers of nodes' lives.
type memory struct {
	started time.Time

	mu    sync.Mutex
	nodes map[string]*remembered
}

type remembered struct {
	silentSince time.Time   // without a break; zero while all is well
	told        time.Time   // when its kubelet was last seen to write
	stamp       metav1.Time // its own time of that
	seen        bool        // stamp is what was seen before
	unreachable bool        // as last judged
}

func newMemory(now time.Time) *memory {
	return &memory{started: now, nodes: map[string]*remembered{}}
}

func (m *memory) of(node string) *remembered {
	r := m.nodes[node]
	if r == nil {
		r = &remembered{}
		m.nodes[node] = r
	}
	return r
}

func (m *memory) forget(node string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.nodes, node)
}

// evidence puts what Liveness and the API say of a node together with what is remembered.
func (m *memory) evidence(node *corev1.Node, life Life, heardOf bool, now time.Time) evidence {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.of(node.Name)
	r.hear(node, now)
	tainted := hasTaint(node, corev1.TaintNodeUnreachable, corev1.TaintEffectNoSchedule)
	switch {
	case heardOf && life.State == Alive && !tainted:
		r.silentSince = time.Time{}
	case !r.silentSince.IsZero(): // it goes on
	case heardOf && life.State != Alive:
		r.silentSince = life.Since
	default: // counted from when both it and this leader were there
		r.silentSince = m.started
		if node.CreationTimestamp.After(m.started) {
			r.silentSince = node.CreationTimestamp.Time
		}
	}
	return evidence{
		life: life, heardOf: heardOf, silentSince: r.silentSince, told: r.told, tainted: tainted,
		marked: statusOf(node, corev1.NodeReady) == corev1.ConditionUnknown,
	}
}

// hear notes that the kubelet has written: its stamp has changed. Clocks differ, so the stamp itself
// counts only when it is all there is: the first time that this term sees the node. Nobody but the
// kubelet stamps conditions; marking a node as Unknown leaves the stamps as they are.
func (r *remembered) hear(node *corev1.Node, now time.Time) {
	stamp := stampOf(node)
	switch {
	case stamp.Equal(&r.stamp):
	case r.seen || stamp.After(now):
		r.told = now
	default:
		r.told = stamp.Time
	}
	r.stamp, r.seen = stamp, true
}

func stampOf(node *corev1.Node) metav1.Time {
	for i := range node.Status.Conditions {
		if c := &node.Status.Conditions[i]; c.Type == corev1.NodeReady {
			return c.LastHeartbeatTime
		}
	}
	return metav1.Time{}
}

// answered gives a node that was silent, and answered, a new period of grace.
func (m *memory) answered(node string, now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.of(node).silentSince = now
}

func (m *memory) setUnreachable(node string, is bool) (was bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.of(node)
	was, r.unreachable = r.unreachable, is
	return was
}

func (m *memory) isUnreachable(node string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.nodes[node]
	return r != nil && r.unreachable
}
