package admission

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"slices"
	"strings"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// grants are verbs and names of signers that a user may use them on.
type grants []string

func (g grants) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	right := a.GetUser().GetName() == "ann" && a.GetAPIGroup() == "certificates.k8s.io" &&
		a.GetResource() == "signers" && a.IsResourceRequest()
	if right && slices.Contains(g, a.GetVerb()+" "+a.GetName()) {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

func newRequest(change func(*certificatesv1.CertificateSigningRequest)) *certificatesv1.CertificateSigningRequest {
	r := &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: "r"},
		Spec: certificatesv1.CertificateSigningRequestSpec{SignerName: "example.com/s"}}
	if change != nil {
		change(r)
	}
	return r
}

func TestSigners(t *testing.T) {
	approved := newRequest(func(r *certificatesv1.CertificateSigningRequest) {
		r.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{
			{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue}}
	})
	issued := newRequest(func(r *certificatesv1.CertificateSigningRequest) { r.Status.Certificate = []byte("x") })
	renamed := newRequest(func(r *certificatesv1.CertificateSigningRequest) { r.Spec.SignerName = "example.org/mine" })
	labelled := newRequest(func(r *certificatesv1.CertificateSigningRequest) { r.Labels = map[string]string{"a": "b"} })
	bundle := func(change func(*certificatesv1.ClusterTrustBundle)) *certificatesv1.ClusterTrustBundle {
		b := &certificatesv1.ClusterTrustBundle{ObjectMeta: metav1.ObjectMeta{Name: "example.com:s:b"},
			Spec: certificatesv1.ClusterTrustBundleSpec{SignerName: "example.com/s", TrustBundle: "x"}}
		if change != nil {
			change(b)
		}
		return b
	}
	other := bundle(func(b *certificatesv1.ClusterTrustBundle) { b.Spec.TrustBundle = "y" })
	unsigned := bundle(func(b *certificatesv1.ClusterTrustBundle) { b.Spec.SignerName = "" })
	owned := bundle(func(b *certificatesv1.ClusterTrustBundle) {
		b.Finalizers, b.OwnerReferences = []string{"example.com/f"}, []metav1.OwnerReference{{Name: "o"}}
	})
	const csr, ctb = "certificatesigningrequests", "clustertrustbundles"
	for _, c := range []struct {
		name        string
		grants      grants
		resource    string
		subresource string
		obj, old    runtime.Object
		want        string // of the error; "" means that it is allowed
	}{
		{"approve", grants{"approve example.com/s"}, csr, "approval", approved, newRequest(nil), ""},
		{"approve, by domain", grants{"approve example.com/*"}, csr, "approval", approved, newRequest(nil), ""},
		{"approve, may nothing", nil, csr, "approval", approved, newRequest(nil),
			`user not permitted to approve requests with signerName "example.com/s"`},
		{"approve, may sign", grants{"sign example.com/s"}, csr, "approval", approved, newRequest(nil),
			"not permitted to approve"},
		{"approve, another signer", grants{"approve example.com/t", "approve example.org/*", "approve *"}, csr,
			"approval", approved, newRequest(nil), "not permitted to approve"},
		{"approve, changing the signer", grants{"approve example.org/mine"}, csr, "approval", renamed, newRequest(nil),
			"not permitted to approve"},
		{"sign", grants{"sign example.com/s"}, csr, "status", issued, newRequest(nil), ""},
		{"sign, by domain", grants{"sign example.com/*"}, csr, "status", issued, newRequest(nil), ""},
		{"sign, may approve", grants{"approve example.com/s"}, csr, "status", issued, newRequest(nil),
			`user not permitted to sign requests with signerName "example.com/s"`},
		{"fail, may approve", grants{"approve example.com/s"}, csr, "status", approved, newRequest(nil),
			"not permitted to sign"},
		{"status without a change", nil, csr, "status", labelled, newRequest(nil), ""},
		{"the request itself", nil, csr, "", labelled, newRequest(nil), ""},
		{"attest", grants{"attest example.com/s"}, ctb, "", bundle(nil), nil, ""},
		{"attest, by domain", grants{"attest example.com/*"}, ctb, "", bundle(nil), nil, ""},
		{"attest, may sign", grants{"sign example.com/s"}, ctb, "", bundle(nil), nil,
			`user not permitted to attest for signerName "example.com/s"`},
		{"attest a change", nil, ctb, "", other, bundle(nil), "not permitted to attest"},
		{"a bundle without signer", nil, ctb, "", unsigned, nil, ""},
		{"what the collector changes", nil, ctb, "", owned, bundle(nil), ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			op := admission.Update
			if c.old == nil {
				op = admission.Create
			}
			a := admission.NewAttributesRecord(c.obj, c.old, certificatesv1.SchemeGroupVersion.WithKind("X"), "", "r",
				certificatesv1.SchemeGroupVersion.WithResource(c.resource), c.subresource, op, nil, false,
				&user.DefaultInfo{Name: "ann"})
			chain := admission.NewChainHandler(NewCertificateApproval(c.grants), NewCertificateSigning(c.grants),
				NewTrustBundleAttest(c.grants))
			err := chain.Validate(t.Context(), a, nil)
			if c.want == "" && err != nil ||
				c.want != "" && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

func TestCertificateSubjects(t *testing.T) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name    string
		signer  string
		subject pkix.Name
		want    string // of the error; "" means that it is allowed
	}{
		{"a user", "kubernetes.io/kube-apiserver-client", pkix.Name{CommonName: "ann", Organization: []string{"devs"}},
			""},
		{"a master", "kubernetes.io/kube-apiserver-client",
			pkix.Name{CommonName: "ann", Organization: []string{"devs", "system:masters"}},
			"use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed"},
		{"a master of another signer", "example.com/s", pkix.Name{Organization: []string{"system:masters"}}, ""},
		{"the front proxy", "kubernetes.io/kube-apiserver-client", pkix.Name{CommonName: "barque:front-proxy"},
			"with the name barque:front-proxy is not allowed"},
		{"a server", "kubernetes.io/kube-apiserver-client",
			pkix.Name{CommonName: "ann", Organization: []string{"barque:servers"}},
			"with the name barque:servers is not allowed"},
		{"the front proxy among two names", "kubernetes.io/kube-apiserver-client",
			pkix.Name{CommonName: "ann", ExtraNames: []pkix.AttributeTypeAndValue{
				{Type: []int{2, 5, 4, 3}, Value: "barque:front-proxy"}, {Type: []int{2, 5, 4, 3}, Value: "ann"},
			}}, "with the name barque:front-proxy is not allowed"},
		{"a server by the kubelets' signer", "kubernetes.io/kube-apiserver-client-kubelet",
			pkix.Name{Organization: []string{"barque:servers"}}, "is not allowed"},
		{"a controller", "kubernetes.io/kube-apiserver-client",
			pkix.Name{CommonName: "system:serviceaccount:kube-system:generic-garbage-collector"},
			"is not allowed: it is a part of the control plane"},
		{"a controller among two names", "kubernetes.io/kube-apiserver-client",
			pkix.Name{CommonName: "ann", ExtraNames: []pkix.AttributeTypeAndValue{
				{Type: []int{2, 5, 4, 3}, Value: "system:serviceaccount:kube-system:job-controller"},
				{Type: []int{2, 5, 4, 3}, Value: "ann"},
			}}, "is not allowed: it is a part of the control plane"},
		{"the user of a controller without an account", "kubernetes.io/kube-apiserver-client",
			pkix.Name{CommonName: "system:kube-controller-manager"}, "is not allowed"},
		{"the scheduler", "kubernetes.io/kube-apiserver-client", pkix.Name{CommonName: "system:kube-scheduler"},
			"is not allowed"},
		{"the API server by another signer", "kubernetes.io/legacy-unknown", pkix.Name{CommonName: "system:apiserver"},
			"is not allowed"},
		{"an account of cloud controller managers", "kubernetes.io/kube-apiserver-client",
			pkix.Name{CommonName: "system:serviceaccount:kube-system:node-controller"}, ""},
		{"another account", "kubernetes.io/kube-apiserver-client",
			pkix.Name{CommonName: "system:serviceaccount:shop:job-controller"}, ""},
		{"a controller of another CA", "example.com/s",
			pkix.Name{CommonName: "system:serviceaccount:kube-system:job-controller"}, ""},
		{"the front proxy of another CA", "example.com/s", pkix.Name{CommonName: "barque:front-proxy"}, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
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
				false, nil)
			err = NewCertificateSubjects().Validate(t.Context(), a, nil)
			if c.want == "" && err != nil ||
				c.want != "" && (!apierrors.IsForbidden(err) || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
			r.Spec.Request = []byte("nonsense")
			if err := NewCertificateSubjects().Validate(t.Context(), a,
				nil); (err != nil) != (c.signer == certificatesv1.KubeAPIServerClientSignerName) {
				t.Errorf("a request that cannot be parsed: %v", err)
			}
		})
	}
}
