// Package clusterusers has the names of users and groups that several rooms share.
package clusterusers

import "slices"

// AdminGroup is the group of administrators beside system:masters. Its rights come from a binding,
// so that they can be removed. Each member has a certificate of its own, which ends soon. Only
// administrators may request a certificate with it, and no configured login may name it.
const AdminGroup = "barque:admins"

// masters is Kubernetes' group whose members may do everything.
const masters = "system:masters"

// A server calls the API of the other servers as this user of this group. The group may read the
// data for operators' commands and renew the servers' certificates, and nothing else. No
// certificate can be requested with a name that begins with "barque:".
const (
	ServerClient  = "barque:server-client"
	ServerClients = "barque:server-clients"
)

// HasAdmin reports whether a user of these groups is an administrator.
func HasAdmin(groups []string) bool {
	return slices.Contains(groups, AdminGroup) || slices.Contains(groups, masters)
}

// HasMasters reports whether the groups include system:masters, whose rights cannot be removed.
func HasMasters(groups []string) bool { return slices.Contains(groups, masters) }

// HasServer reports whether a user of these groups is a server.
func HasServer(groups []string) bool { return slices.Contains(groups, ServerClients) }

// RequestLabel is on the CertificateSigningRequests of `barque user add`. These stay until their
// certificates end: they are the list of users.
const RequestLabel = "barque.io/user"
