package certificates

import (
	"crypto"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/barque/barque/controllers/controllertest"
)

// TestApproveAndSign goes the way of kubectl certificate approve.
func TestApproveAndSign(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := controllertest.New(t)
		ca := newAuthority(t, time.Now())
		signer := &unsteady{Signer: ca}
		signer.ill.Store(true)
		ctrl, err := NewSigning(Config{Informers: c.Informers, Signer: signer})
		if err != nil {
			t.Fatal(err)
		}
		c.Start(ctrl.Run)
		api := c.Client.CertificatesV1().CertificateSigningRequests()
		get := func(name string) *certificatesv1.CertificateSigningRequest {
			r, err := api.Get(t.Context(), name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			return r
		}
		for name, usages := range map[string][]certificatesv1.KeyUsage{"good": clientUsages, "bad": servingUsages,
			"waiting": clientUsages} {
			r := request(t, certificatesv1.KubeAPIServerClientSignerName, x509.CertificateRequest{Subject: of("eve")},
				usages)
			r.Name = name
			if r, err = api.Create(t.Context(), r, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			if name == "waiting" {
				continue
			}
			r.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{
				{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue, Reason: "R"}}
			if _, err := api.UpdateApproval(t.Context(), name, r, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(5 * time.Minute)
		if r := get("good"); len(r.Status.Certificate) > 0 || has(r, certificatesv1.CertificateFailed) {
			t.Errorf("a CA that cannot sign: %+v", r.Status)
		}
		signer.ill.Store(false)
		time.Sleep(5 * time.Minute)
		block, rest := pem.Decode(get("good").Status.Certificate)
		if block == nil || len(rest) > 0 {
			t.Fatalf("the certificate is %q", get("good").Status.Certificate)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil || cert.Subject.CommonName != "eve" || cert.CheckSignatureFrom(ca.cert) != nil {
			t.Errorf("signed is %v, %v", cert.Subject, err)
		}
		if r := get("bad"); !has(r, certificatesv1.CertificateFailed) ||
			condition(r, certificatesv1.CertificateFailed).Reason != "SignerValidationFailure" ||
			len(r.Status.Certificate) > 0 {
			t.Errorf("with the usages of a server: %+v", r.Status)
		}
		if r := get("waiting"); len(r.Status.Certificate) > 0 {
			t.Error("signed before it was approved")
		}
		writes, signed := len(writesOf(c)), signer.signed.Load()
		time.Sleep(time.Hour)
		if n := len(writesOf(c)); n != writes || signer.signed.Load() != signed {
			t.Errorf("%d writes and %d signatures after all was done", n-writes, signer.signed.Load()-signed)
		}
	})
	if _, err := NewSigning(Config{}); err == nil {
		t.Error("a signing controller without a signer was made")
	}
}

// unsteady is a Signer that may fail.
type unsteady struct {
	Signer
	ill    atomic.Bool
	signed atomic.Int32
}

func (u *unsteady) Sign(template *x509.Certificate, public crypto.PublicKey, now time.Time) ([]byte, error) {
	if u.ill.Load() {
		return nil, errors.New("no key")
	}
	u.signed.Add(1)
	return u.Signer.Sign(template, public, now)
}

func writesOf(c *controllertest.Cluster) []clienttesting.Action {
	return slices.DeleteFunc(c.Client.Actions(), func(a clienttesting.Action) bool {
		return slices.Contains([]string{"get", "list", "watch"}, a.GetVerb()) ||
			a.GetResource().Resource == "subjectaccessreviews"
	})
}

// TestKubeletsAreApproved: a kubelet whose user may have it so is approved, also when it may only
// later; others wait.
func TestKubeletsAreApproved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := controllertest.New(t)
		var mu sync.Mutex
		allowed := map[string]string{"bootstrap": "nodeclient", "system:node:n": "selfnodeclient"}
		asked := 0
		c.Client.PrependReactor("create", "subjectaccessreviews",
			func(a clienttesting.Action) (bool, kruntime.Object, error) {
				review := a.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview).DeepCopy()
				at := review.Spec.ResourceAttributes
				if at.Group != "certificates.k8s.io" || at.Resource != "certificatesigningrequests" ||
					at.Verb != "create" {
					t.Errorf("asked about %+v", at)
				}
				mu.Lock()
				defer mu.Unlock()
				asked++
				review.Status.Allowed = allowed[review.Spec.User] == at.Subresource
				return true, review, nil
			})
		for name, user := range map[string]string{"a": "bootstrap", "b": "system:node:n", "c": "eve", "d": "late"} {
			r := request(t, certificatesv1.KubeAPIServerClientKubeletSignerName,
				x509.CertificateRequest{Subject: of("system:node:n", "system:nodes")}, clientUsages)
			r.Name, r.Spec.Username, r.CreationTimestamp = name, user, metav1.Now()
			c.Add(r)
		}
		ctrl, err := NewApproving(Config{Informers: c.Informers})
		if err != nil {
			t.Fatal(err)
		}
		c.Start(ctrl.Run)
		approved := func() string {
			l, err := c.Client.CertificatesV1().CertificateSigningRequests().List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, r := range l.Items {
				if has(&r, certificatesv1.CertificateApproved) {
					names = append(names, r.Name)
				}
			}
			slices.Sort(names)
			return strings.Join(names, " ")
		}
		time.Sleep(time.Minute)
		if got := approved(); got != "a b" {
			t.Errorf("approved are %q", got)
		}
		mu.Lock()
		allowed["late"] = "nodeclient"
		mu.Unlock()
		time.Sleep(15 * time.Minute)
		if got := approved(); got != "a b d" {
			t.Errorf("later, approved are %q", got)
		}
		mu.Lock()
		before := asked
		mu.Unlock()
		time.Sleep(24 * time.Hour)
		mu.Lock()
		defer mu.Unlock()
		if n := asked - before; n > 24*4+10 {
			t.Errorf("%d questions in a day about one request", n)
		}
	})
}

func TestRequestsAreCleanedUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := controllertest.New(t)
		for name, kind := range map[string]certificatesv1.RequestConditionType{
			"denied": certificatesv1.CertificateDenied, "approved": certificatesv1.CertificateApproved, "pending": ""} {
			r := &certificatesv1.CertificateSigningRequest{
				ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.Now()}}
			if kind != "" {
				r.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{
					{Type: kind, LastUpdateTime: metav1.NewTime(time.Now().Add(2 * time.Hour))}}
			}
			c.Add(r)
		}
		c.Add(
			&certificatesv1.PodCertificateRequest{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "pod", CreationTimestamp: metav1.Now()}})
		for _, make := range []func(Config) (*Controller, error){NewCleaner, NewPodRequestCleaner} {
			ctrl, err := make(Config{Informers: c.Informers})
			if err != nil {
				t.Fatal(err)
			}
			c.Start(ctrl.Run)
		}
		left := func() string {
			var names []string
			requests, err := c.Client.CertificatesV1().CertificateSigningRequests().List(t.Context(),
				metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range requests.Items {
				names = append(names, r.Name)
			}
			pods, err := c.Client.CertificatesV1().PodCertificateRequests("ns").List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range pods.Items {
				names = append(names, r.Name)
			}
			slices.Sort(names)
			return strings.Join(names, " ")
		}
		for _, step := range []struct {
			after time.Duration
			want  string
		}{
			{14 * time.Minute, "approved denied pending pod"},
			{2 * time.Minute, "approved denied pending"},
			{2*time.Hour + 43*time.Minute, "approved denied pending"},
			{2 * time.Minute, "approved pending"},
			{21 * time.Hour, "approved"},
			{2 * time.Hour, ""},
		} {
			time.Sleep(step.after)
			if got := left(); got != step.want {
				t.Errorf("after %v more: %q, want %q", step.after, got, step.want)
			}
		}
	})
}

// TestTheCAIsPublished: the bundle follows the CA, is restored after a change by another client,
// and is the only one of its signer.
func TestTheCAIsPublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := controllertest.New(t,
			&certificatesv1.ClusterTrustBundle{
				ObjectMeta: metav1.ObjectMeta{Name: "kubernetes.io:kube-apiserver-serving:forged"},
				Spec:       certificatesv1.ClusterTrustBundleSpec{SignerName: ServingSigner, TrustBundle: "forged"}},
			&certificatesv1.ClusterTrustBundle{ObjectMeta: metav1.ObjectMeta{Name: "mine"},
				Spec: certificatesv1.ClusterTrustBundleSpec{TrustBundle: "mine"}})
		ca := newCA("one")
		ctrl, err := NewPublisher(Config{Informers: c.Informers, CA: ca})
		if err != nil {
			t.Fatal(err)
		}
		c.Start(ctrl.Run)
		api := c.Client.CertificatesV1().ClusterTrustBundles()
		want := func(what string) {
			t.Helper()
			controllertest.Eventually(t, what, func() bool {
				l, err := api.List(t.Context(), metav1.ListOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if len(l.Items) != 2 {
					return false
				}
				for _, b := range l.Items {
					if b.Name != "mine" &&
						(b.Name != bundleName(string(ca.PEM())) || b.Spec.TrustBundle != string(ca.PEM()) ||
							b.Spec.SignerName != ServingSigner) {
						return false
					}
				}
				return true
			})
		}
		want("the bundle")
		b, err := api.Get(t.Context(), bundleName(string(ca.PEM())), metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		b.Spec.TrustBundle = "forged"
		if _, err := api.Update(t.Context(), b, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		want("a changed one is put right")
		if err := api.Delete(t.Context(), b.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		want("a deleted one is made anew")
		ca.set("two")
		want("the bundle of the next CA")
		time.Sleep(time.Minute)
		writes := len(writesOf(c))
		time.Sleep(24 * time.Hour)
		if n := len(writesOf(c)); n != writes {
			t.Errorf("%d writes after all was done", n-writes)
		}
	})
	if _, err := NewPublisher(Config{CA: newCA("")}); err == nil {
		t.Error("nonsense was accepted as a CA")
	}
}

// changingCA is a CA that is exchanged.
type changingCA struct {
	mu      sync.Mutex
	text    string
	changed chan struct{}
}

func newCA(text string) *changingCA {
	if text != "" {
		text = "-----BEGIN CERTIFICATE-----\n" + text
	}
	return &changingCA{text: text, changed: make(chan struct{})}
}

func (c *changingCA) PEM() []byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return []byte(c.text)
}

func (c *changingCA) Changed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.changed
}

func (c *changingCA) set(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.text = newCA(text).text
	close(c.changed)
	c.changed = make(chan struct{})
}
