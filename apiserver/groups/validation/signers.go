package validation

import (
	"fmt"
	"strings"

	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// SignerName checks the name of a signer: a domain, a slash and a path without one.
func SignerName(name string, at *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(at, "")}
	}
	domain, path, ok := strings.Cut(name, "/")
	if !ok || strings.Contains(path, "/") {
		return field.ErrorList{
			field.Invalid(at, name, "must be a fully qualified domain and path of the form 'example.com/signer-name'")}
	}
	var errs field.ErrorList
	if len(domain) > utilvalidation.DNS1123SubdomainMaxLength {
		errs = append(errs, field.TooLong(at, "", utilvalidation.DNS1123SubdomainMaxLength))
	}
	errs = append(errs, validateParts(domain, utilvalidation.IsDNS1123Label, at)...)
	if !strings.Contains(domain, ".") {
		errs = append(errs,
			field.Invalid(at, domain, "should be a domain with at least two segments separated by dots"))
	}
	errs = append(errs, validateParts(path, utilvalidation.IsDNS1123Subdomain, at)...)
	const longest = 2*utilvalidation.DNS1123SubdomainMaxLength + utilvalidation.DNS1123LabelMaxLength + 2
	if len(name) > longest {
		errs = append(errs, field.TooLong(at, "", longest))
	}
	return errs
}

// validateParts checks the text between dots, up to the first fault.
func validateParts(name string, check func(string) []string, at *field.Path) field.ErrorList {
	for part := range strings.SplitSeq(name, ".") {
		var errs field.ErrorList
		for _, msg := range check(part) {
			errs = append(errs, field.Invalid(at, name, fmt.Sprintf("validating label %q: %s", part, msg)))
		}
		if len(errs) > 0 {
			return errs
		}
	}
	return nil
}

// BundleName checks the name of a ClusterTrustBundle: it begins with its signer, where it has one.
func BundleName(signer string) NameFunc {
	return func(name string, prefix bool) []string {
		if signer == "" {
			if strings.Contains(name, ":") {
				return []string{"ClusterTrustBundle without signer name must not have \":\" in its name"}
			}
			return SubdomainName(name, prefix)
		}
		begin := strings.ReplaceAll(signer, "/", ":") + ":"
		if !strings.HasPrefix(name, begin) {
			return []string{
				fmt.Sprintf("ClusterTrustBundle for signerName %s must be named with prefix %s", signer, begin)}
		}
		return SubdomainName(strings.TrimPrefix(name, begin), prefix)
	}
}

// The bounds of the requested lifetime of a pod's certificate, in seconds.
const (
	ShortestPodCertificate = 60 * 60
	longestPodCertificate  = 91 * 24 * 60 * 60
	longestOfKubernetes    = 24 * 60 * 60 // by signers of Kubernetes itself
)

// LongestPodCertificate is the longest lifetime, in seconds, that a signer can be asked for.
func LongestPodCertificate(signer string) int32 {
	domain, _, _ := strings.Cut(signer, "/")
	if domain == "kubernetes.io" || strings.HasSuffix(domain, ".kubernetes.io") {
		return longestOfKubernetes
	}
	return longestPodCertificate
}

// UserAnnotations checks a pod's annotations for the signer of its certificate.
func UserAnnotations(annotations map[string]string, at *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, key := range SortedKeys(annotations) {
		errs = append(errs, utilvalidation.IsDomainPrefixedKey(at, strings.ToLower(key))...)
	}
	if apivalidation.ValidateAnnotationsSize(annotations) != nil {
		errs = append(errs, field.TooLong(at, "", apivalidation.TotalAnnotationSizeLimitB))
	}
	return errs
}
