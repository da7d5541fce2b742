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
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// TestNobodyBecomesAController: of the ways to the identity of a controller, none is open but to
// administrators: neither both kinds of impersonation, nor a request for a certificate, nor a
// certificate that is there already. Other accounts of kube-system are as in Kubernetes.
func TestNobodyBecomesAController(t *testing.T) {
	c := startCluster(t).lead(t)
	ctx := t.Context()
	const thief, other = "system:serviceaccount:kube-system:clusterrole-aggregation-controller", "system:serviceaccount:kube-system:default"
	bind := func(name string, role rbacv1.RoleRef, user string) {
		t.Helper()
		must(c.admin.RbacV1().RoleBindings("kube-system").Create(ctx, &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: role,
			Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}}}, metav1.CreateOptions{}))(t)
	}
	// No controller aggregates "edit" here, so ann gets the part of it that has the right.
	must(c.admin.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "constrained"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"authentication.k8s.io"}, Resources: []string{"serviceaccounts"}, Verbs: []string{"impersonate:serviceaccount"}},
		{APIGroups: []string{"authentication.k8s.io"}, Resources: []string{"selfsubjectreviews"}, Verbs: []string{"impersonate-on:serviceaccount:create"}},
	}}, metav1.CreateOptions{}))(t)
	must(c.admin.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "constrained"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "constrained"},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "bob"}}}, metav1.CreateOptions{}))(t)
	bind("editor", rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:aggregate-to-edit"}, "ann")
	as := func(who, taken string, groups ...string) kubernetes.Interface {
		config := c.ca.client(t, c.host, pkix.Name{CommonName: who, Organization: groups})
		config.Impersonate.UserName = taken
		return kubernetes.NewForConfigOrDie(config)
	}
	for _, who := range []string{"ann", "bob"} {
		eventually(t, who+" may act as another account", func(context.Context) error {
			_, err := whoAmI(t, as(who, other))
			return err
		})
		if is, err := whoAmI(t, as(who, thief)); !apierrors.IsForbidden(err) {
			t.Errorf("%s is %q: %v", who, is.Username, err)
		}
	}
	eventually(t, "an administrator may act as a controller", func(context.Context) error {
		_, err := whoAmI(t, as("root", thief, "barque:admins"))
		return err
	})
	if is, err := whoAmI(t, c.named(t, thief)); !apierrors.IsUnauthorized(err) {
		t.Errorf("a certificate of an earlier version is of %q: %v", is.Username, err)
	}
	for _, name := range []string{thief, "system:kube-controller-manager", "system:kube-scheduler", "system:apiserver"} {
		_, key, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{Subject: pkix.Name{CommonName: name}}, key)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.admin.CertificatesV1().CertificateSigningRequests().Create(ctx, &certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: "stolen"},
			Spec: certificatesv1.CertificateSigningRequestSpec{Request: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
				SignerName: certificatesv1.KubeAPIServerClientSignerName, Usages: []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth}}}, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("a request for a certificate of %s: %v", name, err)
		}
	}
}
