package node

import (
	"k8s.io/component-helpers/nodedeclaredfeatures"
	"k8s.io/component-helpers/nodedeclaredfeatures/types"
)

// features are Kubernetes' declared features that this kubelet has. The scheduler places a pod that
// needs one on a node that declares it, and the API server refuses a change of a pod that
// needs one elsewhere.
var features = types.FeatureGateMap{
	"RestartAllContainersOnContainerExits":    true,
	"InPlacePodVerticalScalingInitContainers": true,
	"InPlacePodLevelResourcesVerticalScaling": true,
}

func declaredFeatures() []string {
	return nodedeclaredfeatures.DefaultFramework.DiscoverNodeFeatures(&types.NodeConfiguration{FeatureGates: features})
}
