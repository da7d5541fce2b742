package certificates

import (
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net/mail"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/barque/barque/apiserver/groups/validation"
)

const (
	// refreshMargin is how far from both ends of its life a certificate must be refreshed.
	refreshMargin = 10 * time.Minute
	// clockSkew is how far the clock of a signer may be off.
	clockSkew = 5 * time.Minute
)

// ends are the conditions that end a request. A request has one of them at most, and it is true.
var ends = []string{
	certificatesv1.PodCertificateRequestConditionTypeIssued,
	certificatesv1.PodCertificateRequestConditionTypeDenied,
	certificatesv1.PodCertificateRequestConditionTypeFailed,
}

// end returns the condition that has ended a request.
func end(r *certificatesv1.PodCertificateRequest) string {
	for _, c := range r.Status.Conditions {
		if slices.Contains(ends, c.Type) && c.Status == metav1.ConditionTrue {
			return c.Type
		}
	}
	return ""
}

// validatePodRequestStatus checks a step of a request: it goes from pending to a final state, once.
func validatePodRequestStatus(r, old *certificatesv1.PodCertificateRequest, now time.Time) field.ErrorList {
	at := field.NewPath("status")
	if errs := validateEnds(r.Status.Conditions, at); len(errs) > 0 {
		return errs
	}
	differs := func(than certificatesv1.PodCertificateRequestStatus, detail string) field.ErrorList {
		if apiequality.Semantic.DeepEqual(r.Status, than) {
			return nil
		}
		return field.ErrorList{field.Invalid(at, field.OmitValueType{}, detail)}
	}
	switch {
	case end(old) != "":
		return differs(old.Status, "immutable after PodCertificateRequest is issued, denied, or failed")
	case end(r) == certificatesv1.PodCertificateRequestConditionTypeIssued:
		return validateIssued(r, old, at, now)
	case end(r) != "":
		return differs(certificatesv1.PodCertificateRequestStatus{Conditions: r.Status.Conditions},
			"non-condition status fields must be empty when denying or failing the PodCertificateRequest")
	}
	return differs(old.Status, `status is immutable unless transitioning to "Issued", "Denied", or "Failed"`)
}

func validateEnds(conditions []metav1.Condition, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	known := 0
	for i, c := range conditions {
		at := field.NewPath("status", "conditions", fmt.Sprintf("[%d]", i))
		if !slices.Contains(ends, c.Type) {
			errs = append(errs, field.NotSupported(at.Child("type"), c.Type, ends))
			continue
		}
		if known++; known > 1 {
			errs = append(errs,
				field.Invalid(at.Child("type"), c.Type,
					`There may be at most one condition with type "Issued", "Denied", or "Failed"`))
		}
		if c.Status != metav1.ConditionTrue {
			errs = append(errs,
				field.NotSupported(at.Child("status"), c.Status, []metav1.ConditionStatus{metav1.ConditionTrue}))
		}
	}
	return append(errs, metav1validation.ValidateConditions(conditions, at.Child("conditions"))...)
}

// validateIssued checks an issued chain and the times that go with it.
func validateIssued(r, old *certificatesv1.PodCertificateRequest, at *field.Path, now time.Time) field.ErrorList {
	chain := r.Status.CertificateChain
	chainAt := at.Child("certificateChain")
	if len(chain) > largestChain {
		return field.ErrorList{field.TooLong(chainAt, chain, largestChain)}
	}
	certs, problem := parseChain(chain)
	if len(certs) == 0 {
		return field.ErrorList{field.Invalid(chainAt, chain, problem)}
	}
	leaf := certs[0]
	errs := validateNames(leaf, chainAt)
	request, err := x509.ParseCertificateRequest(old.Spec.StubPKCS10Request)
	if err != nil {
		return append(errs,
			field.Invalid(field.NewPath("spec", "stubPKCS10Request"), field.OmitValueType{},
				"must be a valid PKCS#10 CSR"))
	}
	asked, ok := request.PublicKey.(interface{ Equal(crypto.PublicKey) bool })
	if !ok || !asked.Equal(leaf.PublicKey) {
		return append(errs,
			field.Invalid(chainAt, chain, "leaf certificate was not issued to the requested public key"))
	}
	if errs = append(errs, validateTimes(r, leaf, at, now)...); len(errs) == 0 && problem != "" {
		errs = append(errs, field.Invalid(chainAt, chain, problem))
	}
	return errs
}

// parseChain returns the certificates up to the first with a fault, and the fault.
func parseChain(chain string) (certs []*x509.Certificate, problem string) {
	for block, rest := pem.Decode([]byte(chain)); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != certificateBlock {
			return certs, "issued certificate chain must consist entirely of CERTIFICATE PEM blocks"
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		switch {
		case err != nil && len(certs) == 0:
			return nil, "leaf certificate does not parse as valid X.509"
		case err != nil:
			return certs, "intermediate certificate does not parse as valid X.509"
		}
		certs = append(certs, cert)
	}
	if len(certs) == 0 {
		problem = "issued certificate chain must contain at least one certificate"
	}
	return certs, problem
}

func validateNames(leaf *x509.Certificate, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, name := range leaf.DNSNames {
		if name == "" {
			errs = append(errs, field.Invalid(at, name, "leaf certificate should not contain empty DNSName"))
		}
		if strings.Contains(name, "..") {
			errs = append(errs, field.Invalid(at, name, "leaf certificate's DNSName should not contain '..'"))
		}
		if strings.HasPrefix(name, ".") || strings.HasSuffix(name, ".") {
			errs = append(errs, field.Invalid(at, name, "leaf certificate's DNSName should not start or end with '.'"))
		}
	}
	for _, address := range leaf.EmailAddresses {
		if _, err := mail.ParseAddress(address); err != nil {
			errs = append(errs, field.Invalid(at, address, "leaf certificate should not contain invalid EmailAddress"))
		}
	}
	return errs
}

// validateTimes checks that the status has the times of the certificate, and that these suit
// the request.
func validateTimes(
	r *certificatesv1.PodCertificateRequest, leaf *x509.Certificate, at *field.Path, now time.Time,
) field.ErrorList {
	s := &r.Status
	var errs field.ErrorList
	before, after, refresh := at.Child("notBefore"), at.Child("notAfter"), at.Child("beginRefreshAt")
	if s.NotBefore == nil {
		errs = append(errs, field.Required(before, "must be present and consistent with the issued certificate"))
	}
	if s.NotAfter == nil {
		errs = append(errs, field.Required(after, "must be present and consistent with the issued certificate"))
	}
	if s.BeginRefreshAt == nil {
		errs = append(errs,
			field.Required(refresh, "must be present and in the range [notbefore+10min, notafter-10min]"))
	}
	if len(errs) > 0 {
		return errs
	}
	lifetime := leaf.NotAfter.Sub(leaf.NotBefore)
	longest := time.Duration(*r.Spec.MaxExpirationSeconds) * time.Second
	switch {
	case !s.NotBefore.Time.Equal(leaf.NotBefore):
		return field.ErrorList{
			field.Invalid(before, s.NotBefore.Time,
				"must be set to the NotBefore time encoded in the leaf certificate")}
	case s.NotBefore.Sub(now).Abs() >= clockSkew:
		return field.ErrorList{
			field.Invalid(before, s.NotBefore.Time, "must be set to within 5 minutes of kube-apiserver's current time")}
	case !s.NotAfter.Time.Equal(leaf.NotAfter):
		return field.ErrorList{
			field.Invalid(after, s.NotAfter.Time, "must be set to the NotAfter time encoded in the leaf certificate")}
	case lifetime < validation.ShortestPodCertificate*time.Second:
		return field.ErrorList{
			field.Invalid(at.Child("certificateChain"), lifetime, "leaf certificate lifetime must be >= 1 hour")}
	case lifetime > longest:
		return field.ErrorList{field.Invalid(at.Child("certificateChain"), lifetime,
			fmt.Sprintf("leaf certificate lifetime must be <= spec.maxExpirationSeconds (%v)",
				*r.Spec.MaxExpirationSeconds))}
	case s.BeginRefreshAt.Time.Before(s.NotBefore.Add(refreshMargin)):
		return field.ErrorList{
			field.Invalid(refresh, s.BeginRefreshAt.Time, "must be at least 10 minutes after status.notBefore")}
	case s.BeginRefreshAt.After(s.NotAfter.Add(-refreshMargin)):
		return field.ErrorList{
			field.Invalid(refresh, s.BeginRefreshAt.Time, "must be at least 10 minutes before status.notAfter")}
	}
	return nil
}
