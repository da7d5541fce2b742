// Package nodeleases serves the Leases of nodes, in the namespace kube-node-lease. Those of the
// cluster's own nodes are made from gossip and not stored; those of other nodes are stored.
//
// A kubelet of Kubernetes renews such a lease every ten seconds, and that is its heartbeat. A
// member's heartbeat travels by gossip and costs the store nothing; but people and tools look at
// these leases, so a member's is made at each request: held by the node, renewed when the node last
// showed that it lives. It comes and goes with the Node object. A foreign node is no gossip member:
// an upstream kubelet, virtual-kubelet, KWOK. It writes its lease as in any cluster.
//
// MemberLabel on the Node object distinguishes the two. A member's kubelet registers with it and
// puts it back when it is missing. It is in the store, so all servers agree on it at each revision,
// and neither a restart nor a new leader changes it; gossip of a single server decides nothing
// here. A user that may write a Lease but no Node cannot change it.
//
// Invariants:
//
//   - At each revision kube-node-lease has one lease for each Node with MemberLabel, and the stored
//     leases of all other names. A stored lease whose Node has the label is hidden while that
//     lasts: it was written before the member came. Leases of other namespaces are ordinary
//     objects.
//   - A member's lease cannot be written: a write without an effect must not succeed. It is refused
//     as forbidden, with the reason. Every other lease is written as any object is.
//   - A member's lease keeps its UID for the life of its Node. Times are those of this server's
//     gossip, in steps of RenewEvery, so that two servers agree about a node that is well.
//   - A list is one snapshot: stored leases and Nodes are read at the same revision of the store,
//     on all of its pages. A watch can begin at it.
//   - A renewal of a member is no write and makes no revision: in a cluster without writes its
//     lease is renewed under the same resourceVersion. Informers keep the newer one then, and call
//     no handler for it. A watch sends members' renewals once every RenewEvery, of all together.
//   - A watch begins at a revision and knows the members at it. The stored leases set the pace:
//     events of members' leases carry the revision up to which the stored ones have been sent, and
//     a stored one waits until all earlier changes of Nodes have been sent. So a watch that is
//     resumed at any of their revisions has missed nothing. It may repeat events of members.
//   - A Node that gets or loses the label exchanges one lease for the other: DELETED, then ADDED.
//   - Members' leases have MemberLabel, too: a watch that selects leases without it gets no renewal
//     by gossip.
package nodeleases

import (
	"context"
	"errors"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"github.com/barque/barque/apiserver/resource"
)

// RenewEvery is the interval of renewals of a live node's lease, as in Kubernetes.
const RenewEvery = 10 * time.Second

// durationSeconds is the lifetime of a lease that is not renewed, as in Kubernetes.
const durationSeconds = 40

// MemberLabel is on the Nodes of the cluster's own members, and on their leases.
const MemberLabel = "barque.io/member"

// IsMember reports whether the Node is a member of the cluster.
func IsMember(node *corev1.Node) bool {
	_, is := node.Labels[MemberLabel]
	return is
}

// SignsOfLife knows when nodes last showed that they live.
type SignsOfLife interface {
	// LastSeen is when the node last showed that it lives, by this server's clock: now, for one
	// that is well. It is false if nothing was ever heard of the node.
	LastSeen(node string) (time.Time, bool)
}

// Nodes is the storage of the Node objects.
type Nodes interface {
	rest.Lister
	// WatchStore watches in the order of the store: it sends bookmarks with its progress, when it
	// has begun and after each TellProgress.
	WatchStore(ctx context.Context, options *metainternalversion.ListOptions) (watch.Interface, error)
	// TellProgress has the watches of WatchStore send a bookmark soon, at a revision that is not
	// below any that was visible in this server at the call.
	TellProgress(ctx context.Context) error
}

// Storage serves all leases: it makes the leases of members, and reads the others from the store.
type Storage struct {
	*resource.Storage
	nodes func() Nodes
	signs SignsOfLife
	now   func() time.Time
}

// New wraps the storage of leases. nodes is called when a request is served: the storage of nodes
// may be built later than this one.
func New(leases *resource.Storage, nodes func() Nodes, signs SignsOfLife, now func() time.Time) *Storage {
	return &Storage{Storage: leases, nodes: nodes, signs: signs, now: now}
}

// onNodes is the context of a request to nodes, which have no namespace: storage looks for it
// there.
func onNodes(ctx context.Context) context.Context {
	return request.WithNamespace(ctx, metav1.NamespaceNone)
}

// hasNodes reports whether a request may be about leases of nodes: those of kube-node-lease or of
// all namespaces.
func hasNodes(ctx context.Context) bool {
	namespace, _ := request.NamespaceFrom(ctx)
	return namespace == "" || namespace == corev1.NamespaceNodeLease
}

// inNodes is the context of a request to the stored leases of nodes.
func inNodes(ctx context.Context) context.Context {
	return request.WithNamespace(ctx, corev1.NamespaceNodeLease)
}

var errReadOnly = errors.New("its Node has the label " + MemberLabel + ": the leases of the cluster's own nodes in " +
	corev1.NamespaceNodeLease +
	" show when these were last heard of; they are not stored, and nobody can write them. " +
	"For another purpose use another namespace; for a node that is no member use another name, or delete the member's Node first")

// refused is the answer to a write of a member's lease.
func refused(name string) error {
	return apierrors.NewForbidden(coordinationv1.Resource("leases"), name, errReadOnly)
}
