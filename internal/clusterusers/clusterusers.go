// Package clusterusers has the names that several rooms share about people who use the cluster.
package clusterusers

import "slices"

// AdminGroup is the group of administrators. It stands beside system:masters: a binding gives it
// its rights, so that they can be taken from it, and its members have certificates of their own,
// which end soon. Only administrators may request a certificate with it, and no configured login
// may name it.
const AdminGroup = "barque:admins"

// masters is Kubernetes' group whose members may do everything.
const masters = "system:masters"

// A server calls the API of the others as this user of this group. The group has the right to ask
// them for what operators want to know, and to renew their certificates; to nothing else. Nobody
// can request a certificate with a name that begins with "barque:".
const (
	ServerClient  = "barque:server-client"
	ServerClients = "barque:server-clients"
)

// HasAdmin reports whether a user of these groups is an administrator.
func HasAdmin(groups []string) bool {
	return slices.Contains(groups, AdminGroup) || slices.Contains(groups, masters)
}

// HasMasters reports whether a user of these groups may do everything, which nothing takes away.
func HasMasters(groups []string) bool { return slices.Contains(groups, masters) }

// HasServer reports whether a user of these groups is a server.
func HasServer(groups []string) bool { return slices.Contains(groups, ServerClients) }

// RequestLabel is on the CertificateSigningRequests of `barque user add`. These stay until their
// certificates end: they are the list of users.
const RequestLabel = "barque.io/user"
