// Package groups lists the API resources that Barque serves. Each API group has a package below
// that declares its kinds; adding a kind is a change in one of them, adding a group a line here.
package groups

import (
	"slices"

	"github.com/barque/barque/apiserver/groups/apps"
	"github.com/barque/barque/apiserver/groups/coordination"
	"github.com/barque/barque/apiserver/groups/core"
	"github.com/barque/barque/apiserver/groups/discovery"
	"github.com/barque/barque/apiserver/groups/rbac"
	"github.com/barque/barque/apiserver/groups/scheduling"
	"github.com/barque/barque/apiserver/resource"
)

// Resources declares all of them. Each call makes new declarations, so that a server may add to
// its own.
func Resources() []resource.Resource {
	return slices.Concat(
		core.Resources(),
		apps.Resources(),
		coordination.Resources(),
		discovery.Resources(),
		rbac.Resources(),
		scheduling.Resources(),
	)
}
