package nodeauth

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/apiserver/gatewayauth"
	"github.com/barque/barque/internal/localpv"
)

const nodeIndex = "barque.node"

// ownPodsOnly is the reason why a node does not get a pod of another node.
const ownPodsOnly = "can only read its own pods"

// dnsRules is the ConfigMap with users' rules for cluster DNS, which is on every node.
var dnsRules = types.NamespacedName{Namespace: metav1.NamespaceSystem, Name: "coredns-custom"}

// Authorizer decides about requests of kubelets and has no opinion on others.
type Authorizer struct {
	pods     cache.Indexer
	requests RequestNode
	volumes  Volumes
	read     ReadVolume
	peering  NeedsPassword
	newest   *newest
	rules    func(authorizer.Attributes) bool
}

// Volumes reads claims, volumes and attachments. An error means that the object is not known.
type Volumes interface {
	Claim(namespace, name string) (*corev1.PersistentVolumeClaim, error)
	Volume(name string) (*corev1.PersistentVolume, error)
	Attachment(name string) (*storagev1.VolumeAttachment, error)
}

// ReadVolume reads a volume from the store. It returns nil for one that is not there.
type ReadVolume func(ctx context.Context, name string) (*corev1.PersistentVolume, error)

// NeedsPassword reports whether a node needs a Secret, by its namespace and name, for a session
// with a BGPPeer. It is nil where there are none.
type NeedsPassword func(node, namespace, name string) bool

// RequestNode returns the node that has made a PodCertificateRequest; "" if it is not known.
type RequestNode func(namespace, name string) (node string)

// New returns an authorizer over the pods of an informer that has not been started, and those that
// list returns. requests returns the node of a request for a certificate, volumes the volumes of
// claims, both as far as informers know them, and read reads a volume from the store. peering knows
// the Secrets of BGP sessions. rules reports whether the role of nodes allows a request.
func New(
	pods cache.SharedIndexInformer, list ListPods, requests RequestNode, volumes Volumes, read ReadVolume,
	peering NeedsPassword, rules func(authorizer.Attributes) bool,
) (*Authorizer, error) {
	err := pods.AddIndexers(cache.Indexers{nodeIndex: func(obj any) ([]string, error) {
		if pod, ok := obj.(*corev1.Pod); ok && pod.Spec.NodeName != "" {
			return []string{pod.Spec.NodeName}, nil
		}
		return nil, nil
	}})
	if err != nil {
		return nil, fmt.Errorf("indexing pods by node: %w", err)
	}
	return &Authorizer{pods: pods.GetIndexer(), requests: requests, volumes: volumes, read: read,
		peering: peering, newest: newNewest(list), rules: rules}, nil
}

// Authorize implements authorizer.Authorizer. It returns an error if the decision needs the store,
// which cannot be read.
func (a *Authorizer) Authorize(ctx context.Context, attrs authorizer.Attributes) (authorizer.Decision, string, error) {
	node, ok := NodeOf(attrs.GetUser())
	if !ok {
		return authorizer.DecisionNoOpinion, "", nil
	}
	if !a.rules(attrs) {
		return authorizer.DecisionNoOpinion, "", nil
	}
	if !attrs.IsResourceRequest() {
		return authorizer.DecisionAllow, "", nil
	}
	reason, err := a.refuse(ctx, node, attrs)
	if err != nil {
		return authorizer.DecisionNoOpinion, "", err
	}
	if reason != "" {
		return authorizer.DecisionNoOpinion, "node " + node + ": " + reason, nil
	}
	return authorizer.DecisionAllow, "", nil
}

// ConditionsAwareAuthorize implements authorizer.Authorizer; there are no conditions.
func (a *Authorizer) ConditionsAwareAuthorize(
	ctx context.Context, attrs authorizer.Attributes,
) authorizer.ConditionsAwareDecision {
	return authorizer.ConditionsAwareDecisionFromParts(a.Authorize(ctx, attrs))
}

// EvaluateConditions implements authorizer.Authorizer; there are no conditions.
func (a *Authorizer) EvaluateConditions(
	context.Context, authorizer.ConditionsAwareDecision, authorizer.ConditionsData,
) (authorizer.Decision, string, error) {
	return authorizer.DecisionDeny, "", authorizer.ErrorConditionEvaluationNotSupported
}

// refuse gives the reason why a request that the role allows is not for this node, or "".
func (a *Authorizer) refuse(ctx context.Context, node string, attrs authorizer.Attributes) (string, error) {
	switch attrs.GetAPIGroup() {
	case "":
		switch attrs.GetResource() {
		case "configmaps":
			if attrs.GetNamespace() == dnsRules.Namespace && attrs.GetName() == dnsRules.Name {
				return "", nil
			}
			return a.needsPod(ctx, node, attrs, refersTo(attrs.GetResource()))
		case "secrets":
			if attrs.GetVerb() == "get" && (a.ofVolume(node, attrs.GetNamespace(), attrs.GetName()) ||
				a.peering != nil && a.peering(node, attrs.GetNamespace(), attrs.GetName())) {
				return "", nil
			}
			return a.needsPod(ctx, node, attrs, refersTo(attrs.GetResource()))
		case "persistentvolumeclaims":
			return a.needsPod(ctx, node, attrs, refersTo(attrs.GetResource()))
		case "serviceaccounts":
			// The gateway of the node has an account that no pod has. NodeRestriction sees to its
			// tokens.
			if attrs.GetVerb() == "create" && attrs.GetSubresource() == "token" &&
				attrs.GetNamespace() == gatewayauth.Account.Namespace &&
				attrs.GetName() == gatewayauth.Account.Name {
				return "", nil
			}
			return a.needsPod(ctx, node, attrs, func(p *corev1.Pod, name string) bool {
				return p.Spec.ServiceAccountName == name
			})
		case "persistentvolumes":
			return a.ownVolumes(ctx, node, attrs)
		case "pods":
			return a.ownPods(ctx, node, attrs)
		}
	case "coordination.k8s.io":
		if attrs.GetNamespace() != corev1.NamespaceNodeLease ||
			(attrs.GetVerb() != "create" && attrs.GetName() != node) {
			return "can only use its own lease in " + corev1.NamespaceNodeLease, nil
		}
	case "storage.k8s.io":
		if attrs.GetResource() == "csinodes" && attrs.GetVerb() != "create" && attrs.GetName() != node {
			return "can only use its own CSINode", nil
		}
		if attrs.GetResource() == "volumeattachments" {
			have, err := a.volumes.Attachment(attrs.GetName())
			if err != nil || have.Spec.NodeName != node {
				return "can only read VolumeAttachments of volumes that are to be attached to it", nil
			}
		}
	case "resource.k8s.io":
		switch attrs.GetResource() {
		case "resourceclaims":
			return a.needsPod(ctx, node, attrs, refersToDevices)
		case "resourceslices":
			return ownSlices(node, attrs), nil
		}
	case "certificates.k8s.io":
		if attrs.GetResource() == "podcertificaterequests" {
			return a.ownRequests(node, attrs), nil
		}
	}
	return "", nil
}

// needsPod allows a named object that a pod of the node refers to.
func (a *Authorizer) needsPod(
	ctx context.Context, node string, attrs authorizer.Attributes, refers func(*corev1.Pod, string) bool,
) (string, error) {
	what := attrs.GetResource()
	if attrs.GetName() == "" || attrs.GetNamespace() == "" {
		return "can only read individual " + what, nil
	}
	found, err := a.has(ctx, node, func(p *corev1.Pod) bool {
		return p.Namespace == attrs.GetNamespace() && refers(p, attrs.GetName())
	})
	if found || err != nil {
		return "", err
	}
	return fmt.Sprintf("none of its pods refers to %s %s/%s", what, attrs.GetNamespace(), attrs.GetName()), nil
}

// ofVolume reports whether a Secret is for a CSI volume that a pod of the node has by a claim.
func (a *Authorizer) ofVolume(node, namespace, name string) bool {
	return slices.ContainsFunc(a.podsOf(node), func(p *corev1.Pod) bool {
		return slices.ContainsFunc(p.Spec.Volumes, func(v corev1.Volume) bool {
			claimed := claimOf(p, &v)
			if claimed == "" {
				return false
			}
			claim, err := a.volumes.Claim(p.Namespace, claimed)
			if err != nil || claim.Spec.VolumeName == "" {
				return false
			}
			volume, err := a.volumes.Volume(claim.Spec.VolumeName)
			if err != nil || volume.Spec.ClaimRef == nil || volume.Spec.ClaimRef.UID != claim.UID ||
				volume.Spec.CSI == nil {
				return false
			}
			return slices.ContainsFunc(nodeSecrets(volume.Spec.CSI), func(ref *corev1.SecretReference) bool {
				return ref != nil && ref.Namespace == namespace && ref.Name == name
			})
		})
	})
}

// has reports whether a wanted pod is bound to the node. A pod that the informer lacks is looked
// for in the store: kubelets act on a binding at once.
func (a *Authorizer) has(ctx context.Context, node string, wanted func(*corev1.Pod) bool) (bool, error) {
	if slices.ContainsFunc(a.podsOf(node), wanted) {
		return true, nil
	}
	pods, err := a.newest.pods(ctx, node)
	return slices.ContainsFunc(pods, wanted), err
}

// ownPods allows lists and watches of the node's pods, and of all pods, reduced to the fields that
// network policies use (see Pods). Single pods, and writes, which admission narrows, are allowed
// by name.
func (a *Authorizer) ownPods(ctx context.Context, node string, attrs authorizer.Attributes) (string, error) {
	switch attrs.GetVerb() {
	case "list", "watch":
		if attrs.GetName() != "" {
			return "", nil
		}
		selector, err := attrs.GetFieldSelector()
		if err != nil || len(selector) > 0 && !selects(selector, "spec.nodeName", node) {
			return "can only list and watch pods without field selector or with spec.nodeName=" + node, nil
		}
	case "get":
		if _, known, err := a.pods.GetByKey(attrs.GetNamespace() + "/" + attrs.GetName()); err != nil || !known {
			return "", nil // the informer does not know it yet, or it is gone: Pods.Get decides by the object
		}
		found, err := a.has(ctx, node, func(p *corev1.Pod) bool {
			return p.Namespace == attrs.GetNamespace() && p.Name == attrs.GetName()
		})
		if !found && err == nil {
			return ownPodsOnly, nil
		}
		return "", err
	}
	return "", nil
}

// ownVolumes allows lists and watches of the local volumes that are on the node, and to read single
// volumes that a pod of the node has by a claim. Writes are narrowed by admission.
func (a *Authorizer) ownVolumes(ctx context.Context, node string, attrs authorizer.Attributes) (string, error) {
	switch attrs.GetVerb() {
	case "list", "watch":
		requirements, err := attrs.GetLabelSelector()
		if err == nil {
			for _, r := range requirements {
				equals := r.Operator() == selection.Equals || r.Operator() == selection.DoubleEquals ||
					r.Operator() == selection.In
				if r.Key() == localpv.NodeLabel && equals && r.Values().Len() == 1 && r.Values().Has(node) {
					return "", nil
				}
			}
		}
		return "can only list and watch persistentvolumes with the label selector " + localpv.NodeLabel + "=" + node,
			nil
	case "get":
		if volume, err := a.volumes.Volume(attrs.GetName()); err == nil &&
			(localpv.OnNode(volume, node) || slices.ContainsFunc(a.podsOf(node), haveVolume(volume))) {
			return "", nil
		}
		// The kubelet may have learnt of a binding before the informers.
		volume, err := a.newest.volume(ctx, node, attrs.GetName(), a.read)
		if volume == nil || err != nil {
			return "none of its pods has volume " + attrs.GetName(), err
		}
		found := localpv.OnNode(volume, node)
		if !found {
			found, err = a.has(ctx, node, haveVolume(volume))
		}
		if found || err != nil {
			return "", err
		}
		return "none of its pods has volume " + attrs.GetName(), nil
	}
	return "", nil
}

// haveVolume returns a function that reports whether a pod has the volume by its claim.
func haveVolume(volume *corev1.PersistentVolume) func(*corev1.Pod) bool {
	return func(p *corev1.Pod) bool {
		ref := volume.Spec.ClaimRef
		return ref != nil && ref.Namespace == p.Namespace && refersToClaim(p, ref.Name)
	}
}

// ownSlices allows to list, watch and delete many slices of devices only for those of the node.
// Writes of single ones are narrowed by admission.
func ownSlices(node string, attrs authorizer.Attributes) string {
	switch attrs.GetVerb() {
	case "list", "watch", "deletecollection":
		selector, err := attrs.GetFieldSelector()
		if err != nil || !selects(selector, resourcev1.ResourceSliceSelectorNodeName, node) {
			return "can only list/watch/deletecollection resourceslices with nodeName field selector"
		}
	}
	return ""
}

// ownRequests allows to read the requests for certificates of pods that the node has made.
// Admission narrows the pods that it makes them for; the signer writes their status.
func (a *Authorizer) ownRequests(node string, attrs authorizer.Attributes) string {
	switch verb := attrs.GetVerb(); {
	case attrs.GetSubresource() != "":
		return "may not access the " + attrs.GetSubresource() + " subresource of PodCertificateRequests"
	case verb == "create":
		return ""
	case verb == "list" || verb == "watch":
		selector, err := attrs.GetFieldSelector()
		if err != nil || !selects(selector, "spec.nodeName", node) {
			return "can only list/watch podcertificaterequests with nodeName field selector"
		}
		return ""
	case verb == "get" && a.requests(attrs.GetNamespace(), attrs.GetName()) == node:
		return ""
	}
	return "can only create PodCertificateRequests and read its own"
}

func selects(requirements fields.Requirements, field, value string) bool {
	for _, r := range requirements {
		if r.Field == field && r.Value == value &&
			(r.Operator == selection.Equals || r.Operator == selection.DoubleEquals) {
			return true
		}
	}
	return false
}

func (a *Authorizer) podsOf(node string) []*corev1.Pod {
	objects, err := a.pods.ByIndex(nodeIndex, node)
	if err != nil {
		return nil // the index is there: New has added it
	}
	pods := make([]*corev1.Pod, 0, len(objects))
	for _, o := range objects {
		if pod, ok := o.(*corev1.Pod); ok {
			pods = append(pods, pod)
		}
	}
	return pods
}

// RoleRules returns New's function rules. It reports whether one of the rules allows a request.
func RoleRules(
	rules []rbacv1.PolicyRule, allows func(*rbacv1.PolicyRule, authorizer.Attributes) bool,
) func(authorizer.Attributes) bool {
	return func(attrs authorizer.Attributes) bool {
		for i := range rules {
			if allows(&rules[i], attrs) {
				return true
			}
		}
		return false
	}
}
