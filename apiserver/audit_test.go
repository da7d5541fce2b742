package apiserver

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/barque/barque/apiserver/audit"
)

// TestAuditedRequests: with the default policy the log has the users that wrote and that read
// Secrets, not their contents, and no other reads.
func TestAuditedRequests(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.log")
	c := startCluster(t, func(cfg *Config) { cfg.Audit = runAudit(t, audit.NewOptions(), path) })
	ctx := t.Context()
	must(
		c.admin.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}},
			metav1.CreateOptions{}))(t)
	secrets := c.admin.CoreV1().Secrets("ns")
	must(
		secrets.Create(ctx,
			&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}, StringData: map[string]string{"key": "hidden-1"}},
			metav1.CreateOptions{}))(t)
	must(
		secrets.Patch(ctx, "s", types.MergePatchType, []byte(`{"stringData":{"key":"hidden-2"}}`),
			metav1.PatchOptions{}))(t)
	must(secrets.List(ctx, metav1.ListOptions{}))(t)
	must(
		c.admin.CoreV1().ConfigMaps("ns").Create(ctx,
			&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "cm"}, Data: map[string]string{"key": "hidden-3"}},
			metav1.CreateOptions{}))(t)
	must(c.admin.CoreV1().ConfigMaps("ns").List(ctx, metav1.ListOptions{}))(t)
	must(c.admin.RbacV1().Roles("ns").Create(ctx, &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "r"},
		Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"a-verb"}}}},
		metav1.CreateOptions{}))(t)
	if err := c.admin.CoreV1().ConfigMaps("ns").Delete(ctx, "cm", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	var log string
	eventually(t, "the last event", func(context.Context) error {
		data, err := os.ReadFile(path)
		if log = string(data); err == nil && !strings.Contains(log, `"verb":"delete"`) {
			return errors.New("it is missing")
		}
		return err
	})
	for _, want := range []string{
		`"resource":"secrets","namespace":"ns","name":"s"`, `"verb":"patch"`,
		`"requestURI":"/api/v1/namespaces/ns/secrets"`,
		`"resource":"configmaps","namespace":"ns","name":"cm"`, `"a-verb"`, `"verb":"list"`,
	} {
		if !strings.Contains(log, want) {
			t.Errorf("the log lacks %s:\n%s", want, log)
		}
	}
	for _, not := range []string{"hidden", "aGlkZGVu", `"managedFields"`, `"stage":"RequestReceived"`} {
		if strings.Contains(log, not) {
			t.Errorf("the log has %s:\n%s", not, log)
		}
	}
	for line := range strings.Lines(log) {
		if strings.Contains(line, `"verb":"list"`) && !strings.Contains(line, `"resource":"secrets"`) {
			t.Errorf("a read: %s", line)
		}
		if strings.Contains(line, `"username":"system:apiserver"`) && strings.Contains(line, `"verb":"watch"`) {
			t.Errorf("an informer: %s", line)
		}
	}
}
