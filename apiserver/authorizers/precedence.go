package authorizers

import (
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/barque/barque/apiserver/secureport"
	"github.com/barque/barque/internal/clusterusers"
)

// rank says which authorizers decide for a request.
type rank int

const (
	asConfigured rank = iota
	ownFirst          // Node and RBAC, then the configured ones
	ownOnly           // Node and RBAC
)

// ownUsers are the cluster's own parts, beside those whose names begin with ownPrefix.
var ownUsers = []string{user.APIServerUser, user.KubeControllerManager, user.KubeScheduler}

const (
	ownPrefix      = "barque:"
	systemAccounts = "system:serviceaccount:kube-system:"
)

func precedence(r authorizer.Attributes) rank {
	of := precedenceOf(r.GetUser())
	if of == asConfigured && !r.IsResourceRequest() && isOpen(r.GetPath()) {
		return ownFirst
	}
	return of
}

// isOpen reports whether a path is one of those that need no credentials, or below it.
func isOpen(path string) bool {
	return slices.ContainsFunc(secureport.OpenPaths, func(p string) bool { return path == p || strings.HasPrefix(path, p+"/") })
}

// precedenceOf a user. The names are reserved: no configured login can give them to a user.
func precedenceOf(who user.Info) rank {
	if who == nil {
		return asConfigured
	}
	name, groups := who.GetName(), who.GetGroups()
	switch {
	case slices.Contains(groups, clusterusers.AdminGroup), slices.Contains(groups, user.SystemPrivilegedGroup):
		return ownFirst
	case slices.Contains(groups, user.NodesGroup), slices.Contains(ownUsers, name), strings.HasPrefix(name, ownPrefix),
		slices.ContainsFunc(groups, func(g string) bool { return strings.HasPrefix(g, ownPrefix) }):
		return ownOnly
	case strings.HasPrefix(name, systemAccounts):
		return ownFirst
	}
	return asConfigured
}
