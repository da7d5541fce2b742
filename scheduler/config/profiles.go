package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	configv1 "k8s.io/kube-scheduler/config/v1"

	"github.com/barque/barque/scheduler/framework"
	"github.com/barque/barque/scheduler/plugins"
	"github.com/barque/barque/scheduler/plugins/names"
)

// upstreamOnly are plugins of kube-scheduler that files may name and the registry does not have.
var upstreamOnly = sets.New(
	"NodeDeclaredFeatures", "DeferredPodScheduling", "GangScheduling", "TopologyPlacementGenerator",
	"PodGroupPodsCount")

// removed are plugins that kube-scheduler had before this version of its configuration.
var removed = sets.New("AzureDiskLimits", "CinderLimits", "EBSLimits", "GCEPDLimits")

// builder turns the profiles of a file into specs and collects their faults.
type builder struct {
	registry framework.Registry
	// unchecked are extended resources that extenders manage, in every profile.
	unchecked []string
	notes     []string
	errs      field.ErrorList
}

// specs returns a spec for each profile of a file whose defaults are filled in.
func specs(
	c *configv1.KubeSchedulerConfiguration, registry framework.Registry,
) ([]framework.Spec, []string, field.ErrorList) {
	b := &builder{registry: registry, unchecked: ignoredResources(c.Extenders)}
	out := make([]framework.Spec, len(c.Profiles))
	for i := range c.Profiles {
		out[i] = b.profile(field.NewPath("profiles").Index(i), &c.Profiles[i])
	}
	return out, b.notes, b.errs
}

// ignoredResources returns the resources that the scheduler leaves to extenders.
func ignoredResources(extenders []configv1.Extender) []string {
	var out []string
	for _, e := range extenders {
		for _, r := range e.ManagedResources {
			if r.IgnoredByScheduler {
				out = append(out, r.Name)
			}
		}
	}
	return out
}

func (b *builder) profile(path *field.Path, p *configv1.KubeSchedulerProfile) framework.Spec {
	spec := plugins.Default()
	if p.SchedulerName != nil {
		spec.SchedulerName = *p.SchedulerName
	}
	spec.PercentageOfNodesToScore = p.PercentageOfNodesToScore
	spec.Args = b.args(path.Child("pluginConfig"), p.PluginConfig)
	if p.Plugins == nil {
		return spec
	}
	path = path.Child("plugins")
	b.checkSet(path.Child("multiPoint"), p.Plugins.MultiPoint)
	spec.Plugins = merge(spec.Plugins, p.Plugins.MultiPoint)
	spec.Points = map[framework.Point]framework.PointSpec{}
	for point, set := range points(p.Plugins) {
		b.checkSet(path.Child(string(point)), set)
		if len(set.Enabled)+len(set.Disabled) > 0 {
			spec.Points[point] = framework.PointSpec{Enabled: enabled(set.Enabled), Disabled: namesOf(set.Disabled)}
		}
	}
	for point, set := range unservedPoints(p.Plugins) {
		for i, e := range set.Enabled {
			b.wrong(
				field.Invalid(path.Child(point, "enabled").Index(i).Child("name"), e.Name,
					"this scheduler has no plugins for "+point))
		}
	}
	return spec
}

func points(p *configv1.Plugins) map[framework.Point]configv1.PluginSet {
	return map[framework.Point]configv1.PluginSet{
		framework.PreEnqueue: p.PreEnqueue,
		framework.QueueSort:  p.QueueSort,
		framework.PreFilter:  p.PreFilter,
		framework.Filter:     p.Filter,
		framework.PostFilter: p.PostFilter,
		framework.PreScore:   p.PreScore,
		framework.Score:      p.Score,
		framework.Reserve:    p.Reserve,
		framework.PreBind:    p.PreBind,
		framework.Bind:       p.Bind,
		framework.PostBind:   p.PostBind,
	}
}

// unservedPoints are extension points at which no plugin of this scheduler could run.
func unservedPoints(p *configv1.Plugins) map[string]configv1.PluginSet {
	return map[string]configv1.PluginSet{
		"permit":             p.Permit,
		"placementGenerate":  p.PlacementGenerate,
		"placementScore":     p.PlacementScore,
		"podGroupPostFilter": p.PodGroupPostFilter,
	}
}

// merge applies a user's set to the default plugins. A plugin that the user configures again keeps
// its place. Other plugins follow in the user's order.
func merge(defaults []framework.Enabled, user configv1.PluginSet) []framework.Enabled {
	disabled := sets.New(namesOf(user.Disabled)...)
	mine := enabled(user.Enabled)
	replaces := map[string]framework.Enabled{}
	for _, e := range mine {
		replaces[e.Name] = e
	}
	var out []framework.Enabled
	kept := sets.New[string]()
	for _, e := range defaults {
		if disabled.Has(framework.AllPlugins) || disabled.Has(e.Name) {
			continue
		}
		if own, ok := replaces[e.Name]; ok {
			e = own
		}
		kept.Insert(e.Name)
		out = append(out, e)
	}
	for _, e := range mine {
		if !kept.Has(e.Name) {
			out = append(out, e)
		}
	}
	return out
}

func enabled(list []configv1.Plugin) []framework.Enabled {
	var out []framework.Enabled
	for _, p := range list {
		e := framework.Enabled{Name: p.Name}
		if p.Weight != nil {
			e.Weight = int64(*p.Weight)
		}
		out = append(out, e)
	}
	return out
}

func namesOf(list []configv1.Plugin) []string {
	var out []string
	for _, p := range list {
		out = append(out, p.Name)
	}
	return out
}

func (b *builder) wrong(err *field.Error) { b.errs = append(b.errs, err) }

// checkSet validates the plugins of one extension point.
func (b *builder) checkSet(path *field.Path, set configv1.PluginSet) {
	seen := sets.New[string]()
	for i, p := range set.Enabled {
		path := path.Child("enabled").Index(i)
		if removed.Has(p.Name) {
			b.wrong(wasRemoved(path, p.Name))
		} else if b.registry[p.Name] == nil {
			b.wrong(b.unknown(path.Child("name"), p.Name))
		}
		if p.Weight != nil && *p.Weight < 0 {
			b.wrong(field.Invalid(path.Child("weight"), *p.Weight, "must not be negative"))
		}
		if seen.Has(p.Name) {
			b.wrong(field.Duplicate(path.Child("name"), p.Name))
		}
		seen.Insert(p.Name)
	}
	for i, p := range set.Disabled {
		if p.Name == framework.AllPlugins || b.registry[p.Name] != nil || upstreamOnly.Has(p.Name) {
			continue
		}
		b.notes = append(b.notes,
			fmt.Sprintf("%s has no effect: there is no plugin %q", path.Child("disabled").Index(i), p.Name))
	}
}

func wasRemoved(path *field.Path, name string) *field.Error {
	return field.Invalid(path, name,
		fmt.Sprintf("was invalid in version %q (KubeSchedulerConfiguration is version %[1]q)",
			configv1.SchemeGroupVersion))
}

func (b *builder) unknown(path *field.Path, name string) *field.Error {
	what := "there is no such plugin"
	if upstreamOnly.Has(name) {
		what = "this version does not have this plugin of kube-scheduler"
	}
	return field.Invalid(path, name, what+"; it has "+strings.Join(slices.Sorted(maps.Keys(b.registry)), ", "))
}

// args returns the arguments by plugin. Those of NodeResourcesFit ignore the resources that
// extenders manage.
func (b *builder) args(path *field.Path, list []configv1.PluginConfig) map[string]runtime.Object {
	out := map[string]runtime.Object{}
	for i, p := range list {
		path := path.Index(i)
		if out[p.Name] != nil {
			b.wrong(field.Duplicate(path, p.Name))
			continue
		}
		switch {
		case removed.Has(p.Name):
			b.wrong(wasRemoved(path, p.Name))
		case b.registry[p.Name] == nil && !upstreamOnly.Has(p.Name):
			b.wrong(b.unknown(path.Child("name"), p.Name))
		case b.registry[p.Name] == nil:
			b.notes = append(b.notes,
				fmt.Sprintf("%s has no effect: this version does not have kube-scheduler's plugin %s", path, p.Name))
		case p.Args.Object == nil && len(p.Args.Raw) > 0:
			b.wrong(field.Forbidden(path.Child("args"), "the plugin "+p.Name+" takes no arguments"))
		}
		if p.Args.Object != nil {
			out[p.Name] = p.Args.Object
			b.errs = append(b.errs, validateArgs(path.Child("args"), p.Args.Object)...)
		}
	}
	if len(b.unchecked) > 0 {
		out[names.NodeResourcesFit] = withoutResources(out[names.NodeResourcesFit], b.unchecked)
	}
	return out
}

// withoutResources returns a copy of the arguments of NodeResourcesFit that ignores more resources.
func withoutResources(args runtime.Object, resources []string) runtime.Object {
	fit := &configv1.NodeResourcesFitArgs{}
	if args != nil {
		fit = args.DeepCopyObject().(*configv1.NodeResourcesFitArgs)
	}
	setArgsDefaults(fit)
	fit.IgnoredResources = append(fit.IgnoredResources, resources...)
	return fit
}

// validateQueueSort requires one order of the queue, because there is one queue.
func validateQueueSort(path *field.Path, profiles []configv1.KubeSchedulerProfile) (errs field.ErrorList) {
	sorts := func(i int) configv1.PluginSet {
		if p := profiles[i].Plugins; p != nil {
			return p.QueueSort
		}
		return configv1.PluginSet{}
	}
	if n := len(sorts(0).Enabled); n > 1 {
		errs = append(errs,
			field.Invalid(path.Index(0).Child("plugins", "queueSort", "Enabled"), n,
				"only one queue sort plugin can be enabled"))
	}
	for i := range profiles {
		if !equality.Semantic.DeepEqual(sorts(i), sorts(0)) {
			errs = append(errs,
				field.Invalid(path.Index(i).Child("plugins", "queueSort"), namesOf(sorts(i).Enabled),
					"must be the same for all profiles"))
		}
	}
	return errs
}
