// Package kubeletapi has the rules by which API servers and kubelets agree about calls of kubelets:
// the caller's names, and the requests that open a stream.
package kubeletapi

import (
	"net/http"
	"path"
	"strings"

	"k8s.io/streaming/pkg/httpstream"
)

// An API server calls kubelets with a certificate of these names. Kubelets believe the group. At
// the API it has the rights to nodes only, by which an upstream kubelet admits it. Nobody can
// request a certificate with a name that begins with "barque:".
const (
	ClientUser  = "barque:kubelet-client"
	ClientGroup = "barque:kubelet-clients"
)

// OpensStream reports whether a request for a path of the kubelet may open a stream to a pod. It
// needs the right to create, whatever its method: WebSockets begin with GET, and commands are not
// for callers who may only read. Every upgraded connection counts.
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
