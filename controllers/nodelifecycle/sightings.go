package nodelifecycle

import (
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// sightings remember when evicting taints without a time (timeAdded) were first seen: operators add
// such taints. Like words they are kept while this server does not lead, so that a toleration
// continues with the next leader. A starting process takes existing taints for new, as Kubernetes'
// controller does with each leader. That postpones an eviction and never hastens it. The time is
// not written into the taint: kubectl apply and server-side apply treat the list of taints as one
// value, and would report a difference for ever.
type sightings struct {
	mu    sync.Mutex
	nodes map[string]sighting
}

// sighting is the record of one node.
type sighting struct {
	node  types.UID
	since map[taintID]time.Time
}

// taintID identifies a taint. A new value is a new taint.
type taintID struct {
	key, value string
	effect     corev1.TaintEffect
}

func newSightings() *sightings { return &sightings{nodes: map[string]sighting{}} }

// listen adds sightings' handler to an informer.
func (s *sightings) listen(nodes cache.SharedIndexInformer) error {
	_, err := nodes.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { s.notice(obj) },
		UpdateFunc: func(_, obj any) { s.notice(obj) },
		DeleteFunc: func(obj any) {
			if key, err := cache.DeletionHandlingObjectToName(obj); err == nil {
				s.forget(key.Name)
			}
		},
	})
	if err != nil {
		return fmt.Errorf("listening to taints: %w", err)
	}
	return nil
}

func (s *sightings) notice(obj any) {
	if node, ok := obj.(*corev1.Node); ok {
		s.see(node, time.Now())
	}
}

// see returns the taints of a node that evict, each with the time since when it is there.
func (s *sightings) see(node *corev1.Node, now time.Time) []evictingTaint {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.nodes[node.Name]
	if before.node != node.UID {
		before.since = nil
	}
	var out []evictingTaint
	var seen map[taintID]time.Time
	for i := range node.Spec.Taints {
		t := &node.Spec.Taints[i]
		if t.Effect != corev1.TaintEffectNoExecute {
			continue
		}
		if t.TimeAdded != nil {
			out = append(out, evictingTaint{t, t.TimeAdded.Time})
			continue
		}
		id := taintID{t.Key, t.Value, t.Effect}
		since, known := before.since[id]
		if !known {
			since = now
		}
		if seen == nil {
			seen = map[taintID]time.Time{}
		}
		seen[id] = since
		out = append(out, evictingTaint{t, since})
	}
	if seen == nil {
		delete(s.nodes, node.Name)
	} else {
		s.nodes[node.Name] = sighting{node.UID, seen}
	}
	return out
}

func (s *sightings) forget(node string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.nodes, node)
}
