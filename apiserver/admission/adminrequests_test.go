package admission

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
)

// TestAdminRequests: only administrators request a certificate with the group of administrators. It
// is a group only, and of the signer for clients.
func TestAdminRequests(t *testing.T) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	const client, kubelet = "kubernetes.io/kube-apiserver-client", "kubernetes.io/kube-apiserver-client-kubelet"
	admins := []string{"barque:admins"}
	for name, c := range map[string]struct {
		by      []string
		signer  string
		subject pkix.Name
		want    bool
	}{
		"by a master": {[]string{"system:masters"}, client,
			pkix.Name{CommonName: "ann", Organization: admins}, true},
		"by an administrator": {admins, client,
			pkix.Name{CommonName: "ann", Organization: []string{"dev", "barque:admins"}}, true},
		"by somebody": {[]string{"dev"}, client, pkix.Name{CommonName: "ann", Organization: admins}, false},
		"by nobody":   {nil, client, pkix.Name{CommonName: "ann", Organization: admins}, false},
		"as a name":   {admins, client, pkix.Name{CommonName: "barque:admins"}, false},
		"as a unit":   {admins, client, pkix.Name{CommonName: "ann", OrganizationalUnit: admins}, false},
		"of the kubelets' signer": {admins, kubelet, pkix.Name{CommonName: "system:node:n", Organization: admins},
			false},
		"with a server's group": {admins, client,
			pkix.Name{CommonName: "ann", Organization: []string{"barque:admins", "barque:servers"}}, false},
		"the group of masters": {[]string{"system:masters"}, client,
			pkix.Name{CommonName: "ann", Organization: []string{"system:masters"}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: c.subject}, key)
			if err != nil {
				t.Fatal(err)
			}
			r := newRequest(func(r *certificatesv1.CertificateSigningRequest) {
				r.Spec.SignerName = c.signer
				r.Spec.Request = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
			})
			a := admission.NewAttributesRecord(r, nil, certificatesv1.SchemeGroupVersion.WithKind("X"), "", "r",
				certificatesv1.SchemeGroupVersion.WithResource("certificatesigningrequests"), "", admission.Create, nil,
				false, &user.DefaultInfo{Name: "x", Groups: c.by})
			if err := NewCertificateSubjects().Validate(t.Context(), a, nil); (err == nil) != c.want {
				t.Errorf("%v, want %v", err, c.want)
			}
		})
	}
}
