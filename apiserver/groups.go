package apiserver

import (
	"github.com/barque/barque/apiserver/groups/core"
	"github.com/barque/barque/apiserver/resource"
)

// DefaultResources are all kinds that Barque serves. The first version of a group is its
// preferred one.
func DefaultResources() []resource.Resource {
	var all []resource.Resource
	for _, group := range []func() []resource.Resource{
		core.Resources,
	} {
		all = append(all, group()...)
	}
	return all
}
