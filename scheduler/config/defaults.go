package config

import (
	"cmp"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	configv1 "k8s.io/kube-scheduler/config/v1"
)

// setDefaults fills in kube-scheduler's defaults. It leaves out ignored fields, and parallelism,
// whose default fits this machine.
func setDefaults(c *configv1.KubeSchedulerConfiguration) {
	if len(c.Profiles) == 0 {
		c.Profiles = []configv1.KubeSchedulerProfile{{}}
	}
	// Several profiles must have names.
	if len(c.Profiles) == 1 {
		setDefault(&c.Profiles[0].SchedulerName, v1.DefaultSchedulerName)
	}
	setDefault(&c.PercentageOfNodesToScore, 0)
	setDefault(&c.PodInitialBackoffSeconds, 1)
	setDefault(&c.PodMaxBackoffSeconds, 10)
	for i := range c.Profiles {
		for j := range c.Profiles[i].PluginConfig {
			setArgsDefaults(c.Profiles[i].PluginConfig[j].Args.Object)
		}
	}
}

func setDefault[T any](to **T, value T) {
	if *to == nil {
		*to = &value
	}
}

// setArgsDefaults fills in the arguments of one plugin, of a type that kube-scheduler has.
func setArgsDefaults(args runtime.Object) {
	switch a := args.(type) {
	case *configv1.DefaultPreemptionArgs:
		setDefault(&a.MinCandidateNodesPercentage, 10)
		setDefault(&a.MinCandidateNodesAbsolute, 100)
	case *configv1.InterPodAffinityArgs:
		setDefault(&a.HardPodAffinityWeight, 1)
	case *configv1.NodeResourcesBalancedAllocationArgs:
		setResourceDefaults(&a.Resources)
	case *configv1.NodeResourcesFitArgs:
		setDefault(&a.ScoringStrategy, configv1.ScoringStrategy{Type: configv1.LeastAllocated})
		setResourceDefaults(&a.ScoringStrategy.Resources)
	case *configv1.PodTopologySpreadArgs:
		a.DefaultingType = cmp.Or(a.DefaultingType, configv1.SystemDefaulting)
	case *configv1.VolumeBindingArgs:
		setDefault(&a.BindTimeoutSeconds, 600)
		if len(a.Shape) == 0 {
			a.Shape = []configv1.UtilizationShapePoint{{Utilization: 0, Score: 10}, {Utilization: 100, Score: 0}}
		}
	case *configv1.DynamicResourcesArgs:
		setDefault(&a.FilterTimeout, metav1.Duration{Duration: configv1.DynamicResourcesFilterTimeoutDefault})
	}
}

func setResourceDefaults(list *[]configv1.ResourceSpec) {
	if len(*list) == 0 {
		*list = []configv1.ResourceSpec{{Name: string(v1.ResourceCPU)}, {Name: string(v1.ResourceMemory)}}
	}
	for i := range *list {
		(*list)[i].Weight = cmp.Or((*list)[i].Weight, 1)
	}
}
