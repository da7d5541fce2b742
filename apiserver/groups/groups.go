// Package groups lists the API resources that Barque serves. Each API group has a package below
// that declares its kinds; adding a kind is a change in one of them, adding a group a line here.
package groups

import (
	"slices"

	"github.com/barque/barque/apiserver/groups/admissionregistration"
	"github.com/barque/barque/apiserver/groups/apps"
	"github.com/barque/barque/apiserver/groups/autoscaling"
	"github.com/barque/barque/apiserver/groups/batch"
	"github.com/barque/barque/apiserver/groups/certificates"
	"github.com/barque/barque/apiserver/groups/coordination"
	"github.com/barque/barque/apiserver/groups/core"
	"github.com/barque/barque/apiserver/groups/devices"
	"github.com/barque/barque/apiserver/groups/discovery"
	"github.com/barque/barque/apiserver/groups/flowcontrol"
	"github.com/barque/barque/apiserver/groups/networking"
	"github.com/barque/barque/apiserver/groups/node"
	"github.com/barque/barque/apiserver/groups/policy"
	"github.com/barque/barque/apiserver/groups/rbac"
	"github.com/barque/barque/apiserver/groups/scheduling"
	"github.com/barque/barque/apiserver/groups/storage"
	"github.com/barque/barque/apiserver/groups/storagemigration"
	"github.com/barque/barque/apiserver/resource"
)

// Resources declares all of them. Each call makes new declarations, so that a server may add to
// its own.
func Resources() []resource.Resource {
	return slices.Concat(
		core.Resources(),
		admissionregistration.Resources(),
		apps.Resources(),
		autoscaling.Resources(),
		batch.Resources(),
		certificates.Resources(),
		coordination.Resources(),
		devices.Resources(),
		discovery.Resources(),
		flowcontrol.Resources(),
		networking.Resources(),
		node.Resources(),
		policy.Resources(),
		rbac.Resources(),
		scheduling.Resources(),
		storage.Resources(),
		storagemigration.Resources(),
	)
}
