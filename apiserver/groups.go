package apiserver

import (
	"github.com/barque/barque/apiserver/groups"
	"github.com/barque/barque/apiserver/resource"
)

// DefaultResources are all kinds that Barque serves. The first version of a group is its
// preferred one.
func DefaultResources() []resource.Resource { return groups.Resources() }
