package certificates

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/barque/barque/apiserver/groups/validation"
	"github.com/barque/barque/apiserver/resource"
)

// largestBundle is the size of a trust bundle at most.
const largestBundle = 1 << 20

func trustBundles() resource.Resource {
	return &resource.Kind[certificatesv1.ClusterTrustBundle]{
		GroupVersion:    version,
		Name:            "clustertrustbundles",
		Singular:        "clustertrustbundle",
		ClusterScoped:   true,
		List:            &certificatesv1.ClusterTrustBundleList{},
		VersionedUpdate: true,
		Validate:        validateTrustBundle,
		Fields: func(b *certificatesv1.ClusterTrustBundle) fields.Set {
			return fields.Set{"spec.signerName": b.Spec.SignerName}
		},
		Columns: []metav1.TableColumnDefinition{
			resource.Name(),
			resource.Column("SignerName", "string", "The signer whose authorities the bundle has."),
		},
		Row: func(b *certificatesv1.ClusterTrustBundle, _ time.Time) []any {
			if b.Spec.SignerName == "" {
				return []any{b.Name, none}
			}
			return []any{b.Name, b.Spec.SignerName}
		},
	}
}

func validateTrustBundle(_ context.Context, b, old *certificatesv1.ClusterTrustBundle) field.ErrorList {
	errs := validation.Meta(b, old, false, validation.BundleName(b.Spec.SignerName))
	at := field.NewPath("spec")
	if b.Spec.SignerName != "" {
		errs = append(errs, validation.SignerName(b.Spec.SignerName, at.Child("signerName"))...)
	}
	// A bundle that was accepted once stays valid, even if later parsers are stricter.
	if old == nil || b.Spec.TrustBundle != old.Spec.TrustBundle {
		errs = append(errs, validateAnchors(b.Spec.TrustBundle, at.Child("trustBundle"))...)
	}
	if old != nil {
		errs = append(errs, validation.Immutable(b.Spec.SignerName, old.Spec.SignerName, at.Child("signerName"))...)
	}
	return errs
}

// validateAnchors checks that a bundle has certificates of authorities and nothing else.
func validateAnchors(bundle string, at *field.Path) field.ErrorList {
	if len(bundle) > largestBundle {
		return field.ErrorList{field.TooLong(at, "", largestBundle)}
	}
	var errs field.ErrorList
	var order []string
	entries := map[string][]int{}
	wrong := func(format string, args ...any) {
		errs = append(errs, field.Invalid(at, "<value omitted>", fmt.Sprintf(format, args...)))
	}
	i := 0
	for block, rest := pem.Decode([]byte(bundle)); block != nil; block, rest = pem.Decode(rest) {
		if problem := checkAnchor(block); problem != "" {
			wrong("entry %d %s", i, problem)
		}
		if !slices.Contains(order, string(block.Bytes)) {
			order = append(order, string(block.Bytes))
		}
		entries[string(block.Bytes)] = append(entries[string(block.Bytes)], i)
		i++
	}
	if len(errs) > 0 {
		return errs
	}
	if i == 0 {
		wrong("at least one trust anchor must be provided")
	}
	for _, anchor := range order {
		if len(entries[anchor]) > 1 {
			wrong("duplicate trust anchor (indices %v)", entries[anchor])
		}
	}
	return errs
}

// checkAnchor returns the fault of an entry of a bundle.
func checkAnchor(block *pem.Block) string {
	if block.Type != certificateBlock {
		return "has bad block type: " + block.Type
	}
	if len(block.Headers) > 0 {
		return "has PEM block headers"
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	switch {
	case err != nil:
		return "does not parse as X.509"
	case !cert.IsCA:
		return "does not have the CA bit set"
	case !cert.BasicConstraintsValid:
		return "has invalid basic constraints"
	}
	return ""
}
