package node

import (
	"k8s.io/component-helpers/nodedeclaredfeatures"
	"k8s.io/component-helpers/nodedeclaredfeatures/types"
)

// features are those of Kubernetes' features that nodes declare and that this kubelet has. Pods
// that need one are placed on nodes that declare it, and a change of a pod that needs one is
// refused on others.
var features = types.FeatureGateMap{
	"RestartAllContainersOnContainerExits":    true,
	"InPlacePodVerticalScalingInitContainers": true,
	"InPlacePodLevelResourcesVerticalScaling": true,
}

func declaredFeatures() []string {
	return nodedeclaredfeatures.DefaultFramework.DiscoverNodeFeatures(&types.NodeConfiguration{FeatureGates: features})
}
