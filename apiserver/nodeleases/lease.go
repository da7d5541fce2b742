package nodeleases

import (
	"crypto/sha256"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// lease returns the lease of a member, at a revision of the store.
func (s *Storage) lease(node *corev1.Node, revision string) *coordinationv1.Lease {
	l := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: corev1.NamespaceNodeLease, Name: node.Name, UID: uidOf(node),
			Labels:            map[string]string{MemberLabel: ""},
			CreationTimestamp: node.CreationTimestamp, ResourceVersion: revision,
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: ptr.To(node.Name),
			LeaseDurationSeconds: ptr.To[int32](durationSeconds)},
	}
	if at := s.renewed(node); !at.IsZero() {
		l.Spec.RenewTime = &metav1.MicroTime{Time: at}
	}
	return l
}

// renewed is when a node last showed that it lives, rounded down to whole RenewEvery; zero if it
// never did. A server that has just started may have no sign of life of a node that is away; then
// the time of the kubelet's last own report counts. A time in the future, from a clock that is
// ahead, does not count.
func (s *Storage) renewed(node *corev1.Node) time.Time {
	seen, _ := s.signs.LastSeen(node.Name)
	for i := range node.Status.Conditions {
		c := &node.Status.Conditions[i]
		if told := c.LastHeartbeatTime.Time; c.Type == corev1.NodeReady && told.After(seen) && !told.After(s.now()) {
			seen = told
		}
	}
	if seen.IsZero() {
		return time.Time{}
	}
	return seen.Truncate(RenewEvery)
}

// uidOf derives the lease's UID from its node's. It has the form of a UUID of version 8 (RFC 9562):
// of one's own making.
func uidOf(node *corev1.Node) types.UID {
	sum := sha256.Sum256([]byte("lease of node " + string(node.UID)))
	u := sum[:16]
	u[6], u[8] = u[6]&0x0f|0x80, u[8]&0x3f|0x80
	return types.UID(fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:]))
}
