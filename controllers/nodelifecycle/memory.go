package nodelifecycle

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// memory is a term's memory of the nodes' signs of life.
type memory struct {
	words *words
	since time.Time // when this process began to listen
	began time.Time // the term

	mu    sync.Mutex
	nodes map[string]*remembered
}

type remembered struct {
	silentSince time.Time // zero while all is well; it goes on until the node itself, or its kubelet, has answered
	alive       bool      // at the last look, as is heard of it
	heard       time.Time // until when it was
	unreachable bool      // as last judged
	illSince    time.Time // as in evidence

	foreign lease // for a node that is no member
}

func newMemory(words *words, since, now time.Time) *memory {
	return &memory{words: words, since: since, began: now, nodes: map[string]*remembered{}}
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

// evidence combines the evidence of Liveness and the API with the memory.
func (m *memory) evidence(node *corev1.Node, life Life, heardOf bool, now time.Time) evidence {
	m.mu.Lock()
	defer m.mu.Unlock()
	r := m.of(node.Name)
	switch {
	case heardOf && life.State == Alive:
		r.alive, r.heard = true, now
	case heardOf && r.alive:
		r.alive, r.heard = false, life.Since // which may be before the last look
	}
	tainted := hasTaint(node, corev1.TaintNodeUnreachable, corev1.TaintEffectNoSchedule)
	switch {
	case heardOf && life.State == Alive && !tainted:
		r.silentSince = time.Time{}
	case !r.silentSince.IsZero(): // it goes on
	case heardOf && life.State != Alive:
		r.silentSince = life.Since
	case heardOf: // it is alive, and the last leader marked it as unreachable
		r.silentSince = m.began
	default:
		r.silentSince = m.unheardSince(node)
	}
	ready := statusOf(node, corev1.NodeReady)
	switch {
	case !heardOf || life.State != Alive || life.Ill == "" || ready != corev1.ConditionTrue:
		r.illSince = time.Time{}
	case r.illSince.IsZero():
		r.illSince = now
	}
	return evidence{
		life: life, heardOf: heardOf, silentSince: r.silentSince, heard: r.heard, told: m.words.hear(node, now),
		tainted: tainted,
		marked:  ready == corev1.ConditionUnknown, illSince: r.illSince,
	}
}

// unheardSince is since when a node could have been heard of that never was: since both it and this
// process were there.
func (m *memory) unheardSince(node *corev1.Node) time.Time {
	if node.CreationTimestamp.After(m.since) {
		return node.CreationTimestamp.Time
	}
	return m.since
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
