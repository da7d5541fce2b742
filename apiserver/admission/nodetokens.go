package admission

import (
	"context"
	"errors"
	"fmt"
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/barque/barque/apiserver/gatewayauth"
	"github.com/barque/barque/apiserver/nodeauth"
)

// token allows only tokens bound to a pod of the node that runs as the service account.
func (n *NodeRestriction) token(ctx context.Context, node string, a admission.Attributes) error {
	request, ok := a.GetObject().(*authenticationv1.TokenRequest)
	if !ok {
		return fmt.Errorf("sent a %T where a TokenRequest was expected", a.GetObject())
	}
	ref := request.Spec.BoundObjectRef
	if a.GetNamespace() == gatewayauth.Account.Namespace && a.GetName() == gatewayauth.Account.Name {
		return ofGateway(node, request)
	}
	if ref == nil || ref.Kind != "Pod" || ref.APIVersion != "v1" || ref.Name == "" || ref.UID == "" {
		return fmt.Errorf("can only request tokens bound to a pod, with its UID")
	}
	pod, err := n.lookup(ctx, a.GetNamespace(), ref.Name, ref.UID)
	if err != nil {
		return err
	}
	if pod.UID != ref.UID {
		return fmt.Errorf("requested a token for pod %s with UID %s, which is not there", ref.Name, ref.UID)
	}
	if pod.Spec.ServiceAccountName != a.GetName() {
		return fmt.Errorf("requested a token of service account %s for a pod that runs as %s", a.GetName(),
			pod.Spec.ServiceAccountName)
	}
	return bound(pod, node)
}

// ofGateway allows the token by which the gateway on a node reads its routes: one for the API
// server, which ends with the Node, and in an hour. A thief of the node keeps it no longer than
// that once the node's certificate is revoked.
func ofGateway(node string, request *authenticationv1.TokenRequest) error {
	ref := request.Spec.BoundObjectRef
	if ref == nil || ref.Kind != "Node" || ref.APIVersion != "v1" || ref.Name != node || ref.UID == "" {
		return fmt.Errorf("can only request tokens of the gateway bound to its own Node, with its UID")
	}
	if seconds := request.Spec.ExpirationSeconds; seconds != nil && *seconds > gatewayauth.TokenSeconds {
		return fmt.Errorf("can only request tokens of the gateway for %d seconds, got %d", gatewayauth.TokenSeconds,
			*seconds)
	}
	return nil // Admit has seen the audiences
}

// requestAudience is the verb by which RBAC allows nodes further audiences of a service account.
// The resource is the audience, and the name is the account's (KEP-4412).
const requestAudience = "request-serviceaccounts-token-audience"

var _ admission.MutationInterface = (*NodeRestriction)(nil)

// Admit implements admission.MutationInterface. It changes nothing: it checks the audiences that a
// node requests. Later the API server fills its own in for none.
func (n *NodeRestriction) Admit(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	node, ok := nodeauth.NodeOf(a.GetUserInfo())
	if r := a.GetResource(); !ok || r.Group != "" || r.Resource != "serviceaccounts" || a.GetSubresource() != "token" {
		return nil
	}
	request, ok := a.GetObject().(*authenticationv1.TokenRequest)
	if !ok {
		return nil // Validate refuses it
	}
	ref := request.Spec.BoundObjectRef
	if a.GetNamespace() == gatewayauth.Account.Namespace && a.GetName() == gatewayauth.Account.Name {
		if len(request.Spec.Audiences) > 0 {
			return admission.NewForbidden(a,
				fmt.Errorf("node %q can only request tokens of the gateway for the API server", node))
		}
		return nil
	}
	if ref == nil || ref.Kind != "Pod" {
		return nil // likewise
	}
	pod, err := n.lookup(ctx, a.GetNamespace(), ref.Name, ref.UID)
	if err == nil {
		err = n.audience(ctx, a, pod, request.Spec.Audiences)
	}
	if err != nil {
		return admission.NewForbidden(a, fmt.Errorf("node %q %w", node, err))
	}
	return nil
}

// audience allows the audiences of the pod's projected tokens and of its CSI drivers, and those
// that RBAC allows the node to request. A stolen node could otherwise get tokens of its pods for
// any other program that accepts the cluster's tokens, such as a cloud or a vault.
func (n *NodeRestriction) audience(
	ctx context.Context, a admission.Attributes, pod *corev1.Pod, audiences []string,
) error {
	audience := "" // the API server's own
	switch len(audiences) {
	case 0:
	case 1:
		audience = audiences[0]
	default:
		return fmt.Errorf("may only request 0 or 1 audiences")
	}
	if projects(pod, audience) {
		return nil
	}
	var unread error
	for _, v := range pod.Spec.Volumes {
		driver, err := n.driver(ctx, pod, v)
		if err == nil && driver != "" {
			var wants bool
			if wants, err = n.driverWants(ctx, driver, audience); wants {
				return nil
			}
		}
		if unread == nil && err != nil {
			unread = fmt.Errorf("volume %s: %w", v.Name, err)
		}
	}
	decision, _, undecided := n.authz.Authorize(ctx, authorizer.AttributesRecord{
		User: a.GetUserInfo(), Verb: requestAudience, APIGroup: a.GetResource().Group,
		APIVersion: a.GetResource().Version,
		Resource:   audience, Namespace: a.GetNamespace(), Name: a.GetName(), ResourceRequest: true,
	})
	if decision == authorizer.DecisionAllow {
		return nil
	}
	if why := errors.Join(unread, undecided); why != nil {
		return fmt.Errorf("audience %q not found in pod spec volume: %w", audience, why)
	}
	return fmt.Errorf("audience %q not found in pod spec volume", audience)
}

// projects reports whether a projected volume of the pod has a token for the audience.
func projects(pod *corev1.Pod, audience string) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.Projected != nil && slices.ContainsFunc(v.Projected.Sources, func(s corev1.VolumeProjection) bool {
			return s.ServiceAccountToken != nil && s.ServiceAccountToken.Audience == audience
		})
	})
}

// driver returns the CSI driver of a volume; "" without one. It reads from the API: few pods with
// such volumes start in a second, and a claim is bound just before.
func (n *NodeRestriction) driver(ctx context.Context, pod *corev1.Pod, v corev1.Volume) (string, error) {
	var name string
	switch {
	case v.CSI != nil:
		return v.CSI.Driver, nil
	case v.PersistentVolumeClaim != nil:
		name = v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		name = pod.Name + "-" + v.Name
	default:
		return "", nil
	}
	claim, err := n.client.CoreV1().PersistentVolumeClaims(pod.Namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil || claim.Spec.VolumeName == "" {
		return "", err
	}
	volume, err := n.client.CoreV1().PersistentVolumes().Get(ctx, claim.Spec.VolumeName, metav1.GetOptions{})
	if err != nil || volume.Spec.CSI == nil {
		return "", err
	}
	return volume.Spec.CSI.Driver, nil
}

// driverWants reports whether a CSI driver gets tokens for the audience.
func (n *NodeRestriction) driverWants(ctx context.Context, name, audience string) (bool, error) {
	driver, err := n.client.StorageV1().CSIDrivers().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(driver.Spec.TokenRequests,
		func(r storagev1.TokenRequest) bool { return r.Audience == audience }), nil
}
