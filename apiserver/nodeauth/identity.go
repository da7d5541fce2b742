package nodeauth

import (
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/authentication/user"
)

const userPrefix = "system:node:"

// NodeOf returns the node whose kubelet the user is.
func NodeOf(u user.Info) (node string, ok bool) {
	node, ok = strings.CutPrefix(u.GetName(), userPrefix)
	return node, ok && node != "" && slices.Contains(u.GetGroups(), user.NodesGroup)
}
