package cache

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/barque/barque/scheduler/framework"
)

// Snapshot is the view that one scheduling cycle works on. Only Update changes it, which the
// owner calls between cycles; during a cycle any goroutine may read it.
type Snapshot struct {
	generation, layout int64
	byName             map[string]*framework.NodeInfo
	list               []fwk.NodeInfo
	// stale means that the two lists below are older than the nodes.
	stale            bool
	withAffinity     []fwk.NodeInfo
	withAntiAffinity []fwk.NodeInfo
}

var _ fwk.NodeInfoLister = (*Snapshot)(nil)

// NewSnapshot returns an empty one.
func NewSnapshot() *Snapshot { return &Snapshot{byName: map[string]*framework.NodeInfo{}, layout: -1} }

// Update brings the snapshot up to the cache. It copies only the nodes that changed since the last
// call.
func (c *Cache) Update(s *Snapshot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for e := c.newest; e != nil && e.info.GetGeneration() > s.generation; e = e.next {
		if e.info.Node() == nil {
			continue
		}
		clone := e.info.Clone()
		old := s.byName[e.name]
		if old == nil {
			s.byName[e.name] = clone
			s.stale = s.stale || len(clone.GetPodsWithAffinity()) > 0
			continue
		}
		s.stale = s.stale ||
			len(old.GetPodsWithAffinity()) > 0 != (len(clone.GetPodsWithAffinity()) > 0) ||
			len(old.GetPodsWithRequiredAntiAffinity()) > 0 != (len(clone.GetPodsWithRequiredAntiAffinity()) > 0)
		*old = *clone // the lists hold the pointer
	}
	s.generation = c.generation
	if s.layout != c.layout {
		c.relist(s)
		s.layout, s.stale = c.layout, true
	}
	if s.stale {
		s.index()
	}
}

// relist orders the nodes so that every stretch of the list has nodes of all zones evenly. A sample
// of a large cluster is then fair. Names settle the rest, so that the same cluster always gives the
// same list.
func (c *Cache) relist(s *Snapshot) {
	zones := map[string][]string{}
	for name, e := range c.nodes {
		if node := e.info.Node(); node != nil {
			zone := zoneOf(node)
			zones[zone] = append(zones[zone], name)
		}
	}
	for name := range s.byName {
		if e := c.nodes[name]; e == nil || e.info.Node() == nil {
			delete(s.byName, name)
		}
	}
	order := make([]string, 0, len(zones))
	for zone, names := range zones {
		order = append(order, zone)
		slices.Sort(names)
	}
	slices.Sort(order)
	s.list = make([]fwk.NodeInfo, 0, len(s.byName))
	for i := 0; len(s.list) < len(s.byName); i++ {
		for _, zone := range order {
			if i < len(zones[zone]) {
				s.list = append(s.list, s.byName[zones[zone][i]])
			}
		}
	}
}

func (s *Snapshot) index() {
	s.stale, s.withAffinity, s.withAntiAffinity = false, nil, nil
	for _, n := range s.list {
		if len(n.GetPodsWithAffinity()) > 0 {
			s.withAffinity = append(s.withAffinity, n)
		}
		if len(n.GetPodsWithRequiredAntiAffinity()) > 0 {
			s.withAntiAffinity = append(s.withAntiAffinity, n)
		}
	}
}

// List returns all nodes. The caller must not change the slice.
func (s *Snapshot) List() ([]fwk.NodeInfo, error) { return s.list, nil }

// Len returns how many nodes there are.
func (s *Snapshot) Len() int { return len(s.list) }

// Get returns the node of that name.
func (s *Snapshot) Get(name string) (fwk.NodeInfo, error) {
	if n := s.byName[name]; n != nil {
		return n, nil
	}
	return nil, fmt.Errorf("node %q is not in the scheduler's snapshot: %w", name, fwk.ErrNotFound)
}

// HavePodsWithAffinityList returns the nodes with pods that have affinity or anti-affinity terms.
func (s *Snapshot) HavePodsWithAffinityList() ([]fwk.NodeInfo, error) { return s.withAffinity, nil }

// HavePodsWithRequiredAntiAffinityList returns the nodes with pods that have required
// anti-affinity terms.
func (s *Snapshot) HavePodsWithRequiredAntiAffinityList() ([]fwk.NodeInfo, error) {
	return s.withAntiAffinity, nil
}

// HavePodsWithRequiredNonHostScopedAntiAffinityList is empty: the fast path is not used.
func (s *Snapshot) HavePodsWithRequiredNonHostScopedAntiAffinityList() ([]fwk.NodeInfo, error) {
	return nil, nil
}

func zoneOf(node *v1.Node) string {
	region, zone := node.Labels[v1.LabelTopologyRegion], node.Labels[v1.LabelTopologyZone]
	if region == "" && zone == "" {
		return ""
	}
	return strings.Join([]string{region, zone}, "/")
}
