package admission

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	listers "k8s.io/client-go/listers/core/v1"

	"github.com/barque/barque/apiserver/nodeauth"
	"github.com/barque/barque/apiserver/nodeleases"
	"github.com/barque/barque/internal/nodename"
)

// NodeRestriction limits the writes of kubelets to their own Node object and to the pods bound to
// them. In the Node object they cannot write taints, restricted labels, the label of members on
// other nodes, or addresses of other machines. They can request certificates only for themselves
// and for those pods.
type NodeRestriction struct {
	*admission.Handler
	pods     listers.PodLister
	nodes    listers.NodeLister
	accounts listers.ServiceAccountLister
	client   kubernetes.Interface
	authz    authorizer.UnconditionalAuthorizer
	member   func(node string) bool
	taken    func(node string, kind corev1.NodeAddressType, addr netip.Addr) error
}

var _ admission.ValidationInterface = (*NodeRestriction)(nil)

// NewNodeRestriction returns the step. It reads through the informers, and uses the client for
// objects that they do not have yet. Member reports whether a node is a member of the cluster; nil
// where nothing depends on that. Taken returns the reason why a node may not have an address; nil
// where all may.
func NewNodeRestriction(core coreinformers.Interface, client kubernetes.Interface,
	authz authorizer.UnconditionalAuthorizer,
	member func(node string) bool,
	taken func(node string, kind corev1.NodeAddressType, addr netip.Addr) error) *NodeRestriction {
	return &NodeRestriction{
		Handler: admission.NewHandler(admission.Create, admission.Update, admission.Delete),
		pods:    core.Pods().Lister(), nodes: core.Nodes().Lister(), accounts: core.ServiceAccounts().Lister(),
		client: client, authz: authz, member: member, taken: taken,
	}
}

// Validate implements admission.ValidationInterface.
func (n *NodeRestriction) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	node, ok := nodeauth.NodeOf(a.GetUserInfo())
	if !ok {
		return nil
	}
	var err error
	switch r := a.GetResource(); {
	case r.Group == "" && r.Resource == "nodes":
		err = n.node(node, a)
	case r.Group == "" && r.Resource == "pods":
		err = n.pod(ctx, node, a)
	case r.Group == "" && r.Resource == "serviceaccounts" && a.GetSubresource() == "token":
		err = n.token(ctx, node, a)
	case r.Group == coordinationv1.GroupName && r.Resource == "leases":
		if a.GetName() != node || a.GetNamespace() != corev1.NamespaceNodeLease {
			err = fmt.Errorf("can only write its own lease in %s", corev1.NamespaceNodeLease)
		}
	case r.Group == "" && r.Resource == "persistentvolumeclaims":
		err = sizeOfClaim(a)
	case r.Group == "" && r.Resource == "persistentvolumes":
		err = ownVolume(node, a)
	case r.Resource == "csinodes":
		if a.GetName() != node {
			err = fmt.Errorf("can only write its own CSINode")
		}
	case r.Group == resourcev1.GroupName && r.Resource == "resourceslices":
		err = ownSlice(node, a)
	case r.GroupResource() == signingRequests:
		err = ownRequest(node, a)
	case r.GroupResource() == podRequests:
		err = n.podCertificate(ctx, node, a)
	}
	if err != nil {
		return admission.NewForbidden(a, fmt.Errorf("node %q %w", node, err))
	}
	return nil
}

// ownSlice allows to make and delete slices of devices of the node only.
func ownSlice(node string, a admission.Attributes) error {
	obj := a.GetObject()
	if a.GetOperation() == admission.Delete {
		obj = a.GetOldObject()
	}
	slice, ok := obj.(*resourcev1.ResourceSlice)
	if !ok {
		return fmt.Errorf("sent a %T where a ResourceSlice was expected", obj)
	}
	if slice.Spec.NodeName == nil || *slice.Spec.NodeName != node {
		return fmt.Errorf("can only write a ResourceSlice with the same NodeName as the requesting node")
	}
	return nil
}

func (n *NodeRestriction) node(node string, a admission.Attributes) error {
	if a.GetName() != node {
		return fmt.Errorf("is not allowed to modify node %q", a.GetName())
	}
	if a.GetOperation() == admission.Delete {
		return fmt.Errorf("is not allowed to delete itself")
	}
	obj, ok := a.GetObject().(*corev1.Node)
	if !ok {
		return fmt.Errorf("sent a %T where a Node was expected", a.GetObject())
	}
	old, _ := a.GetOldObject().(*corev1.Node)
	if old == nil {
		old = &corev1.Node{Spec: corev1.NodeSpec{Taints: obj.Spec.Taints}}
	}
	// All nodes route a share to its node: one around the address of a machine would take that
	// machine's traffic. The leader gives shares out; upstream lets a node choose its first one.
	if obj.Spec.PodCIDR != old.Spec.PodCIDR || !slices.Equal(obj.Spec.PodCIDRs, old.Spec.PodCIDRs) {
		return fmt.Errorf(
			"is not allowed to choose the addresses of its pods (spec.podCIDRs): the cluster gives them out")
	}
	if len(obj.OwnerReferences) > 0 && !apiequality.Semantic.DeepEqual(obj.OwnerReferences, old.OwnerReferences) {
		return fmt.Errorf("is not allowed to set owner references of its node")
	}
	if !apiequality.Semantic.DeepEqual(obj.Spec.Taints, old.Spec.Taints) {
		return fmt.Errorf("is not allowed to modify taints")
	}
	if bad := restrictedLabels(obj.Labels, old.Labels); len(bad) > 0 {
		return fmt.Errorf("is not allowed to modify labels: %s", strings.Join(bad, ", "))
	}
	if err := n.addresses(node, obj, old); err != nil {
		return err
	}
	return n.memberLabel(node, obj, old)
}

// memberLabel reserves the label of the cluster's members for their own kubelets. The lease of a
// node with the label is made from gossip, and steps that need all members wait for the node.
// Members and other nodes have the same user name; gossip tells them apart. A kubelet tries again
// until gossip knows the node.
func (n *NodeRestriction) memberLabel(node string, obj, old *corev1.Node) error {
	is, has := obj.Labels[nodeleases.MemberLabel]
	was, had := old.Labels[nodeleases.MemberLabel]
	if n.member == nil || is == was && has == had || n.member(node) {
		return nil
	}
	return fmt.Errorf("is not allowed to modify the label %s: this server has not heard of such a member by gossip",
		nodeleases.MemberLabel)
}

// restrictedLabels names the changed labels that a node may not set on itself.
func restrictedLabels(labels, old map[string]string) []string {
	changed := map[string]bool{}
	for k, v := range labels {
		if was, ok := old[k]; !ok || was != v {
			changed[k] = true
		}
	}
	for k := range old {
		if _, ok := labels[k]; !ok {
			changed[k] = true
		}
	}
	var bad []string
	for _, k := range slices.Sorted(maps.Keys(changed)) {
		if nodename.Restricted(k) {
			bad = append(bad, k)
		}
	}
	return bad
}

func (n *NodeRestriction) pod(ctx context.Context, node string, a admission.Attributes) error {
	switch {
	case a.GetSubresource() == "" && a.GetOperation() == admission.Create:
		return mirrorOf(node, a, func(name string) (*corev1.Node, error) {
			have, err := n.nodes.Get(name)
			if apierrors.IsNotFound(err) { // the informer may not have it yet
				return n.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
			}
			return have, err
		})
	case a.GetSubresource() == "" && a.GetOperation() == admission.Delete:
		pod, _ := a.GetOldObject().(*corev1.Pod)
		return bound(pod, node)
	case a.GetSubresource() == "status":
		old, _ := a.GetOldObject().(*corev1.Pod)
		if err := bound(old, node); err != nil {
			return err
		}
		obj, ok := a.GetObject().(*corev1.Pod)
		if !ok {
			return fmt.Errorf("sent a %T where a Pod was expected", a.GetObject())
		}
		return statusOf(obj, old)
	case a.GetSubresource() == "eviction":
		eviction, ok := a.GetObject().(*policyv1.Eviction)
		if !ok {
			return fmt.Errorf("sent a %T where an Eviction was expected", a.GetObject())
		}
		name := eviction.Name
		if name == "" {
			name = a.GetName()
		}
		pod, err := n.lookup(ctx, a.GetNamespace(), name, "")
		if err != nil {
			return err
		}
		return bound(pod, node)
	}
	return fmt.Errorf("is not allowed to %s pods/%s", strings.ToLower(string(a.GetOperation())), a.GetSubresource())
}

// statusOf allows to write the fields of a pod's status that the node owns. The claims for devices
// that were made for the pod are not among them: a node may read the claims that its pods have.
func statusOf(pod, old *corev1.Pod) error {
	is, was := &pod.Status, &old.Status
	switch {
	case !maps.Equal(pod.Labels, old.Labels):
		return fmt.Errorf("can not update labels through pod status")
	case !apiequality.Semantic.DeepEqual(is.ResourceClaimStatuses, was.ResourceClaimStatuses):
		return fmt.Errorf("cannot update resource claim statues")
	case !apiequality.Semantic.DeepEqual(is.ExtendedResourceClaimStatus, was.ExtendedResourceClaimStatus):
		return fmt.Errorf("cannot update extended resource claim status")
	case !apiequality.Semantic.DeepEqual(is.NodeAllocatableResourceClaimStatuses,
		was.NodeAllocatableResourceClaimStatuses):
		return fmt.Errorf("cannot update node allocatable resource claim statuses")
	}
	return nil
}

func bound(pod *corev1.Pod, node string) error {
	if pod == nil || pod.Spec.NodeName != node {
		return fmt.Errorf("can only write pods with spec.nodeName set to itself")
	}
	return nil
}

// lookup finds a pod. One that the lister has with another UID, or without a node, may have been
// made again or bound since.
func (n *NodeRestriction) lookup(ctx context.Context, namespace, name string, uid types.UID) (*corev1.Pod, error) {
	if pod, err := n.pods.Pods(namespace).Get(name); err == nil && pod.Spec.NodeName != "" &&
		(uid == "" || pod.UID == uid) {
		return pod, nil
	}
	return n.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
}
