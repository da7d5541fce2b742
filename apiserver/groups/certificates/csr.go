package certificates

import (
	"context"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/endpoints/request"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/barque/barque/apiserver/resource"
)

func signingRequests() resource.Resource {
	return &resource.Kind[certificatesv1.CertificateSigningRequest]{
		GroupVersion:  version,
		Name:          "certificatesigningrequests",
		Singular:      "certificatesigningrequest",
		ShortNames:    []string{"csr"},
		ClusterScoped: true,
		List:          &certificatesv1.CertificateSigningRequestList{},
		Prepare:       prepareSigningRequest,
		Validate:      validateSigningRequest,
		Reset:         []fieldpath.Path{fieldpath.MakePathOrDie("spec")},
		Status: &resource.Status[certificatesv1.CertificateSigningRequest]{
			Prepare:  prepareSigningStatus,
			Validate: validateSigningStatus,
			Reset:    []fieldpath.Path{fieldpath.MakePathOrDie("status", "conditions")},
		},
		Fields: func(r *certificatesv1.CertificateSigningRequest) fields.Set {
			return fields.Set{"spec.signerName": r.Spec.SignerName}
		},
		Columns: []metav1.TableColumnDefinition{
			resource.Name(),
			resource.Age(),
			resource.Column("SignerName", "string", "The signer that is asked."),
			resource.Column("Requestor", "string", "The user who asked."),
			resource.Column("RequestedDuration", "string", "How long the certificate should be valid."),
			resource.Column("Condition", "string", "How far the request has come."),
		},
		Row: func(r *certificatesv1.CertificateSigningRequest, now time.Time) []any {
			lifetime, signer := none, none
			if s := r.Spec.ExpirationSeconds; s != nil {
				lifetime = duration.HumanDuration(time.Duration(*s) * time.Second)
			}
			if r.Spec.SignerName != "" {
				signer = r.Spec.SignerName
			}
			return []any{r.Name, resource.Since(r.CreationTimestamp, now), signer, r.Spec.Username, lifetime,
				formatConditions(r)}
		},
	}
}

func formatConditions(r *certificatesv1.CertificateSigningRequest) string {
	has := map[certificatesv1.RequestConditionType]bool{}
	for _, c := range r.Status.Conditions {
		has[c.Type] = true
	}
	state := "Pending"
	switch {
	case has[certificatesv1.CertificateDenied]:
		state = "Denied"
	case has[certificatesv1.CertificateApproved]:
		state = "Approved"
	}
	if has[certificatesv1.CertificateFailed] {
		state += ",Failed"
	}
	if len(r.Status.Certificate) > 0 {
		state += ",Issued"
	}
	return state
}

// prepareSigningRequest records the requesting user. A later update cannot change the request.
func prepareSigningRequest(ctx context.Context, r, old *certificatesv1.CertificateSigningRequest) {
	if old != nil {
		r.Spec = old.Spec
		return
	}
	r.Spec.Username, r.Spec.UID, r.Spec.Groups, r.Spec.Extra = "", "", nil, nil
	user, ok := request.UserFrom(ctx)
	if !ok {
		return
	}
	r.Spec.Username, r.Spec.UID, r.Spec.Groups = user.GetName(), user.GetUID(), user.GetGroups()
	for key, values := range user.GetExtra() {
		if r.Spec.Extra == nil {
			r.Spec.Extra = map[string]certificatesv1.ExtraValue{}
		}
		r.Spec.Extra[key] = values
	}
}

// prepareSigningStatus keeps the approval as it is, where the update has as many conditions of it;
// validation refuses the others.
func prepareSigningStatus(_ context.Context, r, old *certificatesv1.CertificateSigningRequest) {
	for _, t := range []certificatesv1.RequestConditionType{certificatesv1.CertificateApproved,
		certificatesv1.CertificateDenied} {
		was, is := indices(old, t), indices(r, t)
		if len(was) != len(is) {
			continue
		}
		for i := range is {
			r.Status.Conditions[is[i]] = old.Status.Conditions[was[i]]
		}
	}
	stampConditions(r, old, metav1.Now())
}

// PrepareApproval lets an update of the approval change conditions only.
func PrepareApproval(r, old *certificatesv1.CertificateSigningRequest) {
	stampConditions(r, old, metav1.Now())
	conditions := r.Status.Conditions
	r.Spec, r.Status = old.Spec, old.Status
	r.Status.Conditions = conditions
}

func indices(r *certificatesv1.CertificateSigningRequest, t certificatesv1.RequestConditionType) []int {
	var all []int
	for i := range r.Status.Conditions {
		if r.Status.Conditions[i].Type == t {
			all = append(all, i)
		}
	}
	return all
}

// stampConditions fills in the times that a client left out.
func stampConditions(r, old *certificatesv1.CertificateSigningRequest, now metav1.Time) {
	for i := range r.Status.Conditions {
		c := &r.Status.Conditions[i]
		if c.LastUpdateTime.IsZero() {
			c.LastUpdateTime = now
		}
		if c.LastTransitionTime.IsZero() {
			c.LastTransitionTime = now
			for _, was := range old.Status.Conditions {
				if was.Type == c.Type && was.Status == c.Status && !was.LastTransitionTime.IsZero() {
					c.LastTransitionTime = was.LastTransitionTime
					break
				}
			}
		}
	}
}

func validateSigningRequest(_ context.Context, r, old *certificatesv1.CertificateSigningRequest) field.ErrorList {
	return validateRequest(r, old, changes{})
}

func validateSigningStatus(_ context.Context, r, old *certificatesv1.CertificateSigningRequest) field.ErrorList {
	return validateRequest(r, old, changes{certificate: true})
}

// ValidateApproval checks an update of the approval.
func ValidateApproval(r, old *certificatesv1.CertificateSigningRequest) field.ErrorList {
	return validateRequest(r, old, changes{approval: true})
}
