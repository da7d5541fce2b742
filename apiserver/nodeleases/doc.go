// Package nodeleases serves the Leases of nodes, in the namespace kube-node-lease, without storing them.
//
// Elsewhere a kubelet renews such a lease every ten seconds, and that is its heartbeat. Here heartbeats
// travel by gossip and cost the store nothing; but people and tools look at these leases, so they are
// made when somebody asks: one for every Node object, held by the node, renewed when the node last
// showed that it lives. They come and go with the Node object.
//
// What holds:
//
//   - Nothing is written, and nobody can write there: a write that was accepted and did nothing would be
//     a lie. It is refused as forbidden, with the reason. Leases of other namespaces are ordinary objects.
//   - A lease keeps its UID for the life of its Node. Times are those of this server's gossip, in steps of
//     RenewEvery, so that two servers tell the same of a node that is well.
//   - A resourceVersion is always a revision of the store: the one at which the Node objects were read. A
//     watch can begin at it, and is served from the history of nodes. A renewal is no write and makes no
//     revision: in a cluster where nothing happens a lease is renewed under the same resourceVersion.
//     Informers keep the newer one then, and call no handler for it.
//   - A watch tells of renewals once every RenewEvery, of all nodes together.
//   - In lists and watches over all namespaces the stored leases come first and set the pace: what is told
//     of nodes carries the revision up to which the stored ones have been told, and a stored one waits until
//     all that happened to nodes before it has been told. So a watch that is taken up at any of their
//     revisions has missed nothing. It may repeat what it said of nodes.
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

// RenewEvery is how often the lease of a node that lives is renewed; it is what kubelets do elsewhere.
const RenewEvery = 10 * time.Second

// durationSeconds is how long a lease holds that is not renewed; it is what kubelets write elsewhere.
const durationSeconds = 40

// SignsOfLife tells when nodes showed that they live.
type SignsOfLife interface {
	// LastSeen is when the node last showed that it lives, by this server's clock: now, for one that is
	// well. It is false if nothing was ever heard of the node.
	LastSeen(node string) (time.Time, bool)
}

// Nodes is the storage of the Node objects.
type Nodes interface {
	rest.Lister
	rest.Watcher
	// WatchStore is Watch, in the order of the store: its bookmarks tell how far it is, when it has begun and after
	// each TellProgress.
	WatchStore(ctx context.Context, options *metainternalversion.ListOptions) (watch.Interface, error)
	// TellProgress has the watches of WatchStore tell soon that they have come to a revision, one that is not below any
	// that was visible in this server when it was called.
	TellProgress(ctx context.Context) error
}

// Storage serves all leases: those of nodes as this package makes them, the others as they are stored.
type Storage struct {
	*resource.Storage
	nodes func() Nodes
	signs SignsOfLife
	now   func() time.Time
}

// New wraps the storage of leases. nodes is called when a request is served: the storage of nodes may be
// built later than this one.
func New(leases *resource.Storage, nodes func() Nodes, signs SignsOfLife, now func() time.Time) *Storage {
	return &Storage{Storage: leases, nodes: nodes, signs: signs, now: now}
}

// onNodes is the context of a request to nodes, which have no namespace: storage looks for it there.
func onNodes(ctx context.Context) context.Context {
	return request.WithNamespace(ctx, metav1.NamespaceNone)
}

// scope is whose leases a request is about.
type scope int

const (
	stored scope = iota
	ofNodes
	both
)

func scopeOf(ctx context.Context) scope {
	switch namespace, _ := request.NamespaceFrom(ctx); namespace {
	case "":
		return both
	case corev1.NamespaceNodeLease:
		return ofNodes
	}
	return stored
}

var errReadOnly = errors.New("the leases in " + corev1.NamespaceNodeLease +
	" show when nodes were last heard of; they are not stored, and nobody can write them: use another namespace")

// refused is the answer to a write of a node's lease.
func refused(name string) error {
	return apierrors.NewForbidden(coordinationv1.Resource("leases"), name, errReadOnly)
}
