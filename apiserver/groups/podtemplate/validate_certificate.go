package podtemplate

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/barque/barque/apiserver/groups/validation"
)

// validateBundleProjection checks trust anchors in a volume: those of one bundle, or of a signer's
// that a selector selects.
func validateBundleProjection(s *corev1.ClusterTrustBundleProjection, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch {
	case s.Name != nil && s.SignerName != nil:
		errs = append(errs, field.Invalid(at, s, "only one of name and signerName may be used"))
	case s.Name != nil:
		if *s.Name == "" {
			errs = append(errs, field.Required(at.Child("name"), "must be a valid object name"))
		}
		// The signer is the text before the last colon.
		signer := ""
		if i := strings.LastIndex(*s.Name, ":"); i >= 0 {
			signer = strings.ReplaceAll((*s.Name)[:i], ":", "/")
		}
		for _, msg := range validation.BundleName(signer)(*s.Name, false) {
			errs = append(errs, field.Invalid(at.Child("name"), *s.Name, "not a valid clustertrustbundlename: "+msg))
		}
		if s.LabelSelector != nil {
			errs = append(errs,
				field.Invalid(at.Child("labelSelector"), s.LabelSelector,
					"labelSelector must be unset if name is specified"))
		}
	case s.SignerName != nil:
		if *s.SignerName == "" {
			errs = append(errs, field.Required(at.Child("signerName"), "must be a valid signer name"))
		}
		errs = append(errs, validation.SignerName(*s.SignerName, at.Child("signerName"))...)
		errs = append(errs, validation.LabelSelector(s.LabelSelector, at.Child("labelSelector"))...)
	default:
		errs = append(errs, field.Required(at, "either name or signerName must be specified"))
	}
	errs = append(errs, required(s.Path, at.Child("path"))...)
	return append(errs, validation.NonReservedPath(s.Path, at.Child("path"))...)
}

// keyTypes of certificates that a volume may have.
var keyTypes = []string{"RSA3072", "RSA4096", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519"}

// validateCertificateProjection checks a certificate with its key in a volume.
func validateCertificateProjection(s *corev1.PodCertificateProjection, at *field.Path) field.ErrorList {
	errs := validation.SignerName(s.SignerName, at.Child("signerName"))
	errs = append(errs, validation.UserAnnotations(s.UserAnnotations, at.Child("userAnnotations"))...)
	errs = append(errs, validation.OneOf(s.KeyType, at.Child("keyType"), keyTypes...)...)
	if seconds := s.MaxExpirationSeconds; seconds != nil {
		at := at.Child("maxExpirationSeconds")
		if *seconds < validation.ShortestPodCertificate {
			errs = append(errs,
				field.Invalid(at, *seconds,
					fmt.Sprintf("if provided, maxExpirationSeconds must be >= %d", validation.ShortestPodCertificate)))
		}
		if most := validation.LongestPodCertificate(s.SignerName); *seconds > most {
			errs = append(errs,
				field.Invalid(at, *seconds, fmt.Sprintf("if provided, maxExpirationSeconds must be <= %d", most)))
		}
	}
	paths := 0
	for _, p := range []struct{ name, path string }{
		{"credentialBundlePath", s.CredentialBundlePath}, {"keyPath", s.KeyPath},
		{"certificateChainPath", s.CertificateChainPath},
	} {
		if p.path != "" {
			paths++
			errs = append(errs, validation.NonReservedPath(p.path, at.Child(p.name))...)
		}
	}
	if paths == 0 {
		errs = append(errs,
			field.Required(at, "specify at least one of credentialBundlePath, keyPath, and certificateChainPath"))
	}
	return errs
}
