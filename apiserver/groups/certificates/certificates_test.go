package certificates

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/groups/grouptest"
	"github.com/barque/barque/apiserver/groups/validation"
	"github.com/barque/barque/apiserver/resource"
)

func newKey(t *testing.T) crypto.Signer {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// newRequest returns a request for a certificate, in DER.
func newRequest(t *testing.T, key crypto.Signer) []byte {
	t.Helper()
	der, err := x509.CreateCertificateRequest(rand.Reader,
		&x509.CertificateRequest{Subject: pkix.Name{CommonName: "a"}}, key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

// newCertificate returns a certificate signed by its own key, in DER.
func newCertificate(t *testing.T, key crypto.Signer, template x509.Certificate) []byte {
	t.Helper()
	template.SerialNumber = big.NewInt(1)
	der, err := x509.CreateCertificate(rand.Reader, &template, &template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return der
}

func inPEM(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

func newSigningRequest(t *testing.T) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	r := grouptest.Parse[certificatesv1.CertificateSigningRequest](t,
		`{metadata: {name: "a:b", resourceVersion: "1"}, spec: {signerName: example.com/a, usages: [client auth, digital signature], expirationSeconds: 3600}}`)
	r.Spec.Request = inPEM("CERTIFICATE REQUEST", newRequest(t, newKey(t)))
	return r
}

func TestSigningRequest(t *testing.T) {
	ctx := context.Background()
	broken := newRequest(t, newKey(t))
	broken[len(broken)-1]++ // of the signature
	for name, c := range map[string]struct {
		change func(r *certificatesv1.CertificateSigningRequest)
		want   []string
	}{
		"good": {func(*certificatesv1.CertificateSigningRequest) {}, nil},
		"no PEM": {func(r *certificatesv1.CertificateSigningRequest) { r.Spec.Request = []byte("x") },
			[]string{grouptest.Invalid + "spec.request"}},
		"no DER": {func(r *certificatesv1.CertificateSigningRequest) {
			r.Spec.Request = inPEM("CERTIFICATE REQUEST", []byte("x"))
		}, []string{grouptest.Invalid + "spec.request"}},
		"signature": {func(r *certificatesv1.CertificateSigningRequest) {
			r.Spec.Request = inPEM("CERTIFICATE REQUEST", broken)
		}, []string{grouptest.Invalid + "spec.request"}},
		"no usages": {func(r *certificatesv1.CertificateSigningRequest) { r.Spec.Usages = nil },
			[]string{grouptest.Missing + "spec.usages"}},
		"usages": {func(r *certificatesv1.CertificateSigningRequest) {
			r.Spec.Usages = []certificatesv1.KeyUsage{"any", "sing", "any"}
		}, []string{grouptest.Unknown + "spec.usages[1]", grouptest.Duplicate + "spec.usages[2]"}},
		"no signer": {func(r *certificatesv1.CertificateSigningRequest) { r.Spec.SignerName = "" },
			[]string{grouptest.Missing + "spec.signerName"}},
		"legacy signer": {
			func(r *certificatesv1.CertificateSigningRequest) { r.Spec.SignerName = "kubernetes.io/legacy-unknown" },
			[]string{grouptest.Invalid + "spec.signerName"}},
		"lifetime": {
			func(r *certificatesv1.CertificateSigningRequest) { r.Spec.ExpirationSeconds = ptr.To[int32](599) },
			[]string{grouptest.Invalid + "spec.expirationSeconds"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newSigningRequest(t)
			c.change(r)
			grouptest.WantErrors(t, validateSigningRequest(ctx, r, nil), c.want...)
			grouptest.WantErrors(t, validateSigningRequest(ctx, r, r), c.want...)
		})
	}
}

func TestSignerNames(t *testing.T) {
	at := field.NewPath("x")
	for name, want := range map[string]int{
		"example.com/a":     0,
		"example.com/a.b-c": 0,
		"example.com":       1,
		"example.com/a/b":   1,
		"localhost/a":       1,
		"Example.com/a":     1,
		"example.com/A":     1,
		"example.com/":      1,
		strings.Repeat(strings.Repeat("a", 60)+".", 5) + "com/a": 1,
	} {
		if errs := validation.SignerName(name, at); len(errs) != want {
			t.Errorf("%s: %v", name, errs)
		}
	}
}

func TestSigningRequestKeepsWhoAsked(t *testing.T) {
	ctx := request.WithUser(context.Background(),
		&user.DefaultInfo{Name: "eve", UID: "5", Groups: []string{"g"}, Extra: map[string][]string{"k": {"v"}}})
	r := newSigningRequest(t)
	r.Spec.Username, r.Spec.Groups = "admin", []string{"system:masters"}
	prepareSigningRequest(ctx, r, nil)
	if r.Spec.Username != "eve" || r.Spec.UID != "5" || len(r.Spec.Groups) != 1 || r.Spec.Groups[0] != "g" ||
		r.Spec.Extra["k"][0] != "v" {
		t.Errorf("the request is by %+v", r.Spec)
	}
	update := r.DeepCopy()
	update.Spec.SignerName, update.Spec.Username = "example.com/other", "admin"
	prepareSigningRequest(ctx, update, r)
	if update.Spec.SignerName != r.Spec.SignerName || update.Spec.Username != "eve" {
		t.Errorf("an update changed the spec to %+v", update.Spec)
	}
}

func TestApproval(t *testing.T) {
	ctx := context.Background()
	const conditions = "status.conditions"
	old := newSigningRequest(t)
	approved := old.DeepCopy()
	approved.Spec.SignerName = "example.com/other"
	approved.Status.Certificate = []byte("x")
	approved.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{
		{Type: "Approved", Status: "True", Reason: "R"}}
	PrepareApproval(approved, old)
	if c := approved.Status.Conditions[0]; c.LastUpdateTime.IsZero() || c.LastTransitionTime.IsZero() ||
		approved.Spec.SignerName != old.Spec.SignerName || approved.Status.Certificate != nil {
		t.Errorf("approved as %+v", approved)
	}
	grouptest.WantErrors(t, ValidateApproval(approved, old))
	grouptest.WantErrors(t, validateSigningStatus(ctx, approved, old), grouptest.Forbidden+conditions)

	denied := approved.DeepCopy()
	denied.Status.Conditions = append(denied.Status.Conditions,
		certificatesv1.CertificateSigningRequestCondition{Type: "Denied", Status: "True"})
	grouptest.WantErrors(t, ValidateApproval(denied, approved), grouptest.Invalid+conditions)
	grouptest.WantErrors(t, ValidateApproval(old, approved), grouptest.Forbidden+conditions)

	odd := old.DeepCopy()
	odd.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{{Status: "True"},
		{Type: "Denied", Status: "False"}, {Type: "A"}, {Type: "A", Status: "Maybe"}}
	grouptest.WantErrors(t, ValidateApproval(odd, old), grouptest.Missing+conditions+"[0].type",
		grouptest.Unknown+conditions+"[1].status",
		grouptest.Missing+conditions+"[2].status", grouptest.Unknown+conditions+"[3].status",
		grouptest.Duplicate+conditions+"[3].type")

	// The signer writes the certificate, once, and cannot touch the approval.
	issued := approved.DeepCopy()
	issued.Status.Certificate = inPEM("CERTIFICATE", newCertificate(t, newKey(t), x509.Certificate{}))
	issued.Status.Conditions[0].Reason = "Changed"
	issued.Status.Conditions = append(issued.Status.Conditions,
		certificatesv1.CertificateSigningRequestCondition{Type: "Ready", Status: "True"})
	prepareSigningStatus(ctx, issued, approved)
	if c := issued.Status.Conditions; c[0].Reason != "R" || c[1].LastTransitionTime.IsZero() {
		t.Errorf("issued as %+v", issued.Status)
	}
	grouptest.WantErrors(t, validateSigningStatus(ctx, issued, approved))
	grouptest.WantErrors(t, ValidateApproval(issued, approved), grouptest.Forbidden+"status.certificate")
	again := issued.DeepCopy()
	again.Status.Certificate = inPEM("CERTIFICATE", newCertificate(t, newKey(t), x509.Certificate{}))
	grouptest.WantErrors(t, validateSigningStatus(ctx, again, issued), grouptest.Forbidden+"status.certificate")
	for name, data := range map[string][]byte{"text": []byte("x"), "key": inPEM("KEY", nil),
		"no certificate": inPEM("CERTIFICATE", []byte("x"))} {
		bad := approved.DeepCopy()
		bad.Status.Certificate = data
		t.Log(name)
		grouptest.WantErrors(t, validateSigningStatus(ctx, bad, approved), grouptest.Invalid+"status.certificate")
	}
}

func TestSigningRequestRow(t *testing.T) {
	r := newSigningRequest(t)
	r.Spec.Username = "eve"
	r.CreationTimestamp = grouptest.Ago(time.Minute)
	grouptest.WantRow(t, signingRequests(), r, "a:b", "60s", "example.com/a", "eve", "60m", "Pending")
	for _, c := range []struct {
		want        string
		types       []certificatesv1.RequestConditionType
		certificate string
	}{
		{"Approved,Issued", []certificatesv1.RequestConditionType{"Approved"}, "x"},
		{"Denied", []certificatesv1.RequestConditionType{"Denied"}, ""},
		{"Approved,Failed", []certificatesv1.RequestConditionType{"Failed", "Approved"}, ""},
	} {
		r.Status = certificatesv1.CertificateSigningRequestStatus{Certificate: []byte(c.certificate)}
		for _, kind := range c.types {
			r.Status.Conditions = append(r.Status.Conditions,
				certificatesv1.CertificateSigningRequestCondition{Type: kind, Status: corev1.ConditionTrue})
		}
		if got := formatConditions(r); got != c.want {
			t.Errorf("prints %s, want %s", got, c.want)
		}
	}
}

func TestTrustBundle(t *testing.T) {
	ctx := context.Background()
	anchor := string(
		inPEM("CERTIFICATE", newCertificate(t, newKey(t), x509.Certificate{IsCA: true, BasicConstraintsValid: true})))
	second := string(
		inPEM("CERTIFICATE", newCertificate(t, newKey(t), x509.Certificate{IsCA: true, BasicConstraintsValid: true})))
	leaf := string(inPEM("CERTIFICATE", newCertificate(t, newKey(t), x509.Certificate{})))
	for name, c := range map[string]struct {
		name, signer, bundle string
		want                 []string
	}{
		"good":         {"b", "", "a comment\n" + anchor + second, nil},
		"of a signer":  {"example.com:a:b", "example.com/a", anchor, nil},
		"prefix":       {"b", "example.com/a", anchor, []string{grouptest.Invalid + "metadata.name"}},
		"no signer":    {"a:b", "", anchor, []string{grouptest.Invalid + "metadata.name"}},
		"signer":       {"a:b", "a", anchor, []string{grouptest.Invalid + "spec.signerName"}},
		"empty":        {"b", "", "", []string{grouptest.Invalid + "spec.trustBundle"}},
		"twice":        {"b", "", anchor + second + anchor, []string{grouptest.Invalid + "spec.trustBundle"}},
		"no authority": {"b", "", anchor + leaf, []string{grouptest.Invalid + "spec.trustBundle"}},
		"block": {"b", "", string(inPEM("KEY", []byte("x"))),
			[]string{grouptest.Invalid + "spec.trustBundle"}},
		"headers": {"b", "", strings.Replace(anchor, "-----\n", "-----\nA: b\n\n", 1),
			[]string{grouptest.Invalid + "spec.trustBundle"}},
		"no certificate": {"b", "", string(inPEM("CERTIFICATE", []byte("x"))),
			[]string{grouptest.Invalid + "spec.trustBundle"}},
		"large": {"b", "", strings.Repeat("x", largestBundle+1),
			[]string{grouptest.TooLong + "spec.trustBundle"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := &certificatesv1.ClusterTrustBundle{ObjectMeta: metav1.ObjectMeta{Name: c.name},
				Spec: certificatesv1.ClusterTrustBundleSpec{SignerName: c.signer, TrustBundle: c.bundle}}
			grouptest.WantErrors(t, validateTrustBundle(ctx, b, nil), c.want...)
		})
	}
	old := &certificatesv1.ClusterTrustBundle{
		ObjectMeta: metav1.ObjectMeta{Name: "example.com:a:b", ResourceVersion: "1"},
		Spec:       certificatesv1.ClusterTrustBundleSpec{SignerName: "example.com/a", TrustBundle: leaf}}
	grouptest.WantErrors(t, validateTrustBundle(ctx, old, old))
	b := old.DeepCopy()
	b.Spec.SignerName = "example.com/b"
	grouptest.WantErrors(t, validateTrustBundle(ctx, b, old), grouptest.Invalid+"spec.signerName")
	grouptest.WantRow(t, trustBundles(), old, "example.com:a:b", "example.com/a")
	grouptest.WantRow(t, trustBundles(), &certificatesv1.ClusterTrustBundle{}, "", "<none>")
}

func newPodRequest(t *testing.T, key crypto.Signer) *certificatesv1.PodCertificateRequest {
	t.Helper()
	r := grouptest.Parse[certificatesv1.PodCertificateRequest](t, `
metadata: {name: r, namespace: default, resourceVersion: '1'}
spec: {signerName: example.com/a, podName: p, podUID: '1', serviceAccountName: s, serviceAccountUID: '2', nodeName: o, nodeUID: '3', unverifiedUserAnnotations: {example.com/a: b}}`)
	r.Spec.StubPKCS10Request = newRequest(t, key)
	podRequests().(*resource.Kind[certificatesv1.PodCertificateRequest]).Default(r)
	return r
}

func TestPodRequest(t *testing.T) {
	ctx := context.Background()
	small, err := ecdsa.GenerateKey(elliptic.P224(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	type spec = certificatesv1.PodCertificateRequestSpec
	for name, c := range map[string]struct {
		change func(s *spec)
		want   []string
	}{
		"good":   {func(*spec) {}, nil},
		"signer": {func(s *spec) { s.SignerName = "a" }, []string{grouptest.Invalid + "spec.signerName"}},
		"annotations": {func(s *spec) { s.UnverifiedUserAnnotations = map[string]string{"a": "b"} },
			[]string{grouptest.Invalid + "spec.unverifiedUserAnnotations"}},
		"names": {func(s *spec) { s.PodName, s.ServiceAccountName, s.NodeName = "A", "B", "C" },
			[]string{grouptest.Invalid + "spec.podName", grouptest.Invalid + "spec.serviceAccountName",
				grouptest.Invalid + "spec.nodeName"}},
		"UIDs": {func(s *spec) { s.PodUID, s.NodeUID = "", "" },
			[]string{grouptest.Invalid + "spec.podUID", grouptest.Invalid + "spec.nodeUID"}},
		"long UID": {func(s *spec) {
			s.ServiceAccountUID = "012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789012345678"
		}, []string{grouptest.TooLong + "spec.serviceAccountUID"}},
		"lifetime": {func(s *spec) { s.MaxExpirationSeconds = ptr.To[int32](3599) },
			[]string{grouptest.Invalid + "spec.maxExpirationSeconds"}},
		"ours": {
			func(s *spec) { s.SignerName, s.MaxExpirationSeconds = "a.kubernetes.io/b", ptr.To[int32](86401) },
			[]string{grouptest.Invalid + "spec.maxExpirationSeconds"}},
		"91 days":    {func(s *spec) { s.MaxExpirationSeconds = ptr.To[int32](91 * 86400) }, nil},
		"no request": {func(s *spec) { s.StubPKCS10Request = nil }, []string{grouptest.Invalid + "spec"}},
		"request": {func(s *spec) { s.StubPKCS10Request = []byte("x") },
			[]string{grouptest.Invalid + "spec.stubPKCS10Request"}},
		"large request": {func(s *spec) { s.StubPKCS10Request = make([]byte, largestRequest+1) },
			[]string{grouptest.TooLong + "spec.stubPKCS10Request"}},
		"curve": {func(s *spec) { s.StubPKCS10Request = newRequest(t, small) },
			[]string{grouptest.Invalid + "spec.stubPKCS10Request"}},
		"signature": {func(s *spec) { s.StubPKCS10Request[len(s.StubPKCS10Request)-1]++ },
			[]string{grouptest.Invalid + "spec.stubPKCS10Request"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newPodRequest(t, newKey(t))
			c.change(&r.Spec)
			grouptest.WantErrors(t, validatePodRequest(ctx, r, nil), c.want...)
			grouptest.WantErrors(t, validatePodRequest(ctx, r, r))
		})
	}
	old := newPodRequest(t, newKey(t))
	r := old.DeepCopy()
	r.Spec.PodName = "other"
	grouptest.WantErrors(t, validatePodRequest(ctx, r, old), grouptest.Invalid+"spec")
	grouptest.WantRow(t, podRequests(), old, "r", "p", "s", "o", "example.com/a", "Pending", "example.com/a=b")
}

func TestPodRequestStatus(t *testing.T) {
	now := time.Now().Truncate(time.Second)
	key := newKey(t)
	old := newPodRequest(t, key)
	condition := func(kind string) []metav1.Condition {
		return []metav1.Condition{{Type: kind, Status: "True", Reason: "R", LastTransitionTime: metav1.NewTime(now)}}
	}
	template := x509.Certificate{NotBefore: now, NotAfter: now.Add(2 * time.Hour)}
	chain := string(inPEM("CERTIFICATE", newCertificate(t, key, template)))
	good := certificatesv1.PodCertificateRequestStatus{Conditions: condition("Issued"), CertificateChain: chain,
		NotBefore: ptr.To(metav1.NewTime(now)), NotAfter: ptr.To(metav1.NewTime(now.Add(2 * time.Hour))),
		BeginRefreshAt: ptr.To(metav1.NewTime(now.Add(time.Hour)))}
	type status = certificatesv1.PodCertificateRequestStatus
	for name, c := range map[string]struct {
		change func(s *status)
		want   []string
	}{
		"issued": {func(*status) {}, nil},
		"denied": {func(s *status) { *s = status{Conditions: condition("Denied")} }, nil},
		"denied and more": {func(s *status) { s.Conditions = condition("Denied") },
			[]string{grouptest.Invalid + "status"}},
		"no end": {func(s *status) { s.Conditions = nil }, []string{grouptest.Invalid + "status"}},
		"condition": {func(s *status) { s.Conditions = condition("Ready") },
			[]string{grouptest.Unknown + "status.conditions.[0].type"}},
		"false": {func(s *status) { s.Conditions[0].Status = "False" },
			[]string{grouptest.Unknown + "status.conditions.[0].status"}},
		"two ends": {func(s *status) { s.Conditions = append(s.Conditions, condition("Failed")...) },
			[]string{grouptest.Invalid + "status.conditions.[1].type"}},
		"no chain": {func(s *status) { s.CertificateChain = "" },
			[]string{grouptest.Invalid + "status.certificateChain"}},
		"large chain": {func(s *status) { s.CertificateChain = strings.Repeat("x", largestChain+1) },
			[]string{grouptest.TooLong + "status.certificateChain"}},
		"block": {func(s *status) { s.CertificateChain = string(inPEM("KEY", nil)) },
			[]string{grouptest.Invalid + "status.certificateChain"}},
		"second block": {func(s *status) { s.CertificateChain += string(inPEM("KEY", nil)) },
			[]string{grouptest.Invalid + "status.certificateChain"}},
		"intermediate": {func(s *status) { s.CertificateChain += string(inPEM("CERTIFICATE", []byte("x"))) },
			[]string{grouptest.Invalid + "status.certificateChain"}},
		"other key": {func(s *status) {
			s.CertificateChain = string(inPEM("CERTIFICATE", newCertificate(t, newKey(t), template)))
		}, []string{grouptest.Invalid + "status.certificateChain"}},
		"no times": {func(s *status) { s.NotBefore, s.NotAfter, s.BeginRefreshAt = nil, nil, nil },
			[]string{grouptest.Missing + "status.notBefore", grouptest.Missing + "status.notAfter",
				grouptest.Missing + "status.beginRefreshAt"}},
		"not before": {func(s *status) { s.NotBefore = ptr.To(metav1.NewTime(now.Add(time.Second))) },
			[]string{grouptest.Invalid + "status.notBefore"}},
		"not after": {func(s *status) { s.NotAfter = ptr.To(metav1.NewTime(now)) },
			[]string{grouptest.Invalid + "status.notAfter"}},
		"early refresh": {func(s *status) { s.BeginRefreshAt = ptr.To(metav1.NewTime(now.Add(9 * time.Minute))) },
			[]string{grouptest.Invalid + "status.beginRefreshAt"}},
		"late refresh": {func(s *status) { s.BeginRefreshAt = ptr.To(metav1.NewTime(now.Add(111 * time.Minute))) },
			[]string{grouptest.Invalid + "status.beginRefreshAt"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := old.DeepCopy()
			good.DeepCopyInto(&r.Status)
			c.change(&r.Status)
			grouptest.WantErrors(t, validatePodRequestStatus(r, old, now), c.want...)
		})
	}
	issued := old.DeepCopy()
	issued.Status = good
	grouptest.WantErrors(t, validatePodRequestStatus(issued, old, now.Add(clockSkew)),
		grouptest.Invalid+"status.notBefore")
	grouptest.WantErrors(t, validatePodRequestStatus(issued, issued, now.Add(time.Hour)))
	failed := issued.DeepCopy()
	failed.Status = certificatesv1.PodCertificateRequestStatus{Conditions: condition("Failed")}
	grouptest.WantErrors(t, validatePodRequestStatus(failed, issued, now), grouptest.Invalid+"status")
	short := old.DeepCopy()
	short.Status = good
	short.Spec.MaxExpirationSeconds = ptr.To[int32](3600)
	grouptest.WantErrors(t, validatePodRequestStatus(short, old, now), grouptest.Invalid+"status.certificateChain")
	if got := podRequestState(failed); got != "Failed" {
		t.Errorf("prints %s", got)
	}
}
