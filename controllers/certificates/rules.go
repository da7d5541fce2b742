package certificates

import (
	"crypto/x509"
	"encoding/asn1"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	certificatesv1beta1 "k8s.io/api/certificates/v1beta1"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/barque/barque/internal/clusterusers"
)

// The validity of certificates, by kube-controller-manager's defaults.
const (
	longest  = 365 * 24 * time.Hour
	shortest = 10 * time.Minute
	// backdate is how far a certificate is dated back, for clocks that are behind. The end of a
	// certificate with a life below short does not move with it.
	backdate = 5 * time.Minute
	short    = 8 * time.Hour
)

// ownNames begin the names by which servers of the cluster trust each other. Admission refuses
// requests with them. Should one exist, it is not signed.
const ownNames = "barque:"

const nodePrefix = "system:node:"

// signerRules have, for each signer that is served here, the check of a request.
var signerRules = map[string]func(*x509.CertificateRequest, []certificatesv1.KeyUsage) error{
	certificatesv1.KubeAPIServerClientSignerName:        checkClient,
	certificatesv1.KubeAPIServerClientKubeletSignerName: checkKubeletClient,
	certificatesv1.KubeletServingSignerName:             checkKubeletServing,
	certificatesv1beta1.LegacyUnknownSignerName: func(
		*x509.CertificateRequest, []certificatesv1.KeyUsage,
	) error {
		return nil
	},
}

func checkClient(_ *x509.CertificateRequest, usages []certificatesv1.KeyUsage) error {
	for _, u := range usages {
		switch u {
		case certificatesv1.UsageDigitalSignature, certificatesv1.UsageKeyEncipherment, certificatesv1.UsageClientAuth:
		default:
			return fmt.Errorf("invalid usage for client certificate: %s", u)
		}
	}
	if !slices.Contains(usages, certificatesv1.UsageClientAuth) {
		return fmt.Errorf("missing required usage for client certificate: %s", certificatesv1.UsageClientAuth)
	}
	return nil
}

func checkKubeletClient(r *x509.CertificateRequest, usages []certificatesv1.KeyUsage) error {
	switch {
	case !isOfNodes(r):
		return errOrganization
	case len(r.DNSNames) > 0:
		return notAllowed("DNS")
	case len(r.EmailAddresses) > 0:
		return notAllowed("Email")
	case len(r.IPAddresses) > 0:
		return notAllowed("IP")
	case len(r.URIs) > 0:
		return notAllowed("URI")
	case !strings.HasPrefix(r.Subject.CommonName, nodePrefix):
		return errCommonName
	}
	return checkUsages(usages, certificatesv1.UsageClientAuth)
}

func checkKubeletServing(r *x509.CertificateRequest, usages []certificatesv1.KeyUsage) error {
	switch {
	case !isOfNodes(r):
		return errOrganization
	case len(r.DNSNames) == 0 && len(r.IPAddresses) == 0:
		return errors.New("DNS or IP subjectAltName is required")
	case len(r.EmailAddresses) > 0:
		return notAllowed("Email")
	case len(r.URIs) > 0:
		return notAllowed("URI")
	}
	if err := checkUsages(usages, certificatesv1.UsageServerAuth); err != nil {
		return err
	}
	if !strings.HasPrefix(r.Subject.CommonName, nodePrefix) {
		return errCommonName
	}
	return nil
}

var (
	errOrganization = errors.New("subject organization is not system:nodes")
	errCommonName   = fmt.Errorf("subject common name does not begin with %s", nodePrefix)
)

func notAllowed(kind string) error { return fmt.Errorf("%s subjectAltNames are not allowed", kind) }

func isOfNodes(r *x509.CertificateRequest) bool {
	return slices.Equal(r.Subject.Organization, []string{user.NodesGroup})
}

// checkUsages wants exactly a kubelet's usages. Key encipherment, which RSA keys have, may be left
// out.
func checkUsages(usages []certificatesv1.KeyUsage, auth certificatesv1.KeyUsage) error {
	required := []certificatesv1.KeyUsage{auth, certificatesv1.UsageDigitalSignature,
		certificatesv1.UsageKeyEncipherment}
	slices.Sort(required)
	for _, want := range required {
		if want != certificatesv1.UsageKeyEncipherment && !slices.Contains(usages, want) {
			return fmt.Errorf("usages did not match %v", required)
		}
	}
	for _, u := range usages {
		if !slices.Contains(required, u) {
			return fmt.Errorf("usages did not match %v", required)
		}
	}
	return nil
}

// organization is the attribute of a subject that is a group.
var organization = asn1.ObjectIdentifier{2, 5, 4, 10}

// checkNames refuses the names of the cluster's servers, and those of the control plane, wherever
// they stand in the subject. The group of administrators is for requests of administrators.
func checkNames(
	r *x509.CertificateRequest, by *certificatesv1.CertificateSigningRequestSpec, own func(name string) bool,
) error {
	admins := by.SignerName == certificatesv1.KubeAPIServerClientSignerName && clusterusers.HasAdmin(by.Groups)
	names := []string{r.Subject.CommonName}
	for _, attribute := range r.Subject.Names {
		if text, ok := attribute.Value.(string); ok &&
			!(admins && text == clusterusers.AdminGroup && attribute.Type.Equal(organization)) {
			names = append(names, text)
		}
	}
	for _, name := range names {
		if strings.HasPrefix(name, ownNames) {
			return fmt.Errorf("the name %s is not signed: names that begin with %s are those of the cluster's servers",
				name, ownNames)
		}
		if own(name) {
			return fmt.Errorf("the name %s is not signed: it is a part of the control plane, and runs in the servers",
				name)
		}
	}
	return nil
}
