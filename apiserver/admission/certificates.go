package admission

import (
	"context"
	"crypto/x509"
	"encoding/asn1"
	"fmt"
	"slices"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/barque/barque/apiserver/groups/certificates"
	"github.com/barque/barque/apiserver/rbac"
	"github.com/barque/barque/apiserver/refusals"
	"github.com/barque/barque/internal/caller"
	"github.com/barque/barque/internal/clusterusers"
)

var (
	signingRequests = schema.GroupResource{Group: certificatesv1.GroupName, Resource: "certificatesigningrequests"}
	podRequests     = schema.GroupResource{Group: certificatesv1.GroupName, Resource: "podcertificaterequests"}
	trustBundles    = schema.GroupResource{Group: certificatesv1.GroupName, Resource: "clustertrustbundles"}
)

// CertificateApproval refuses to approve or deny a request unless the user may "approve" for
// its signer.
type CertificateApproval struct {
	*admission.Handler
	authz authorizer.UnconditionalAuthorizer
}

// CertificateSigning refuses to write the certificate and the conditions of a request unless the
// user may "sign" for its signer.
type CertificateSigning struct {
	*admission.Handler
	authz authorizer.UnconditionalAuthorizer
}

// TrustBundleAttest refuses to write a trust bundle of a signer unless the user may "attest"
// for it.
type TrustBundleAttest struct {
	*admission.Handler
	authz authorizer.UnconditionalAuthorizer
}

// CertificateSubjects refuses requests for client certificates whose rights are above all
// roles: those of the group system:masters, and those with a name of Barque's own, or of the
// control plane.
type CertificateSubjects struct{ *admission.Handler }

var (
	_ admission.ValidationInterface = (*CertificateApproval)(nil)
	_ admission.ValidationInterface = (*CertificateSigning)(nil)
	_ admission.ValidationInterface = (*TrustBundleAttest)(nil)
	_ admission.ValidationInterface = (*CertificateSubjects)(nil)
)

// NewCertificateApproval returns the step.
func NewCertificateApproval(authz authorizer.UnconditionalAuthorizer) *CertificateApproval {
	return &CertificateApproval{admission.NewHandler(admission.Update), authz}
}

// NewCertificateSigning returns the step.
func NewCertificateSigning(authz authorizer.UnconditionalAuthorizer) *CertificateSigning {
	return &CertificateSigning{admission.NewHandler(admission.Update), authz}
}

// NewTrustBundleAttest returns the step.
func NewTrustBundleAttest(authz authorizer.UnconditionalAuthorizer) *TrustBundleAttest {
	return &TrustBundleAttest{admission.NewHandler(admission.Create, admission.Update), authz}
}

// NewCertificateSubjects returns the step.
func NewCertificateSubjects() *CertificateSubjects {
	return &CertificateSubjects{admission.NewHandler(admission.Create)}
}

// Validate implements admission.ValidationInterface. The stored signer counts: an update may try to
// name another one.
func (c *CertificateApproval) Validate(
	ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces,
) error {
	if a.GetResource().GroupResource() != signingRequests || a.GetSubresource() != "approval" {
		return nil
	}
	old, ok := a.GetOldObject().(*certificatesv1.CertificateSigningRequest)
	if !ok {
		return unexpected(a, a.GetOldObject(), "CertificateSigningRequest")
	}
	if !mayUseSigner(ctx, c.authz, a.GetUserInfo(), "approve", old.Spec.SignerName) {
		return admission.NewForbidden(a,
			fmt.Errorf("user not permitted to approve requests with signerName %q", old.Spec.SignerName))
	}
	return nil
}

// Validate implements admission.ValidationInterface.
func (c *CertificateSigning) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != signingRequests || a.GetSubresource() != "status" {
		return nil
	}
	old, ok := a.GetOldObject().(*certificatesv1.CertificateSigningRequest)
	if !ok {
		return unexpected(a, a.GetOldObject(), "CertificateSigningRequest")
	}
	r, ok := a.GetObject().(*certificatesv1.CertificateSigningRequest)
	if !ok {
		return unexpected(a, a.GetObject(), "CertificateSigningRequest")
	}
	if slices.Equal(r.Status.Certificate, old.Status.Certificate) &&
		apiequality.Semantic.DeepEqual(r.Status.Conditions, old.Status.Conditions) {
		return nil
	}
	if !mayUseSigner(ctx, c.authz, a.GetUserInfo(), "sign", old.Spec.SignerName) {
		return admission.NewForbidden(a,
			fmt.Errorf("user not permitted to sign requests with signerName %q", old.Spec.SignerName))
	}
	return nil
}

// Validate implements admission.ValidationInterface. A bundle cannot change its signer, so the new
// object names it.
func (t *TrustBundleAttest) Validate(ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces) error {
	if a.GetResource().GroupResource() != trustBundles {
		return nil
	}
	bundle, ok := a.GetObject().(*certificatesv1.ClusterTrustBundle)
	if !ok {
		return unexpected(a, a.GetObject(), "ClusterTrustBundle")
	}
	if bundle.Spec.SignerName == "" ||
		a.GetOperation() == admission.Update && onlyCollected(a.GetObject(), a.GetOldObject()) {
		return nil
	}
	if !mayUseSigner(ctx, t.authz, a.GetUserInfo(), "attest", bundle.Spec.SignerName) {
		return admission.NewForbidden(a,
			fmt.Errorf("user not permitted to attest for signerName %q", bundle.Spec.SignerName))
	}
	return nil
}

// ownNames begin the names of Barque's certificates. Servers trust each other, and extension API
// servers trust them, by such a name: see ServersOrganization and ProxyClientName.
const ownNames = "barque:"

// Validate implements admission.ValidationInterface.
func (c *CertificateSubjects) Validate(
	ctx context.Context, a admission.Attributes, _ admission.ObjectInterfaces,
) error {
	if a.GetResource().GroupResource() != signingRequests || a.GetSubresource() != "" {
		return nil
	}
	r, ok := a.GetObject().(*certificatesv1.CertificateSigningRequest)
	if !ok {
		return unexpected(a, a.GetObject(), "CertificateSigningRequest")
	}
	// The cluster's CA signs for all of these.
	signer := r.Spec.SignerName
	if !strings.HasPrefix(signer, "kubernetes.io/") {
		return nil
	}
	request, err := certificates.ParseRequest(r.Spec.Request)
	switch {
	case err == nil:
	case signer == certificatesv1.KubeAPIServerClientSignerName:
		return admission.NewForbidden(a, fmt.Errorf("failed to parse CSR: %w", err))
	default:
		return nil // validation refuses it
	}
	if signer == certificatesv1.KubeAPIServerClientSignerName &&
		slices.Contains(request.Subject.Organization, user.SystemPrivilegedGroup) {
		return admission.NewForbidden(a,
			fmt.Errorf("use of %s signer with system:masters group is not allowed", signer))
	}
	admins := signer == certificatesv1.KubeAPIServerClientSignerName && a.GetUserInfo() != nil &&
		clusterusers.HasAdmin(a.GetUserInfo().GetGroups()) && senderIsAdmin(ctx)
	for _, name := range subjectNames(request, admins) {
		if rbac.IsOwnUser(name) {
			return admission.NewForbidden(a,
				fmt.Errorf(
					"use of %s signer with the name %s is not allowed: it is a part of the control plane, and runs in the servers", signer, name))
		}
		if strings.HasPrefix(name, ownNames) {
			if name == clusterusers.AdminGroup {
				return admission.NewForbidden(a,
					fmt.Errorf(
						"use of %s signer with the name %s is not allowed: only administrators may request it, and as an organization for the signer %s", signer, name, certificatesv1.KubeAPIServerClientSignerName))
			}
			return admission.NewForbidden(a,
				fmt.Errorf(
					"use of %s signer with the name %s is not allowed: names that begin with %s are those of the cluster's servers", signer, name, ownNames))
		}
	}
	return nil
}

// senderIsAdmin reports whether the sender of a request is an administrator, whomever it
// impersonates: the right to impersonate administrators is no right to become one. A request
// without a sender is not refused for that.
func senderIsAdmin(ctx context.Context) bool {
	from, ok := caller.From(ctx)
	return !ok || clusterusers.HasAdmin(from.GetGroups())
}

// organization is the attribute of a subject that is a group.
var organization = asn1.ObjectIdentifier{2, 5, 4, 10}

// subjectNames are all texts of the subject. A duplicate counts each time, because readers differ
// in the one that they take. With admins, the group of administrators is left out.
func subjectNames(r *x509.CertificateRequest, admins bool) []string {
	names := []string{r.Subject.CommonName}
	for _, attribute := range r.Subject.Names {
		if text, ok := attribute.Value.(string); ok &&
			!(admins && text == clusterusers.AdminGroup && attribute.Type.Equal(organization)) {
			names = append(names, text)
		}
	}
	return names
}

// mayUseSigner reports whether a user may use a verb for a signer, by its name or as one of all
// signers of its domain.
func mayUseSigner(
	ctx context.Context, authz authorizer.UnconditionalAuthorizer, who user.Info, verb, signer string,
) bool {
	domain, _, _ := strings.Cut(signer, "/")
	for ctx, name := range refusals.Questions(ctx, signer, domain+"/*") {
		decision, _, err := authz.Authorize(ctx, authorizer.AttributesRecord{
			User: who, Verb: verb, Name: name,
			APIGroup: certificatesv1.GroupName, APIVersion: "*", Resource: "signers", ResourceRequest: true,
		})
		if err == nil && decision == authorizer.DecisionAllow {
			return true
		}
	}
	return false
}

// onlyCollected reports whether an update changes only fields that garbage collection uses.
func onlyCollected(obj, old runtime.Object) bool {
	changed := obj.DeepCopyObject()
	is, err := meta.Accessor(changed)
	if err != nil {
		return false
	}
	was, err := meta.Accessor(old)
	if err != nil {
		return false
	}
	is.SetOwnerReferences(was.GetOwnerReferences())
	is.SetFinalizers(was.GetFinalizers())
	is.SetManagedFields(was.GetManagedFields())
	return apiequality.Semantic.DeepEqual(changed, old)
}

// unexpected is the answer to a request whose object has another type than its resource.
func unexpected(a admission.Attributes, got runtime.Object, kind string) error {
	return admission.NewForbidden(a, fmt.Errorf("expected type %s, got: %T", kind, got))
}
