package admission

import (
	"context"
	"fmt"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/barque/barque/apiserver/groups/certificates"
)

// ownRequest allows requests for a node's own certificates only.
func ownRequest(node string, a admission.Attributes) error {
	if a.GetOperation() != admission.Create || a.GetSubresource() != "" {
		return nil // the authorizers decide
	}
	r, ok := a.GetObject().(*certificatesv1.CertificateSigningRequest)
	if !ok {
		return fmt.Errorf("sent a %T where a CertificateSigningRequest was expected", a.GetObject())
	}
	if r.Spec.SignerName != certificatesv1.KubeletServingSignerName &&
		r.Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName {
		return nil
	}
	request, err := certificates.ParseRequest(r.Spec.Request)
	if err != nil {
		return fmt.Errorf("sent a request that cannot be parsed: %w", err)
	}
	if want := "system:node:" + node; request.Subject.CommonName != want {
		return fmt.Errorf("can only create a node CSR with CN=%s", want)
	}
	return nil
}

// podCertificate allows requests for certificates of the node's own pods, in the name of their
// service account. The UIDs are compared too, because a signer uses them. A kubelet may be ahead of
// the informers: objects that do not match there are read from the store.
func (n *NodeRestriction) podCertificate(ctx context.Context, node string, a admission.Attributes) error {
	if a.GetOperation() != admission.Create || a.GetSubresource() != "" {
		return fmt.Errorf("can only create PodCertificateRequests")
	}
	r, ok := a.GetObject().(*certificatesv1.PodCertificateRequest)
	if !ok {
		return fmt.Errorf("sent a %T where a PodCertificateRequest was expected", a.GetObject())
	}
	spec := &r.Spec
	if string(spec.NodeName) != node {
		return fmt.Errorf("requested a certificate for a pod on node %q", spec.NodeName)
	}
	is, err := n.nodes.Get(node)
	if apierrors.IsNotFound(err) || err == nil && is.UID != spec.NodeUID {
		is, err = n.client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	}
	if err != nil {
		return fmt.Errorf("requested a certificate, and cannot be looked up: %w", err)
	}
	if is.UID != spec.NodeUID {
		return fmt.Errorf("requested a certificate for a node with UID %s, and has UID %s", spec.NodeUID, is.UID)
	}
	pod, err := n.lookup(ctx, a.GetNamespace(), spec.PodName, spec.PodUID)
	if err != nil {
		return fmt.Errorf("requested a certificate for pod %s, which cannot be looked up: %w", spec.PodName, err)
	}
	_, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]
	switch {
	case pod.UID != spec.PodUID:
		return fmt.Errorf("requested a certificate for pod %s with UID %s, which is not there", spec.PodName,
			spec.PodUID)
	case pod.Spec.NodeName != node:
		return fmt.Errorf("requested a certificate for pod %s, which does not run on it", spec.PodName)
	case mirror:
		return fmt.Errorf("requested a certificate for pod %s, which is a mirror pod", spec.PodName)
	case pod.Spec.ServiceAccountName != spec.ServiceAccountName:
		return fmt.Errorf("requested a certificate of service account %s for a pod that runs as %s",
			spec.ServiceAccountName, pod.Spec.ServiceAccountName)
	}
	account, err := n.accounts.ServiceAccounts(a.GetNamespace()).Get(spec.ServiceAccountName)
	if apierrors.IsNotFound(err) || err == nil && account.UID != spec.ServiceAccountUID {
		account, err = n.client.CoreV1().ServiceAccounts(a.GetNamespace()).Get(ctx, spec.ServiceAccountName,
			metav1.GetOptions{})
	}
	if err != nil {
		return fmt.Errorf("requested a certificate of service account %s, which cannot be looked up: %w",
			spec.ServiceAccountName, err)
	}
	if account.UID != spec.ServiceAccountUID {
		return fmt.Errorf("requested a certificate of service account %s with UID %s, which is not there",
			spec.ServiceAccountName, spec.ServiceAccountUID)
	}
	if mountsCertificate(pod, spec.SignerName) {
		return nil
	}
	return n.mayRequest(ctx, a, r)
}

func mountsCertificate(pod *corev1.Pod, signer string) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.Projected != nil && slices.ContainsFunc(v.Projected.Sources, func(s corev1.VolumeProjection) bool {
			return s.PodCertificate != nil && s.PodCertificate.SignerName == signer
		})
	})
}

// mayRequest checks that a node may request certificates of a signer that no volume of the pod
// names. Drivers do that in the name of pods. In the rule, the signer is the resource name, which
// can hold no slash.
func (n *NodeRestriction) mayRequest(
	ctx context.Context, a admission.Attributes, r *certificatesv1.PodCertificateRequest,
) error {
	decision, _, err := n.authz.Authorize(ctx, authorizer.AttributesRecord{
		User: a.GetUserInfo(), Verb: "request-serviceaccounts-podcertificate-signer",
		APIGroup: a.GetResource().Group, APIVersion: a.GetResource().Version,
		Resource:  strings.ReplaceAll(r.Spec.SignerName, "/", ":"),
		Namespace: a.GetNamespace(), Name: r.Spec.ServiceAccountName, ResourceRequest: true,
	})
	switch {
	case decision == authorizer.DecisionAllow:
		return nil
	case err != nil:
		return fmt.Errorf("requested a certificate by signer %s, and what it may do cannot be told: %w",
			r.Spec.SignerName, err)
	}
	return fmt.Errorf("requested a certificate by signer %s, which no podCertificate volume of pod %s names",
		r.Spec.SignerName, r.Spec.PodName)
}
