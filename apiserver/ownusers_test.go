package apiserver

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"net/http"
	"testing"

	certificatesv1 "k8s.io/api/certificates/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/barque/barque/apiserver/extra"
)

// TestNobodyBecomesAController: only administrators can take the identity of a controller. Both
// kinds of impersonation, a request for a certificate, and an existing certificate are refused to
// others. Other accounts of kube-system are as in Kubernetes.
func TestNobodyBecomesAController(t *testing.T) {
	c := startCluster(t).lead(t)
	ctx := t.Context()
	const thief, other = "system:serviceaccount:kube-system:clusterrole-aggregation-controller",
		"system:serviceaccount:kube-system:default"
	bind := func(name string, role rbacv1.RoleRef, user string) {
		t.Helper()
		must(
			c.admin.RbacV1().RoleBindings("kube-system").Create(ctx,
				&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: role,
					Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}}},
				metav1.CreateOptions{}))(t)
	}
	// No controller aggregates "edit" here, so ann gets the part of it that has the right.
	must(
		c.admin.RbacV1().ClusterRoles().Create(ctx,
			&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "constrained"}, Rules: []rbacv1.PolicyRule{
				{APIGroups: []string{"authentication.k8s.io"}, Resources: []string{"serviceaccounts"},
					Verbs: []string{"impersonate:serviceaccount"}},
				{APIGroups: []string{"authentication.k8s.io"}, Resources: []string{"selfsubjectreviews"},
					Verbs: []string{"impersonate-on:serviceaccount:create"}},
			}}, metav1.CreateOptions{}))(t)
	must(
		c.admin.RbacV1().ClusterRoleBindings().Create(ctx,
			&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "constrained"},
				RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "constrained"},
				Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "bob"}}},
			metav1.CreateOptions{}))(
		t)
	bind("editor", rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:aggregate-to-edit"},
		"ann")
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
	for _, name := range []string{thief, "system:kube-controller-manager", "system:kube-scheduler",
		"system:apiserver"} {
		_, key, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		der, err := x509.CreateCertificateRequest(rand.Reader,
			&x509.CertificateRequest{Subject: pkix.Name{CommonName: name}}, key)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.admin.CertificatesV1().CertificateSigningRequests().Create(ctx,
			&certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: "stolen"},
				Spec: certificatesv1.CertificateSigningRequestSpec{
					Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
					SignerName: certificatesv1.KubeAPIServerClientSignerName,
					Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth}}},
			metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("a request for a certificate of %s: %v", name, err)
		}
	}
}

// TestNobodyBecomesAnAdministrator: a user with all rights of RBAC may impersonate
// system:masters, as in Kubernetes. That opens no path that is for administrators, and gives no
// certificate of theirs.
func TestNobodyBecomesAnAdministrator(t *testing.T) {
	const path = "/barque/v1/anything"
	c := startCluster(t, func(cfg *Config) {
		cfg.Extra = map[string]http.Handler{
			path: extra.MastersAndServers(http.MethodGet, func(http.ResponseWriter, *http.Request) {})}
	}).lead(t)
	ctx := t.Context()
	must(
		c.admin.RbacV1().ClusterRoleBindings().Create(ctx,
			&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "ann"},
				RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
				Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "ann"}}},
			metav1.CreateOptions{}))(
		t)
	as := func(who, group string, groups ...string) kubernetes.Interface {
		config := c.ca.client(t, c.host, pkix.Name{CommonName: who, Organization: groups})
		config.Impersonate = rest.ImpersonationConfig{UserName: "somebody", Groups: []string{group}}
		return kubernetes.NewForConfigOrDie(config)
	}
	opens := func(client kubernetes.Interface) error {
		return client.CoreV1().RESTClient().Get().AbsPath(path).Do(ctx).Error()
	}
	eventually(t, "ann may act as system:masters", func(context.Context) error {
		_, err := as("ann", "system:masters").CoreV1().Secrets("default").List(ctx, metav1.ListOptions{})
		return err
	})
	if err := opens(as("root", "system:masters", "barque:admins")); err != nil {
		t.Errorf("an administrator as another one: %v", err)
	}
	for _, group := range []string{"system:masters", "barque:admins", "barque:server-clients"} {
		if err := opens(as("ann", group)); !apierrors.IsForbidden(err) {
			t.Errorf("ann as %s opens a path for administrators: %v", group, err)
		}
	}
	if err := opens(as("root", "devs", "barque:admins")); !apierrors.IsForbidden(err) {
		t.Errorf("an administrator as somebody else: %v", err)
	}
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader,
		&x509.CertificateRequest{Subject: pkix.Name{CommonName: "ann", Organization: []string{"barque:admins"}}}, key)
	if err != nil {
		t.Fatal(err)
	}
	requests := func(client kubernetes.Interface, name string) error {
		_, err := client.CertificatesV1().CertificateSigningRequests().Create(ctx,
			&certificatesv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{Name: name},
				Spec: certificatesv1.CertificateSigningRequestSpec{
					Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
					SignerName: certificatesv1.KubeAPIServerClientSignerName,
					Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageClientAuth}}}, metav1.CreateOptions{})
		return err
	}
	if err := requests(as("root", "system:masters", "barque:admins"), "given"); err != nil {
		t.Errorf("an administrator as another one requests a certificate of an administrator: %v", err)
	}
	if err := requests(as("ann", "system:masters"), "stolen"); !apierrors.IsForbidden(err) {
		t.Errorf("ann as system:masters requests a certificate of an administrator: %v", err)
	}
}
