// Package core declares the resources of the core API group (v1): namespaces, nodes, configuration,
// quotas and events, as they are when they are complete, valid and printed. Pods, services and
// persistent volumes have packages of their own below it, and are listed here with the others.
//
// It owns defaults, validation, printing and the fields that survive an update. It is pure: nothing
// here reads the cluster or the clock. Addresses of services, tokens, and the subresources that
// reach a node are added to these declarations by the server, which finds them with resource.Find.
//
// A file holds one kind, or one concern of a large kind.
package core

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/barque/barque/apiserver/groups/core/persistentvolume"
	"github.com/barque/barque/apiserver/groups/core/pod"
	"github.com/barque/barque/apiserver/groups/core/service"
	"github.com/barque/barque/apiserver/resource"
)

var version = corev1.SchemeGroupVersion

// Resources declares the group's resources.
func Resources() []resource.Resource {
	return []resource.Resource{
		namespaces(),
		nodes(),
		pod.Resource(),
		podTemplates(),
		replicationControllers(),
		service.Resource(),
		service.Endpoints(),
		configMaps(),
		secrets(),
		serviceAccounts(),
		persistentvolume.Volumes(),
		persistentvolume.Claims(),
		limitRanges(),
		resourceQuotas(),
		events(),
	}
}
