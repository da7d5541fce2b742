package apiserver

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// testCertificates follows a request from its creation by one user to its approval by another.
func testCertificates(t *testing.T, c *cluster) {
	ctx := t.Context()
	must(
		c.admin.RbacV1().ClusterRoles().Create(ctx,
			&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "asking"}, Rules: []rbacv1.PolicyRule{{
				APIGroups: []string{"certificates.k8s.io"}, Verbs: []string{"*"},
				Resources: []string{"certificatesigningrequests", "certificatesigningrequests/approval",
					"podcertificaterequests", "podcertificaterequests/status"},
			}}}, metav1.CreateOptions{}))(t)
	must(
		c.admin.RbacV1().ClusterRoleBindings().Create(ctx,
			&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "asking"},
				RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "asking"},
				Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "asking"}}},
			metav1.CreateOptions{}))(t)
	asking := kubernetes.NewForConfigOrDie(c.ca.client(t, c.host, subject("asking"))).CertificatesV1()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der := must(x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key))(t)
	request := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "r"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			SignerName: "example.com/s", Username: "admin", Usages: []certificatesv1.KeyUsage{certificatesv1.UsageAny},
			Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
		},
		Status: certificatesv1.CertificateSigningRequestStatus{
			Conditions: []certificatesv1.CertificateSigningRequestCondition{
				{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue}}},
	}
	var made *certificatesv1.CertificateSigningRequest
	eventually(t, "the user may ask", func(ctx context.Context) error {
		made, err = asking.CertificateSigningRequests().Create(ctx, request, metav1.CreateOptions{})
		return err
	})
	if made.Spec.Username != "asking" || len(made.Status.Conditions) > 0 {
		t.Errorf("asked as %q with %v", made.Spec.Username, made.Status.Conditions)
	}
	proxy := request.DeepCopy()
	proxy.Name, proxy.Spec.SignerName = "proxy", certificatesv1.KubeAPIServerClientSignerName
	named := must(
		x509.CreateCertificateRequest(rand.Reader,
			&x509.CertificateRequest{Subject: pkix.Name{CommonName: ProxyClientName}}, key))(t)
	proxy.Spec.Request = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: named})
	if _, err := c.admin.CertificatesV1().CertificateSigningRequests().Create(ctx, proxy,
		metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("asking for the certificate of the front proxy: %v", err)
	}
	made.Status.Conditions = request.Status.Conditions
	if _, err := asking.CertificateSigningRequests().UpdateApproval(ctx, "r", made,
		metav1.UpdateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("approval by the one who asked: %v", err)
	}
	all := c.admin.CertificatesV1().CertificateSigningRequests()
	if _, err := all.UpdateStatus(ctx, made, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("approval by the status: %v", err)
	}
	approved := must(all.UpdateApproval(ctx, "r", made, metav1.UpdateOptions{}))(t)
	if len(approved.Status.Conditions) != 1 || approved.Status.Conditions[0].LastUpdateTime.IsZero() {
		t.Errorf("approved as %+v", approved.Status)
	}
	approved.Spec.SignerName = "example.com/other"
	if kept := must(all.Update(ctx, approved, metav1.UpdateOptions{}))(t); kept.Spec.SignerName != "example.com/s" ||
		len(kept.Status.Conditions) != 1 {
		t.Errorf("an update changed the request to %+v", kept)
	}
	testPodCertificates(t, c, der)
}

// testPodCertificates checks which users may end a request of a pod.
func testPodCertificates(t *testing.T, c *cluster, der []byte) {
	ctx := t.Context()
	requests := c.admin.CertificatesV1().PodCertificateRequests("default")
	made := must(requests.Create(ctx, &certificatesv1.PodCertificateRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "r"},
		Spec: certificatesv1.PodCertificateRequestSpec{SignerName: "example.com/s", PodName: "p", PodUID: "1",
			ServiceAccountName: "s", ServiceAccountUID: "2",
			NodeName: "o", NodeUID: "3", StubPKCS10Request: der},
	}, metav1.CreateOptions{}))(t)
	made.Status.Conditions = []metav1.Condition{
		{Type: certificatesv1.PodCertificateRequestConditionTypeDenied, Status: metav1.ConditionTrue, Reason: "R",
			LastTransitionTime: metav1.Now()}}
	asking := kubernetes.NewForConfigOrDie(
		c.ca.client(t, c.host, subject("asking"))).CertificatesV1().PodCertificateRequests("default")
	if _, err := asking.UpdateStatus(ctx, made, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("denial by a user who may not sign: %v", err)
	}
	denied := must(requests.UpdateStatus(ctx, made, metav1.UpdateOptions{}))(t)
	if len(denied.Status.Conditions) != 1 {
		t.Errorf("denied as %+v", denied.Status)
	}
}
