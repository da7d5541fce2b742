package certificates

import (
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"slices"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"

	"github.com/barque/barque/internal/clusterusers"
)

// signing is the signer's decision about a request; the zero value does nothing.
type signing struct {
	template *x509.Certificate // to be signed
	public   crypto.PublicKey
	refusal  error // why the request has failed
}

// decideSigning looks at a request. One that was approved is signed once, or fails for ever. own
// reports whether a name is one of the control plane.
func decideSigning(r *certificatesv1.CertificateSigningRequest, own func(name string) bool, now time.Time) signing {
	check, served := signerRules[r.Spec.SignerName]
	if !served || len(r.Status.Certificate) > 0 || has(r, certificatesv1.CertificateFailed) ||
		!has(r, certificatesv1.CertificateApproved) || has(r, certificatesv1.CertificateDenied) {
		return signing{}
	}
	request, err := parse(r.Spec.Request)
	if err == nil {
		err = request.CheckSignature()
	}
	if err == nil {
		err = check(request, r.Spec.Usages)
	}
	if err == nil {
		err = checkNames(request, &r.Spec, own)
	}
	if err != nil {
		return signing{refusal: err}
	}
	template, err := templateOf(request, r.Spec.Usages, r.Spec.ExpirationSeconds, now)
	if err != nil {
		return signing{refusal: err}
	}
	return signing{template: template, public: request.PublicKey}
}

// templateOf takes the subject and the names of a request, and none of its extensions.
func templateOf(
	r *x509.CertificateRequest, usages []certificatesv1.KeyUsage, seconds *int32, now time.Time,
) (*x509.Certificate, error) {
	t := &x509.Certificate{
		Subject:  r.Subject,
		DNSNames: r.DNSNames, IPAddresses: r.IPAddresses, EmailAddresses: r.EmailAddresses, URIs: r.URIs,
	}
	for _, u := range usages {
		usage, known := keyUsages[u]
		extended, knownExtended := extendedUsages[u]
		switch {
		case known:
			t.KeyUsage |= usage
		case !knownExtended:
			return nil, fmt.Errorf("unrecognized usage %q", u)
		case !slices.Contains(t.ExtKeyUsage, extended):
			t.ExtKeyUsage = append(t.ExtKeyUsage, extended)
		}
	}
	slices.Sort(t.ExtKeyUsage)
	t.NotBefore, t.NotAfter = validity(seconds, now)
	return t, nil
}

// validity returns the validity of a certificate for the requested seconds, nil for the default.
func validity(seconds *int32, now time.Time) (from, to time.Time) {
	life := longest
	if seconds != nil {
		life = min(max(time.Duration(*seconds)*time.Second, shortest), longest)
	}
	if life >= short {
		return now.Add(-backdate), now.Add(life - backdate)
	}
	return now.Add(-backdate), now.Add(life)
}

var keyUsages = map[certificatesv1.KeyUsage]x509.KeyUsage{
	certificatesv1.UsageSigning:           x509.KeyUsageDigitalSignature,
	certificatesv1.UsageDigitalSignature:  x509.KeyUsageDigitalSignature,
	certificatesv1.UsageContentCommitment: x509.KeyUsageContentCommitment,
	certificatesv1.UsageKeyEncipherment:   x509.KeyUsageKeyEncipherment,
	certificatesv1.UsageKeyAgreement:      x509.KeyUsageKeyAgreement,
	certificatesv1.UsageDataEncipherment:  x509.KeyUsageDataEncipherment,
	certificatesv1.UsageCertSign:          x509.KeyUsageCertSign,
	certificatesv1.UsageCRLSign:           x509.KeyUsageCRLSign,
	certificatesv1.UsageEncipherOnly:      x509.KeyUsageEncipherOnly,
	certificatesv1.UsageDecipherOnly:      x509.KeyUsageDecipherOnly,
}

var extendedUsages = map[certificatesv1.KeyUsage]x509.ExtKeyUsage{
	certificatesv1.UsageAny:             x509.ExtKeyUsageAny,
	certificatesv1.UsageServerAuth:      x509.ExtKeyUsageServerAuth,
	certificatesv1.UsageClientAuth:      x509.ExtKeyUsageClientAuth,
	certificatesv1.UsageCodeSigning:     x509.ExtKeyUsageCodeSigning,
	certificatesv1.UsageEmailProtection: x509.ExtKeyUsageEmailProtection,
	certificatesv1.UsageSMIME:           x509.ExtKeyUsageEmailProtection,
	certificatesv1.UsageIPsecEndSystem:  x509.ExtKeyUsageIPSECEndSystem,
	certificatesv1.UsageIPsecTunnel:     x509.ExtKeyUsageIPSECTunnel,
	certificatesv1.UsageIPsecUser:       x509.ExtKeyUsageIPSECUser,
	certificatesv1.UsageTimestamping:    x509.ExtKeyUsageTimeStamping,
	certificatesv1.UsageOCSPSigning:     x509.ExtKeyUsageOCSPSigning,
	certificatesv1.UsageMicrosoftSGC:    x509.ExtKeyUsageMicrosoftServerGatedCrypto,
	certificatesv1.UsageNetscapeSGC:     x509.ExtKeyUsageNetscapeServerGatedCrypto,
}

// approval is one way to approve a kubelet's request automatically: its user must have the right to
// create that subresource of certificatesigningrequests.
type approval struct{ subresource, message string }

// decideApproval returns the possible ways for a request, in order. A request that is not a
// kubelet's, or is decided already, has none.
func decideApproval(r *certificatesv1.CertificateSigningRequest, own func(name string) bool) []approval {
	if len(r.Status.Certificate) > 0 || has(r, certificatesv1.CertificateApproved) ||
		has(r, certificatesv1.CertificateDenied) ||
		has(r, certificatesv1.CertificateFailed) ||
		r.Spec.SignerName != certificatesv1.KubeAPIServerClientKubeletSignerName {
		return nil
	}
	request, err := parse(r.Spec.Request)
	if err != nil || checkKubeletClient(request, r.Spec.Usages) != nil || checkNames(request, &r.Spec, own) != nil {
		return nil
	}
	var ways []approval
	if r.Spec.Username == request.Subject.CommonName {
		ways = append(ways,
			approval{"selfnodeclient", "Auto approving self kubelet client certificate after SubjectAccessReview."})
	}
	return append(ways, approval{"nodeclient", "Auto approving kubelet client certificate after SubjectAccessReview."})
}

// reviewOf returns the review of a requester's right to that way of approval.
func reviewOf(r *certificatesv1.CertificateSigningRequest, way approval) *authorizationv1.SubjectAccessReview {
	extra := make(map[string]authorizationv1.ExtraValue, len(r.Spec.Extra))
	for k, v := range r.Spec.Extra {
		extra[k] = authorizationv1.ExtraValue(v)
	}
	return &authorizationv1.SubjectAccessReview{Spec: authorizationv1.SubjectAccessReviewSpec{
		User: r.Spec.Username, UID: r.Spec.UID, Groups: r.Spec.Groups, Extra: extra,
		ResourceAttributes: &authorizationv1.ResourceAttributes{
			Group: certificatesv1.GroupName, Version: "*", Resource: "certificatesigningrequests",
			Subresource: way.subresource, Verb: "create",
		},
	}}
}

// askAgain is the pause before an unapproved request is reviewed again: its user may get the right.
// It grows with the request's age.
func askAgain(r *certificatesv1.CertificateSigningRequest, now time.Time) time.Duration {
	return min(max(now.Sub(r.CreationTimestamp.Time), time.Second), 15*time.Minute)
}

// How long requests are kept, as kube-controller-manager has it.
const (
	keepDecided    = time.Hour
	keepPending    = 24 * time.Hour
	keepPodRequest = 15 * time.Minute
)

// expires returns when a request must be deleted; zero for never.
func expires(r *certificatesv1.CertificateSigningRequest) time.Time {
	var first time.Time
	at := func(from time.Time, after time.Duration) {
		if end := from.Add(after); !from.IsZero() && (first.IsZero() || end.Before(first)) {
			first = end
		}
	}
	issued := len(r.Status.Certificate) > 0
	if len(r.Status.Conditions) == 0 {
		at(r.CreationTimestamp.Time, keepPending)
	}
	for i := range r.Status.Conditions {
		switch c := &r.Status.Conditions[i]; {
		case c.Type == certificatesv1.CertificateDenied, c.Type == certificatesv1.CertificateFailed:
			at(c.LastUpdateTime.Time, keepDecided)
		case c.Type == certificatesv1.CertificateApproved && issued:
			_, listed := r.Labels[clusterusers.RequestLabel]
			if !listed || r.Spec.SignerName != certificatesv1.KubeAPIServerClientSignerName {
				at(c.LastUpdateTime.Time, keepDecided)
			}
			at(endOf(r.Status.Certificate), 0)
		case c.Type == certificatesv1.CertificateApproved:
			at(c.LastUpdateTime.Time, keepPending)
		}
	}
	return first
}

// endOf returns the end of a certificate in PEM; zero when it is unreadable.
func endOf(data []byte) time.Time {
	block, _ := pem.Decode(data)
	if block == nil {
		return time.Time{}
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return time.Time{}
	}
	return cert.NotAfter
}
