package certificates

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"github.com/barque/barque/apiserver/groups/validation"
	"github.com/barque/barque/apiserver/resource"
)

// Limits of a request by a pod.
const (
	defaultExpiration = 24 * 60 * 60 // seconds
	largestRequest    = 10 * 1024
	largestChain      = 100 * 1024
	longestUID        = 128
)

func podRequests() resource.Resource {
	return &resource.Kind[certificatesv1.PodCertificateRequest]{
		GroupVersion:    version,
		Name:            "podcertificaterequests",
		Singular:        "podcertificaterequest",
		List:            &certificatesv1.PodCertificateRequestList{},
		VersionedUpdate: true,
		Default: func(r *certificatesv1.PodCertificateRequest) {
			if r.Spec.MaxExpirationSeconds == nil {
				r.Spec.MaxExpirationSeconds = ptr.To[int32](defaultExpiration)
			}
		},
		Validate: validatePodRequest,
		Status: &resource.Status[certificatesv1.PodCertificateRequest]{
			Prepare: func(_ context.Context, r, old *certificatesv1.PodCertificateRequest) {
				metav1.ResetObjectMetaForStatus(&r.ObjectMeta, &old.ObjectMeta)
			},
			Validate: func(_ context.Context, r, old *certificatesv1.PodCertificateRequest) field.ErrorList {
				return validatePodRequestStatus(r, old, time.Now())
			},
			Reset: []fieldpath.Path{fieldpath.MakePathOrDie("metadata")},
		},
		Fields: func(r *certificatesv1.PodCertificateRequest) fields.Set {
			return fields.Set{
				"spec.signerName": r.Spec.SignerName,
				"spec.podName":    r.Spec.PodName,
				"spec.nodeName":   string(r.Spec.NodeName),
			}
		},
		Columns: []metav1.TableColumnDefinition{
			resource.Name(),
			resource.Column("PodName", "string", "The pod that the certificate is for."),
			resource.Column("ServiceAccountName", "string", "The service account of the pod."),
			resource.Column("NodeName", "string", "The node that the pod runs on."),
			resource.Column("SignerName", "string", "The signer that is asked."),
			resource.Column("State", "string", "How far the request has come."),
			resource.WideColumn("UnverifiedUserAnnotations", "string", "What the pod wants to tell the signer."),
		},
		Row: func(r *certificatesv1.PodCertificateRequest, _ time.Time) []any {
			return []any{r.Name, r.Spec.PodName, r.Spec.ServiceAccountName, string(r.Spec.NodeName), r.Spec.SignerName,
				podRequestState(r), labels.FormatLabels(r.Spec.UnverifiedUserAnnotations)}
		},
	}
}

// podRequestState is the condition that ends the request, or Pending.
func podRequestState(r *certificatesv1.PodCertificateRequest) string {
	state := "Pending"
	for _, c := range r.Status.Conditions {
		switch c.Type {
		case certificatesv1.PodCertificateRequestConditionTypeIssued,
			certificatesv1.PodCertificateRequestConditionTypeDenied,
			certificatesv1.PodCertificateRequestConditionTypeFailed:
			state = c.Type
		}
	}
	return state
}

func validatePodRequest(_ context.Context, r, old *certificatesv1.PodCertificateRequest) field.ErrorList {
	errs := validation.Meta(r, old, true, validation.SubdomainName)
	spec, at := &r.Spec, field.NewPath("spec")
	if old != nil {
		return append(errs, validation.Immutable(spec, &old.Spec, at)...)
	}
	errs = append(errs, validation.SignerName(spec.SignerName, at.Child("signerName"))...)
	errs = append(errs,
		validation.UserAnnotations(spec.UnverifiedUserAnnotations, at.Child("unverifiedUserAnnotations"))...)
	for _, of := range []struct {
		kind, name string
		uid        types.UID
	}{
		{"pod", spec.PodName, spec.PodUID},
		{"serviceAccount", spec.ServiceAccountName, spec.ServiceAccountUID},
		{"node", string(spec.NodeName), spec.NodeUID},
	} {
		errs = append(errs, validation.Check(of.name, at.Child(of.kind+"Name"), utilvalidation.IsDNS1123Subdomain)...)
		uid := at.Child(of.kind + "UID")
		if of.uid == "" {
			errs = append(errs, field.Invalid(uid, of.uid, "must not be empty"))
		}
		if len(of.uid) > longestUID {
			errs = append(errs, field.TooLong(uid, of.uid, longestUID))
		}
	}
	errs = append(errs, validateExpiration(spec, at.Child("maxExpirationSeconds"))...)
	return append(errs, validateStubRequest(spec.StubPKCS10Request, at)...)
}

func validateExpiration(spec *certificatesv1.PodCertificateRequestSpec, at *field.Path) field.ErrorList {
	if spec.MaxExpirationSeconds == nil {
		return field.ErrorList{field.Required(at, "must be set")}
	}
	most := validation.LongestPodCertificate(spec.SignerName)
	if s := *spec.MaxExpirationSeconds; s < validation.ShortestPodCertificate || s > most {
		return field.ErrorList{
			field.Invalid(at, s, fmt.Sprintf("must be in the range [%d, %d]", validation.ShortestPodCertificate, most))}
	}
	return nil
}

// validateStubRequest checks the request whose only content is a public key and the proof that
// the node has the private one.
func validateStubRequest(der []byte, spec *field.Path) field.ErrorList {
	at := spec.Child("stubPKCS10Request")
	if len(der) == 0 {
		return field.ErrorList{
			field.Invalid(spec, field.OmitValueType{},
				"exactly one of (stubPKCS10Request) or (pkixPublicKey, proofOfPossession) must be set")}
	}
	if len(der) > largestRequest {
		return field.ErrorList{field.TooLong(at, der, largestRequest)}
	}
	r, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return field.ErrorList{field.Invalid(at, field.OmitValueType{}, "must be a valid PKCS#10 CSR")}
	}
	switch key := r.PublicKey.(type) {
	case ed25519.PublicKey:
	case *ecdsa.PublicKey:
		if key.Curve != elliptic.P256() && key.Curve != elliptic.P384() && key.Curve != elliptic.P521() {
			return field.ErrorList{
				field.Invalid(at, "curve "+key.Curve.Params().Name,
					"elliptic public keys must use curve P256, P384, or P521")}
		}
	case *rsa.PublicKey:
		if bits := key.Size() * 8; bits != 3072 && bits != 4096 {
			return field.ErrorList{
				field.Invalid(at, fmt.Sprintf("%d-bit modulus", bits), "RSA keys must have modulus size 3072 or 4096")}
		}
	default:
		return field.ErrorList{
			field.Invalid(at, field.OmitValueType{},
				"unknown public key type; supported types are Ed25519, ECDSA, and RSA")}
	}
	if r.CheckSignature() != nil {
		return field.ErrorList{field.Invalid(at, field.OmitValueType{}, "invalid signature")}
	}
	return nil
}
