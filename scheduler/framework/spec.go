package framework

import (
	"fmt"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"
)

// Point is an extension point, as KubeSchedulerConfiguration spells it.
type Point string

// The extension points of a profile.
const (
	PreEnqueue Point = "preEnqueue"
	QueueSort  Point = "queueSort"
	PreFilter  Point = "preFilter"
	Filter     Point = "filter"
	PostFilter Point = "postFilter"
	PreScore   Point = "preScore"
	Score      Point = "score"
	Reserve    Point = "reserve"
	PreBind    Point = "preBind"
	Bind       Point = "bind"
	PostBind   Point = "postBind"
)

// AllPlugins stands for all plugins in a list of disabled ones.
const AllPlugins = "*"

// Spec describes a profile: its scheduler name and its plugins.
type Spec struct {
	SchedulerName string
	// PercentageOfNodesToScore is nil where that of the scheduler counts.
	PercentageOfNodesToScore *int32
	// Plugins run, in this order, at every extension point that they implement.
	Plugins []Enabled
	// Points are the exceptions, by extension point.
	Points map[Point]PointSpec
	// Args of plugins, by name, with defaults filled in. A plugin without an entry has its
	// defaults.
	Args map[string]runtime.Object
}

// PointSpec changes which plugins run at one extension point. Enabled plugins that are also in
// Spec.Plugins come first, the others last. The weights here take precedence.
type PointSpec struct {
	Enabled []Enabled
	// Disabled names plugins of Spec.Plugins that do not run here; AllPlugins means all.
	Disabled []string
}

// Enabled names a plugin. Weight multiplies its scores; 0 means 1.
type Enabled struct {
	Name   string
	Weight int64
}

// Validate returns the faults of a Spec, given the plugins that exist.
func (s Spec) Validate(r Registry) error {
	if s.SchedulerName == "" {
		return fmt.Errorf("scheduler profile without a scheduler name: set one, such as %q", v1.DefaultSchedulerName)
	}
	if err := checkEnabled(s.Plugins, r); err != nil {
		return fmt.Errorf("scheduler profile %q: %w", s.SchedulerName, err)
	}
	for _, point := range slices.Sorted(maps.Keys(s.Points)) {
		if err := checkEnabled(s.Points[point].Enabled, r); err != nil {
			return fmt.Errorf("scheduler profile %q: %s: %w", s.SchedulerName, point, err)
		}
	}
	return nil
}

func checkEnabled(list []Enabled, r Registry) error {
	seen := map[string]bool{}
	for _, p := range list {
		switch {
		case r[p.Name] == nil:
			return fmt.Errorf("there is no plugin %q", p.Name)
		case seen[p.Name]:
			return fmt.Errorf("plugin %q is listed twice", p.Name)
		case p.Weight < 0 || p.Weight > maxWeight:
			return fmt.Errorf("weight %d of plugin %q is not within 0 to %d", p.Weight, p.Name, maxWeight)
		}
		seen[p.Name] = true
	}
	return nil
}

// maxWeight keeps the sum of all weighted scores far from overflow.
const maxWeight = 1 << 32

// names returns every enabled plugin, in a stable order.
func (s Spec) names() []string {
	var out []string
	add := func(list []Enabled) {
		for _, p := range list {
			if !slices.Contains(out, p.Name) {
				out = append(out, p.Name)
			}
		}
	}
	add(s.Plugins)
	for _, point := range slices.Sorted(maps.Keys(s.Points)) {
		add(s.Points[point].Enabled)
	}
	return out
}

// weight returns the factor of a plugin's scores.
func (s Spec) weight(name string) int64 {
	for _, list := range [][]Enabled{s.Points[Score].Enabled, s.Plugins} {
		for _, p := range list {
			if p.Name == name {
				return max(p.Weight, 1)
			}
		}
	}
	return 1
}

// pluginsAt returns the plugins of an extension point whose interface is T. The first plugins run
// everywhere and are named by the point. Then come the others that run everywhere, then the plugins
// of the point alone. It fails when a named plugin does not implement the point.
func pluginsAt[T fwk.Plugin](s Spec, point Point, built map[string]fwk.Plugin) ([]T, error) {
	at := s.Points[point]
	var first, last, everywhere []T
	for _, e := range at.Enabled {
		x, ok := built[e.Name].(T)
		if !ok {
			return nil, fmt.Errorf("plugin %q has no part in %s", e.Name, point)
		}
		if s.everywhere(e.Name) && !at.disables(AllPlugins) && !at.disables(e.Name) {
			first = append(first, x)
		} else {
			last = append(last, x)
		}
	}
	for _, e := range s.Plugins {
		x, ok := built[e.Name].(T)
		if ok && !at.disables(AllPlugins) && !at.disables(e.Name) && !at.enables(e.Name) {
			everywhere = append(everywhere, x)
		}
	}
	return slices.Concat(first, everywhere, last), nil
}

func (s Spec) everywhere(name string) bool { return enables(s.Plugins, name) }

func (p PointSpec) enables(name string) bool { return enables(p.Enabled, name) }

func (p PointSpec) disables(name string) bool { return slices.Contains(p.Disabled, name) }

func enables(list []Enabled, name string) bool {
	return slices.ContainsFunc(list, func(e Enabled) bool { return e.Name == name })
}
