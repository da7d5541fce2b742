package framework

import (
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"
	fwk "k8s.io/kube-scheduler/framework"
)

// CycleState carries plugins' data through the scheduling of one pod. Pod groups are not
// scheduled as one, so everything about them is empty.
type CycleState struct {
	data            sync.Map // fwk.StateKey → fwk.StateData
	skipFilter      sets.Set[string]
	skipScore       sets.Set[string]
	skipPreBind     sets.Set[string]
	parallelPreBind sets.Set[string]
}

var _ fwk.CycleState = (*CycleState)(nil)

// NewCycleStateFor returns a state with the data derived from the pod.
func NewCycleStateFor(p *PodInfo) *CycleState {
	c := &CycleState{}
	c.Write(podInfoKey, p)
	return c
}

// ShouldRecordPluginMetrics is false.
func (*CycleState) ShouldRecordPluginMetrics() bool { return false }

// GetSkipFilterPlugins returns the plugins whose PreFilter had nothing to filter.
func (c *CycleState) GetSkipFilterPlugins() sets.Set[string] { return c.skipFilter }

// SetSkipFilterPlugins sets them.
func (c *CycleState) SetSkipFilterPlugins(p sets.Set[string]) { c.skipFilter = p }

// GetSkipScorePlugins returns the plugins whose PreScore had nothing to score.
func (c *CycleState) GetSkipScorePlugins() sets.Set[string] { return c.skipScore }

// SetSkipScorePlugins sets them.
func (c *CycleState) SetSkipScorePlugins(p sets.Set[string]) { c.skipScore = p }

// GetSkipPreBindPlugins returns the plugins with nothing to do before the bind.
func (c *CycleState) GetSkipPreBindPlugins() sets.Set[string] { return c.skipPreBind }

// SetSkipPreBindPlugins sets them.
func (c *CycleState) SetSkipPreBindPlugins(p sets.Set[string]) { c.skipPreBind = p }

// GetParallelPreBindPlugins returns the plugins that allow others beside them.
func (c *CycleState) GetParallelPreBindPlugins() sets.Set[string] { return c.parallelPreBind }

// SetParallelPreBindPlugins sets them.
func (c *CycleState) SetParallelPreBindPlugins(p sets.Set[string]) { c.parallelPreBind = p }

// ShouldSkipAllPostFilterPlugins is false.
func (*CycleState) ShouldSkipAllPostFilterPlugins() bool { return false }

// Read returns the value under key, or fwk.ErrNotFound.
func (c *CycleState) Read(key fwk.StateKey) (fwk.StateData, error) {
	if v, ok := c.data.Load(key); ok {
		return v.(fwk.StateData), nil
	}
	return nil, fwk.ErrNotFound
}

// Write keeps val under key.
func (c *CycleState) Write(key fwk.StateKey, val fwk.StateData) { c.data.Store(key, val) }

// Delete drops key.
func (c *CycleState) Delete(key fwk.StateKey) { c.data.Delete(key) }

// Clone copies the state and each datum in it.
func (c *CycleState) Clone() fwk.CycleState {
	if c == nil {
		return nil
	}
	n := &CycleState{
		skipFilter: c.skipFilter, skipScore: c.skipScore,
		skipPreBind: c.skipPreBind, parallelPreBind: c.parallelPreBind,
	}
	c.data.Range(func(k, v any) bool {
		n.data.Store(k, v.(fwk.StateData).Clone())
		return true
	})
	return n
}

// IsPodGroupSchedulingCycle is false.
func (*CycleState) IsPodGroupSchedulingCycle() bool { return false }

// GetPodGroupSchedulingCycle is nil.
func (*CycleState) GetPodGroupSchedulingCycle() fwk.PodGroupCycleState { return nil }

// GetPlacementCycleState is nil.
func (*CycleState) GetPlacementCycleState() fwk.PlacementCycleState { return nil }

// ReadState reads a datum of a known type.
func ReadState[T fwk.StateData](c fwk.CycleState, key fwk.StateKey) (T, bool) {
	v, err := c.Read(key)
	if err != nil {
		var zero T
		return zero, false
	}
	t, ok := v.(T)
	return t, ok
}

const podInfoKey fwk.StateKey = "PodInfo"

// Clone returns the same: a PodInfo does not change.
func (p *PodInfo) Clone() fwk.StateData { return p }

// PodInfoOf returns the PodInfo of the cycle's pod. It takes it from the state, or derives it.
func PodInfoOf(c fwk.CycleState, pod *v1.Pod) (*PodInfo, error) {
	if p, ok := ReadState[*PodInfo](c, podInfoKey); ok {
		return p, nil
	}
	return NewPodInfo(pod)
}
