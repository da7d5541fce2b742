package clustertest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/ptr"
)

func newKey(t testing.TB) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func inPEM(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// A user asks for a certificate with kubectl, an administrator approves it, and the API knows the
// user by it.
func TestCertificateSigningRequest(t *testing.T) {
	s := newSpace(t)
	key := newKey(t)
	requestOf := func(subject pkix.Name) []byte {
		der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: subject}, key)
		if err != nil {
			t.Fatal(err)
		}
		return inPEM("CERTIFICATE REQUEST", der)
	}
	api := s.Client.CertificatesV1().CertificateSigningRequests()
	ask := func(name string, subject pkix.Name, usages ...certificatesv1.KeyUsage) error {
		_, err := api.Create(t.Context(),
			&certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec: certificatesv1.CertificateSigningRequestSpec{Request: requestOf(subject),
					SignerName: certificatesv1.KubeAPIServerClientSignerName,
					Usages:     usages, ExpirationSeconds: ptr.To[int32](3600)}}, metav1.CreateOptions{})
		if err == nil {
			t.Cleanup(func() {
				if err := api.Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
					t.Error(err)
				}
			})
		}
		return err
	}
	ann := s.Namespace + "-ann"
	if err := ask(ann, pkix.Name{CommonName: ann, Organization: []string{"devs"}}, certificatesv1.UsageClientAuth,
		certificatesv1.UsageDigitalSignature); err != nil {
		t.Fatal(err)
	}
	if err := ask(ann+"-server", pkix.Name{CommonName: ann, Organization: []string{"barque:servers"}},
		certificatesv1.UsageClientAuth); !apierrors.IsForbidden(err) {
		t.Errorf("the name of a server: %v", err)
	}
	if err := ask(ann+"-odd", pkix.Name{CommonName: ann}, certificatesv1.UsageServerAuth); err != nil {
		t.Fatal(err)
	}
	s.K("certificate", "approve", ann, ann+"-odd")
	var cert []byte
	Eventually(t, deadline, "the certificate", func(ctx context.Context) error {
		r, err := api.Get(ctx, ann, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if cert = r.Status.Certificate; len(cert) == 0 {
			return fmt.Errorf("there is none: %+v", r.Status)
		}
		return nil
	})
	Eventually(t, deadline, "the other one fails", func(ctx context.Context) error {
		r, err := api.Get(ctx, ann+"-odd", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(r.Status.Conditions, func(c certificatesv1.CertificateSigningRequestCondition) bool {
			return c.Type == certificatesv1.CertificateFailed && c.Reason == "SignerValidationFailure"
		}) || len(r.Status.Certificate) > 0 {
			return fmt.Errorf("it is %+v", r.Status)
		}
		return nil
	})
	config, err := clientcmd.BuildConfigFromFlags("", s.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(&rest.Config{Host: config.Host, TLSClientConfig: rest.TLSClientConfig{
		CAData: config.CAData, CertData: cert, KeyData: inPEM("PRIVATE KEY", der)}})
	if err != nil {
		t.Fatal(err)
	}
	who, err := client.AuthenticationV1().SelfSubjectReviews().Create(t.Context(),
		&authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if u := who.Status.UserInfo; u.Username != ann || !slices.Contains(u.Groups, "devs") {
		t.Errorf("the API knows %+v", u)
	}
}

// podSigner signs requests of pods until the test ends.
type podSigner struct {
	name string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	deny string // of pods with this name
}

func newPodSigner(s *Space, name string) *podSigner {
	s.Helper()
	p := &podSigner{name: name, key: newKey(s)}
	p.cert = p.authority(s)
	return p
}

// authority makes another certificate of the same signer.
func (p *podSigner) authority(s *Space) *x509.Certificate {
	s.Helper()
	template := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject: pkix.Name{CommonName: p.name}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Minute),
		NotAfter: time.Now().Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, p.key.Public(), p.key)
	if err != nil {
		s.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		s.Fatal(err)
	}
	return cert
}

// run signs the certificate requests in the test's namespace.
func (p *podSigner) run(s *Space) {
	requests := s.Client.CertificatesV1().PodCertificateRequests(s.Namespace)
	done := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	s.Cleanup(func() { cancel(); <-done })
	go func() {
		defer close(done)
		look := time.NewTicker(time.Second / 4)
		defer look.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-look.C:
			}
			list, err := requests.List(ctx, metav1.ListOptions{FieldSelector: "spec.signerName=" + p.name})
			if err != nil {
				continue
			}
			for i := range list.Items {
				if r := &list.Items[i]; len(r.Status.Conditions) == 0 {
					if err := p.answer(r); err != nil {
						s.Errorf("request %s: %v", r.Name, err)
						return
					}
					if _, err := requests.UpdateStatus(ctx, r, metav1.UpdateOptions{}); err != nil && ctx.Err() == nil {
						s.Logf("request %s: %v", r.Name, err)
					}
				}
			}
		}
	}()
}

func (p *podSigner) answer(r *certificatesv1.PodCertificateRequest) error {
	now := metav1.NewTime(time.Now().Truncate(time.Second))
	condition := metav1.Condition{Type: certificatesv1.PodCertificateRequestConditionTypeIssued,
		Status: metav1.ConditionTrue, Reason: "Signed", Message: "by the test", LastTransitionTime: now}
	if r.Spec.PodName == p.deny {
		condition.Type, condition.Reason = certificatesv1.PodCertificateRequestConditionTypeDenied, "NotForYou"
		r.Status.Conditions = []metav1.Condition{condition}
		return nil
	}
	asked, err := x509.ParseCertificateRequest(r.Spec.StubPKCS10Request)
	if err != nil {
		return err
	}
	life := time.Duration(*r.Spec.MaxExpirationSeconds) * time.Second
	leaf := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), NotBefore: now.Time,
		NotAfter: now.Add(life),
		URIs: []*url.URL{
			{Scheme: "spiffe", Host: "test",
				Path: "/" + r.Namespace + "/" + r.Spec.PodName + r.Spec.UnverifiedUserAnnotations["example.com/path"]}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, leaf, p.cert, asked.PublicKey, p.key)
	if err != nil {
		return err
	}
	r.Status = certificatesv1.PodCertificateRequestStatus{Conditions: []metav1.Condition{condition},
		CertificateChain: string(inPEM("CERTIFICATE", der)),
		NotBefore:        &now, NotAfter: ptr.To(metav1.NewTime(leaf.NotAfter)),
		BeginRefreshAt: ptr.To(metav1.NewTime(now.Add(life / 2)))}
	return nil
}

// A pod gets a certificate of its own and the anchors to verify others with; the anchors follow
// their bundles. A pod that the signer refuses does not start, and its events give the reason.
func TestPodCertificates(t *testing.T) {
	s := newSpace(t)
	signer := newPodSigner(s, "test.example.com/"+s.Namespace)
	signer.deny = "denied"
	signer.run(s)
	bundle := &certificatesv1.ClusterTrustBundle{
		ObjectMeta: metav1.ObjectMeta{Name: "test.example.com:" + s.Namespace + ":a",
			Labels: map[string]string{"live": "yes"}},
		Spec: certificatesv1.ClusterTrustBundleSpec{SignerName: signer.name,
			TrustBundle: string(inPEM("CERTIFICATE", signer.cert.Raw))},
	}
	bundles := s.Client.CertificatesV1().ClusterTrustBundles()
	bundle, err := bundles.Create(t.Context(), bundle, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := bundles.Delete(context.Background(), bundle.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	pod := func(name string) {
		s.Apply(fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: %[1]s}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: c
    image: busybox:1.36
    command: [sleep, "3600"]
    volumeMounts: [{name: tls, mountPath: /tls}]
  volumes:
  - name: tls
    projected:
      sources:
      - podCertificate: {signerName: %[2]s, keyType: ECDSAP384, maxExpirationSeconds: 3600, credentialBundlePath: bundle.pem, keyPath: key.pem, userAnnotations: {example.com/path: /x}}
      - clusterTrustBundle: {signerName: %[2]s, labelSelector: {matchLabels: {live: "yes"}}, path: anchors.pem}
      - clusterTrustBundle: {signerName: kubernetes.io/kube-apiserver-serving, labelSelector: {}, path: api.pem}
      - clusterTrustBundle: {name: not-there, optional: true, path: none.pem}
`, name, signer.name))
	}
	pod("own")
	pod("denied")
	s.WaitReady("own")
	files := func(names ...string) string {
		return s.K("exec", "own", "--", "cat", "/tls/"+strings.Join(names, " /tls/"))
	}
	credential := files("bundle.pem")
	pair, err := tls.X509KeyPair([]byte(credential), []byte(credential))
	if err != nil {
		t.Fatalf("%v in %s", err, credential)
	}
	anchors := x509.NewCertPool()
	anchors.AppendCertsFromPEM([]byte(files("anchors.pem")))
	if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: anchors}); err != nil {
		t.Errorf("the pod's certificate by the pod's anchors: %v", err)
	}
	if got, want := pair.Leaf.URIs[0].String(), "spiffe://test/"+s.Namespace+"/own/x"; got != want ||
		pair.Leaf.NotAfter.Sub(pair.Leaf.NotBefore) != time.Hour {
		t.Errorf("the certificate is of %s for %v, want %s", got, pair.Leaf.NotAfter.Sub(pair.Leaf.NotBefore), want)
	}
	if key := files("key.pem"); key == "" || !strings.HasPrefix(credential, key) {
		t.Error("the key's file is not the key of the credential")
	}
	config, err := clientcmd.BuildConfigFromFlags("", s.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	if got := files("api.pem"); got != string(config.CAData) {
		t.Errorf("the API's anchors are %s, want %s", got, config.CAData)
	}
	if got := s.K("exec", "own", "--", "sh", "-c",
		"stat -L -c %s /tls/none.pem; awk '$2 == \"/tls\" {print $3}' /proc/mounts"); got != "0\ntmpfs\n" {
		t.Errorf("the size of what is not there, and the file system, are %q", got)
	}
	s.WaitEvent("denied", "Denied", `reason="NotForYou"`)
	if p := s.Pod("denied"); p.Status.Phase != corev1.PodPending {
		t.Errorf("the pod that was refused is %s", p.Status.Phase)
	}
	bundle.Spec.TrustBundle += string(inPEM("CERTIFICATE", signer.authority(s).Raw))
	if _, err := bundles.Update(t.Context(), bundle, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	Eventually(t, deadline, "the new anchor", func(context.Context) error {
		if n := strings.Count(files("anchors.pem"), "BEGIN CERTIFICATE"); n != 2 {
			return errors.New("there are not two")
		}
		return nil
	})
	if again := files("bundle.pem"); again != credential {
		t.Error("the certificate has changed with the anchors")
	}
}
