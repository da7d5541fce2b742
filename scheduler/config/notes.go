package config

import (
	"reflect"

	"k8s.io/apimachinery/pkg/util/validation/field"
	configv1 "k8s.io/kube-scheduler/config/v1"
)

// ignored lists the settings of the file that nothing here reads. It must see the file before the
// defaults are filled in.
func ignored(c *configv1.KubeSchedulerConfiguration) []string {
	var notes []string
	note := func(set bool, path, why string) {
		if set {
			notes = append(notes, path+" has no effect: "+why)
		}
	}
	note(!reflect.ValueOf(c.LeaderElection).IsZero(), "leaderElection",
		"the scheduler runs on the leader of the datastore")
	note(!reflect.ValueOf(c.ClientConnection).IsZero(), "clientConnection",
		"the scheduler uses the API server of its own process")
	note(!reflect.ValueOf(c.DebuggingConfiguration).IsZero(), "enableProfiling or enableContentionProfiling",
		"profiling is that of the whole server")
	note(c.DelayCacheUntilActive, "delayCacheUntilActive",
		"every server keeps its caches warm, so that a new leader schedules at once")
	for i := range c.Profiles {
		p := c.Profiles[i].Plugins
		if p == nil {
			continue
		}
		path := field.NewPath("profiles").Index(i).Child("plugins")
		for _, point := range []struct {
			name string
			set  configv1.PluginSet
			why  string
		}{
			{"permit", p.Permit, "no plugin here delays a binding"},
			{"placementGenerate", p.PlacementGenerate, whyNoGroups},
			{"placementScore", p.PlacementScore, whyNoGroups},
			{"podGroupPostFilter", p.PodGroupPostFilter, whyNoGroups},
		} {
			// A plugin that is enabled there is refused; a disabled one has no effect.
			note(len(point.set.Disabled) > 0, path.Child(point.name, "disabled").String(), point.why)
		}
	}
	return notes
}

const whyNoGroups = "pods are scheduled one by one, and not in groups"
