package subresources

import (
	"context"
	"fmt"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/barque/barque/apiserver/refusals"
	"github.com/barque/barque/apiserver/resource"
)

// Approval serves certificatesigningrequests/approval, the only way to approve or deny a request.
type Approval struct {
	requests *resource.Storage
	store    *updater
}

var (
	_ rest.Patcher             = (*Approval)(nil)
	_ rest.ResetFieldsStrategy = (*Approval)(nil)
	_ rest.TableConvertor      = (*Approval)(nil)
)

// NewApproval returns the subresource of certificate signing requests.
func NewApproval(
	requests *resource.Storage, prepare func(r, old *certificatesv1.CertificateSigningRequest),
	validate func(r, old *certificatesv1.CertificateSigningRequest) field.ErrorList,
) *Approval {
	return &Approval{requests, newUpdater(requests, prepared{
		prepare: func(_ context.Context, obj, old runtime.Object) {
			prepare(obj.(*certificatesv1.CertificateSigningRequest), old.(*certificatesv1.CertificateSigningRequest))
		},
		validate: func(_ context.Context, obj, old runtime.Object) field.ErrorList {
			return validate(obj.(*certificatesv1.CertificateSigningRequest),
				old.(*certificatesv1.CertificateSigningRequest))
		},
	})}
}

// New implements rest.Storage.
func (a *Approval) New() runtime.Object { return &certificatesv1.CertificateSigningRequest{} }

// Destroy implements rest.Storage; the store is its parent's.
func (a *Approval) Destroy() {}

// Get implements rest.Getter.
func (a *Approval) Get(ctx context.Context, name string, options *metav1.GetOptions) (runtime.Object, error) {
	return a.requests.Get(ctx, name, options)
}

// Update implements rest.Updater.
func (a *Approval) Update(
	ctx context.Context, name string, info rest.UpdatedObjectInfo, create rest.ValidateObjectFunc,
	update rest.ValidateObjectUpdateFunc, _ bool, options *metav1.UpdateOptions,
) (runtime.Object, bool, error) {
	return a.store.Update(ctx, name, info, create, update, false, options)
}

// ConvertToTable implements rest.TableConvertor.
func (a *Approval) ConvertToTable(ctx context.Context, obj, options runtime.Object) (*metav1.Table, error) {
	return a.requests.ConvertToTable(ctx, obj, options)
}

// GetResetFields implements rest.ResetFieldsStrategy.
func (a *Approval) GetResetFields() map[fieldpath.APIVersion]*fieldpath.Set {
	return map[fieldpath.APIVersion]*fieldpath.Set{
		fieldpath.APIVersion(certificatesv1.SchemeGroupVersion.String()): fieldpath.NewSet(
			fieldpath.MakePathOrDie("spec"), fieldpath.MakePathOrDie("status", "certificate")),
	}
}

// MaySign returns an error for a change of the status of a pod's request by a user that may not
// sign for its signer.
func MaySign(
	ctx context.Context, authz authorizer.Authorizer, r, old *certificatesv1.PodCertificateRequest,
) field.ErrorList {
	if apiequality.Semantic.DeepEqual(r.Status, old.Status) {
		return nil
	}
	at, signer := field.NewPath("spec", "signerName"), old.Spec.SignerName
	who, ok := request.UserFrom(ctx)
	if !ok {
		return field.ErrorList{
			field.InternalError(at, fmt.Errorf("cannot determine calling user to perform %q check", "sign"))}
	}
	domain, _, _ := strings.Cut(signer, "/")
	for ctx, name := range refusals.Questions(ctx, signer, domain+"/*") {
		if allowed(ctx, authz, who, name) {
			return nil
		}
	}
	return field.ErrorList{
		field.Forbidden(at, fmt.Sprintf("User %q is not permitted to \"sign\" for signer %q", who.GetName(), signer))}
}

// allowed reports whether a user may sign for a signer.
func allowed(ctx context.Context, authz authorizer.Authorizer, who user.Info, signer string) bool {
	decision, _, err := authz.Authorize(ctx, authorizer.AttributesRecord{
		User:            who,
		Verb:            "sign",
		Name:            signer,
		APIGroup:        certificatesv1.GroupName,
		APIVersion:      "*",
		Resource:        "signers",
		ResourceRequest: true,
	})
	return err == nil && decision == authorizer.DecisionAllow
}
