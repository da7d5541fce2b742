package certificates

import (
	"crypto/x509"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/internal/clusterusers"
)

// TestAdminsAreSigned: the group of administrators is signed for administrators only, also where
// admission has let a request through.
func TestAdminsAreSigned(t *testing.T) {
	const client = certificatesv1.KubeAPIServerClientSignerName
	for name, c := range map[string]struct {
		by       []string
		template x509.CertificateRequest
		want     bool
	}{
		"by a master": {[]string{"system:masters"},
			x509.CertificateRequest{Subject: of("ann", "barque:admins")}, true},
		"by an administrator": {[]string{"barque:admins"}, x509.CertificateRequest{Subject: of("ann", "barque:admins")},
			true},
		"by somebody": {[]string{"dev"}, x509.CertificateRequest{Subject: of("ann", "barque:admins")}, false},
		"as a name": {[]string{"barque:admins"}, x509.CertificateRequest{Subject: of("barque:admins")},
			false},
		"of servers": {[]string{"barque:admins"},
			x509.CertificateRequest{Subject: of("ann", "barque:servers")}, false},
	} {
		r := request(t, client, c.template, clientUsages, certificatesv1.CertificateApproved)
		r.Spec.Groups = c.by
		if plan := decideSigning(r, isOwnUser, time.Now()); (plan.template != nil) != c.want {
			t.Errorf("%s: %+v", name, plan)
		}
	}
}

// TestUsersStayListed: the request of `barque user add` stays as long as its certificate.
func TestUsersStayListed(t *testing.T) {
	r := request(t, certificatesv1.KubeAPIServerClientSignerName, x509.CertificateRequest{Subject: of("ann")},
		clientUsages, certificatesv1.CertificateApproved)
	r.Status.Conditions[0].LastUpdateTime = metav1.Now()
	r.Status.Certificate = []byte("not parsed: it does not end")
	if expires(r).IsZero() {
		t.Fatal("another request stays")
	}
	r.Labels = map[string]string{clusterusers.RequestLabel: ""}
	if at := expires(r); !at.IsZero() {
		t.Errorf("it is deleted at %v", at)
	}
}
