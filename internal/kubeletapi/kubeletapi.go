// Package kubeletapi has the rules by which API servers and kubelets agree about calls of kubelets:
// the caller's names, and the requests that open a stream.
package kubeletapi

import (
	"net/http"
	"path"
	"strings"

	"k8s.io/streaming/pkg/httpstream"
)

// An API server calls kubelets with a certificate of these names. Kubelets accept the group. At the
// API the group has only rights to nodes, by which an upstream kubelet admits it. No certificate
// can be requested with a name that begins with "barque:".
const (
	ClientUser  = "barque:kubelet-client"
	ClientGroup = "barque:kubelet-clients"
)

// OpensStream reports whether a request for a path of the kubelet may open a stream to a pod. Every
// upgraded connection counts. The request needs the right to create, with any method: WebSockets
// begin with GET, and callers with read access only must not run commands.
func OpensStream(target string, header http.Header) bool {
	if httpstream.IsUpgradeRequest(&http.Request{Header: header}) {
		return true
	}
	first, _, _ := strings.Cut(strings.TrimPrefix(path.Clean("/"+target), "/"), "/")
	switch strings.ToLower(first) {
	case "exec", "attach", "portforward", "run", "cri":
		return true
	}
	return false
}

// ordersPath is above the paths by which servers order a node to do something.
const ordersPath = "/barque/v1/upgrade"

// ForServers reports whether a path of the kubelet is for servers themselves. The kubelet knows
// servers by a certificate that the API server also shows for the users whose requests it hands on,
// so these do not go there.
func ForServers(target string) bool {
	at := strings.ToLower(path.Clean("/" + target))
	return at == ordersPath || strings.HasPrefix(at, ordersPath+"/")
}
