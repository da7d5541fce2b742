package nodelifecycle

import (
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// sightings remember since when taints evict that do not tell it themselves (timeAdded): those that
// people put on. Like words they are kept while this server does not lead, too, so that a
// toleration goes on with the next leader. A process that starts takes what it finds for new, as
// Kubernetes' controller does with each leader: that postpones an eviction and never hastens it. To
// write the time into the taint instead would make what somebody has applied differ from what is
// there for ever: the list of taints is one value to kubectl apply and to server-side apply.
type sightings struct {
	mu    sync.Mutex
	nodes map[string]sighting
}

// sighting is what is remembered of one node.
type sighting struct {
	node  types.UID
	since map[taintID]time.Time
}

// taintID is what makes a taint another one. A new value is a new taint.
type taintID struct {
	key, value string
	effect     corev1.TaintEffect
}

func newSightings() *sightings { return &sightings{nodes: map[string]sighting{}} }

// listen makes sightings see what an informer learns.
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
