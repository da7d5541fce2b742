// Package core declares the resources of the core API group (v1): pods, services, nodes and the
// objects around them, as they are when they are complete, valid and printed.
//
// It owns defaults, validation, printing and the fields that survive an update. It is pure: nothing
// here reads the cluster or the clock. Addresses of services, tokens, and the subresources that
// reach a node are added to these declarations by the server, which finds them with resource.Find.
//
// A file holds one kind, or one concern of a large kind.
package core

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/barque/barque/apiserver/resource"
)

var version = corev1.SchemeGroupVersion

// Resources declares the group's resources.
func Resources() []resource.Resource {
	return []resource.Resource{
		namespaces(),
		nodes(),
		pods(),
		podTemplates(),
		replicationControllers(),
		services(),
		endpoints(),
		configMaps(),
		secrets(),
		serviceAccounts(),
		persistentVolumes(),
		persistentVolumeClaims(),
		limitRanges(),
		resourceQuotas(),
		events(),
	}
}

// none is the text of an empty cell of a table.
const none = "<none>"

func orNone(s string) string {
	if s == "" {
		return none
	}
	return s
}
