package certificates

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/util/diff"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/barque/barque/apiserver/groups/validation"
)

// shortestLifetime is the least lifetime that a request may have, in seconds.
const shortestLifetime = 600

// changes are the parts of a stored request that an update may change.
type changes struct{ approval, certificate bool }

func validateRequest(r, old *certificatesv1.CertificateSigningRequest, may changes) field.ErrorList {
	errs := validation.Meta(r, old, false, func(string, bool) []string { return nil })
	errs = append(errs, validateRequestSpec(&r.Spec, field.NewPath("spec"))...)
	errs = append(errs, validateRequestConditions(r, field.NewPath("status", "conditions"))...)
	at := field.NewPath("status", "certificate")
	if old == nil || !bytes.Equal(r.Status.Certificate, old.Status.Certificate) {
		if err := checkCertificates(r.Status.Certificate); err != nil {
			errs = append(errs, field.Invalid(at, "<certificate data>", err.Error()))
		}
	}
	if old == nil {
		return errs
	}
	errs = append(errs, validateApprovalChange(r, old, may, field.NewPath("status", "conditions"))...)
	switch {
	case bytes.Equal(r.Status.Certificate, old.Status.Certificate):
	case !may.certificate:
		errs = append(errs, field.Forbidden(at, "updates may not set certificate content"))
	case len(old.Status.Certificate) > 0:
		errs = append(errs, field.Forbidden(at, "updates may not modify existing certificate content"))
	}
	return errs
}

func validateRequestSpec(spec *certificatesv1.CertificateSigningRequestSpec, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	if err := checkRequest(spec.Request); err != nil {
		errs = append(errs, field.Invalid(at.Child("request"), spec.Request, err.Error()))
	}
	if len(spec.Usages) == 0 {
		errs = append(errs, field.Required(at.Child("usages"), ""))
	}
	for i, usage := range spec.Usages {
		at := at.Child("usages").Index(i)
		if !slices.Contains(usages, usage) {
			errs = append(errs, field.NotSupported(at, usage, usages))
		}
		if slices.Contains(spec.Usages[:i], usage) {
			errs = append(errs, field.Duplicate(at, usage))
		}
	}
	if spec.SignerName == legacySigner {
		errs = append(errs,
			field.Invalid(at.Child("signerName"), spec.SignerName,
				"the legacy signerName is not allowed via this API version"))
	} else {
		errs = append(errs, validation.SignerName(spec.SignerName, at.Child("signerName"))...)
	}
	if s := spec.ExpirationSeconds; s != nil && *s < shortestLifetime {
		errs = append(errs,
			field.Invalid(at.Child("expirationSeconds"), *s,
				"may not specify a duration less than 600 seconds (10 minutes)"))
	}
	return errs
}

// legacySigner is the signer of requests that named none, when that was allowed.
const legacySigner = "kubernetes.io/legacy-unknown"

// usages that a request may have, in order.
var usages = sorted(
	certificatesv1.UsageSigning, certificatesv1.UsageDigitalSignature, certificatesv1.UsageContentCommitment,
	certificatesv1.UsageKeyEncipherment, certificatesv1.UsageKeyAgreement, certificatesv1.UsageDataEncipherment,
	certificatesv1.UsageCertSign, certificatesv1.UsageCRLSign, certificatesv1.UsageEncipherOnly,
	certificatesv1.UsageDecipherOnly,
	certificatesv1.UsageAny, certificatesv1.UsageServerAuth, certificatesv1.UsageClientAuth,
	certificatesv1.UsageCodeSigning,
	certificatesv1.UsageEmailProtection, certificatesv1.UsageSMIME, certificatesv1.UsageIPsecEndSystem,
	certificatesv1.UsageIPsecTunnel,
	certificatesv1.UsageIPsecUser, certificatesv1.UsageTimestamping, certificatesv1.UsageOCSPSigning,
	certificatesv1.UsageMicrosoftSGC, certificatesv1.UsageNetscapeSGC)

func sorted(list ...certificatesv1.KeyUsage) []certificatesv1.KeyUsage {
	slices.Sort(list)
	return list
}

// ParseRequest parses a request for a certificate in PEM. It does not verify the signature.
func ParseRequest(data []byte) (*x509.CertificateRequest, error) {
	block, _ := pem.Decode(data)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, errors.New("PEM block type must be CERTIFICATE REQUEST")
	}
	return x509.ParseCertificateRequest(block.Bytes)
}

// checkRequest parses a request in PEM and verifies its signature.
func checkRequest(data []byte) error {
	r, err := ParseRequest(data)
	if err != nil {
		return err
	}
	return r.CheckSignature()
}

// checkCertificates parses a chain of certificates in PEM. An empty one is accepted.
func checkCertificates(data []byte) error {
	if len(data) == 0 {
		return nil
	}
	blocks := 0
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != certificateBlock {
			return fmt.Errorf("only CERTIFICATE PEM blocks are allowed, found %q", block.Type)
		}
		if len(block.Headers) > 0 {
			return errors.New("no PEM block headers are permitted")
		}
		certs, err := x509.ParseCertificates(block.Bytes)
		if err != nil {
			return err
		}
		if len(certs) == 0 {
			return errors.New("found CERTIFICATE PEM block containing 0 certificates")
		}
		blocks++
	}
	if blocks == 0 {
		return errors.New("must contain at least one CERTIFICATE PEM block")
	}
	return nil
}

const certificateBlock = "CERTIFICATE"

// decided are the conditions that can only be true.
var decided = []certificatesv1.RequestConditionType{certificatesv1.CertificateApproved,
	certificatesv1.CertificateDenied, certificatesv1.CertificateFailed}

func validateRequestConditions(r *certificatesv1.CertificateSigningRequest, list *field.Path) field.ErrorList {
	var errs field.ErrorList
	seen := map[certificatesv1.RequestConditionType]bool{}
	for i, c := range r.Status.Conditions {
		at := list.Index(i)
		if c.Type == "" {
			errs = append(errs, field.Required(at.Child("type"), ""))
		}
		allowed := []corev1.ConditionStatus{corev1.ConditionFalse, corev1.ConditionTrue, corev1.ConditionUnknown}
		if slices.Contains(decided, c.Type) {
			allowed = []corev1.ConditionStatus{corev1.ConditionTrue}
		}
		errs = append(errs, validation.Enum(c.Status, at.Child("status"), allowed...)...)
		if seen[c.Type] {
			errs = append(errs, field.Duplicate(at.Child("type"), c.Type))
		}
		opposite := map[certificatesv1.RequestConditionType]certificatesv1.RequestConditionType{
			certificatesv1.CertificateApproved: certificatesv1.CertificateDenied,
			certificatesv1.CertificateDenied:   certificatesv1.CertificateApproved,
		}[c.Type]
		if opposite != "" && seen[opposite] {
			errs = append(errs, field.Invalid(list, c.Type, "Approved and Denied conditions are mutually exclusive"))
		}
		seen[c.Type] = true
	}
	return errs
}

// validateApprovalChange keeps decisions: none can be taken back, and only the approval
// subresource can add one.
func validateApprovalChange(
	r, old *certificatesv1.CertificateSigningRequest, may changes, at *field.Path,
) field.ErrorList {
	var errs field.ErrorList
	for _, t := range decided {
		was, is := conditions(old, t), conditions(r, t)
		switch {
		case len(is) < len(was):
			errs = append(errs, field.Forbidden(at, fmt.Sprintf("updates may not remove a condition of type %q", t)))
		case may.approval || t == certificatesv1.CertificateFailed:
		case len(is) > len(was):
			errs = append(errs, field.Forbidden(at, fmt.Sprintf("updates may not add a condition of type %q", t)))
		case !apiequality.Semantic.DeepEqual(was, is):
			errs = append(errs,
				field.Forbidden(at,
					fmt.Sprintf("updates may not modify a condition of type %q\n%v", t, diff.Diff(was, is))))
		}
	}
	return errs
}

func conditions(
	r *certificatesv1.CertificateSigningRequest, t certificatesv1.RequestConditionType,
) []certificatesv1.CertificateSigningRequestCondition {
	var all []certificatesv1.CertificateSigningRequestCondition
	for _, i := range indices(r, t) {
		all = append(all, r.Status.Conditions[i])
	}
	return all
}
