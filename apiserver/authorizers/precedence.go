package authorizers

import (
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/barque/barque/apiserver/rbac"
	"github.com/barque/barque/apiserver/secureport"
	"github.com/barque/barque/internal/clusterusers"
)

// rank selects the authorizers that decide for a request.
type rank int

const (
	asConfigured rank = iota
	ownFirst          // Node and RBAC, then the configured ones
	ownOnly           // Node and RBAC
)

const (
	// ownPrefix begins the names of the cluster's own parts. rbac.IsOwnUser knows the others.
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
	return slices.ContainsFunc(secureport.OpenPaths,
		func(p string) bool { return path == p || strings.HasPrefix(path, p+"/") })
}

// takesOwn returns the own user or group whose identity a request would take, or "". Acting as a
// controller gives its rights, and some controllers have nearly all. Their tokens do not count for
// the same reason. system:masters is none of them: in Kubernetes a role may give the right to act
// as that group, and proxies of API servers have it.
func takesOwn(r authorizer.Attributes) string {
	if !r.IsResourceRequest() || r.GetVerb() != "impersonate" && !strings.HasPrefix(r.GetVerb(), "impersonate:") {
		return ""
	}
	name := r.GetName()
	switch r.GetResource() {
	case "users":
	case "groups":
		if !strings.HasPrefix(name, ownPrefix) {
			return ""
		}
		return name
	case "serviceaccounts":
		name = serviceaccount.MakeUsername(r.GetNamespace(), name)
	default:
		return ""
	}
	if !rbac.IsOwnUser(name) && !strings.HasPrefix(name, ownPrefix) {
		return ""
	}
	return name
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
	case slices.Contains(groups, user.NodesGroup), rbac.IsOwnUser(name), strings.HasPrefix(name, ownPrefix),
		slices.ContainsFunc(groups, func(g string) bool { return strings.HasPrefix(g, ownPrefix) }):
		return ownOnly
	case strings.HasPrefix(name, systemAccounts):
		return ownFirst
	}
	return asConfigured
}
