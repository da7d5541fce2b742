// Package authorizers puts the authorizers of a server into the order that a user has configured,
// by --authorization-config or --authorization-mode: Node, RBAC, ABAC and webhooks.
//
// With any configuration, a webhook that hangs, lies or dies locks out neither the cluster nor
// its administrators:
//
//   - system:masters may do everything, before any other authorizer.
//   - Node and RBAC alone decide for nodes and for the cluster's own parts, controllers included.
//     No webhook is called.
//   - RBAC comes first for barque:admins, for other service accounts of kube-system, and for the
//     paths by which balancers see that a server is ready. The configured authorizers follow.
//   - Administrators alone may impersonate the cluster's own parts and barque:admins, with any
//     roles.
package authorizers
