// Package certificates declares the resources of the certificates.k8s.io API group: requests for
// certificates by users and by pods, and the bundles of authorities that signers are trusted by.
//
// Requests are checked and stored here. Approving and signing them is the work of others; the
// server adds the approval subresource, and the check of who may sign.
package certificates

import (
	"fmt"
	"strings"

	certificatesv1 "k8s.io/api/certificates/v1"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/barque/barque/apiserver/resource"
)

var version = certificatesv1.SchemeGroupVersion

// Resources declares the group's resources.
func Resources() []resource.Resource {
	return []resource.Resource{
		signingRequests(),
		trustBundles(),
		podRequests(),
	}
}

const none = "<none>"

// validateSigner checks the name of a signer: a domain, a slash and a path without one.
func validateSigner(name string, at *field.Path) field.ErrorList {
	if name == "" {
		return field.ErrorList{field.Required(at, "")}
	}
	domain, path, ok := strings.Cut(name, "/")
	if !ok || strings.Contains(path, "/") {
		return field.ErrorList{field.Invalid(at, name, "must be a fully qualified domain and path of the form 'example.com/signer-name'")}
	}
	var errs field.ErrorList
	if len(domain) > utilvalidation.DNS1123SubdomainMaxLength {
		errs = append(errs, field.TooLong(at, "", utilvalidation.DNS1123SubdomainMaxLength))
	}
	errs = append(errs, validateParts(domain, utilvalidation.IsDNS1123Label, at)...)
	if !strings.Contains(domain, ".") {
		errs = append(errs, field.Invalid(at, domain, "should be a domain with at least two segments separated by dots"))
	}
	errs = append(errs, validateParts(path, utilvalidation.IsDNS1123Subdomain, at)...)
	const longest = 2*utilvalidation.DNS1123SubdomainMaxLength + utilvalidation.DNS1123LabelMaxLength + 2
	if len(name) > longest {
		errs = append(errs, field.TooLong(at, "", longest))
	}
	return errs
}

// validateParts checks what stands between dots, up to the first that is wrong.
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
