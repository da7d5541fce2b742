package apiserver

import (
	"context"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	restclient "k8s.io/client-go/rest"

	"github.com/barque/barque/apiserver/audit"
)

// TestOptions drives a server with all that is optional.
func TestOptions(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	auditLog := filepath.Join(dir, "audit.log")
	say := func(what string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(what)) })
	}
	c := startCluster(t, func(cfg *Config) {
		cfg.TokenFile = write("tokens.csv", "opensesame,ann,1,system:masters\n")
		o := audit.NewOptions()
		o.PolicyFile = write("policy.yaml", "apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n")
		cfg.Audit = runAudit(t, o, auditLog)
		cfg.AnonymousPaths = []string{"/livez"}
		cfg.Unauthenticated = map[string]http.Handler{"/join": say("join")}
		cfg.Extra = map[string]http.Handler{"/barque/status": say("status")}
		cfg.Build = "v0.1.0"
		cfg.TolerationSeconds = &TolerationSeconds{NotReady: 6, Unreachable: 7}
	})
	as := func(token string) kubernetes.Interface {
		return kubernetes.NewForConfigOrDie(
			&restclient.Config{Host: c.host, BearerToken: token,
				TLSClientConfig: restclient.TLSClientConfig{CAData: c.ca.pem}})
	}
	get := func(token, path string) (string, error) {
		body, err := as(token).CoreV1().RESTClient().Get().AbsPath(path).DoRaw(t.Context())
		return string(body), err
	}
	if _, err := as("opensesame").CoreV1().Nodes().List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Errorf("a static token: %v", err)
	}
	if body, err := get("", "/join/x"); err != nil || body != "join" {
		t.Errorf("an unauthenticated path: %q, %v", body, err)
	}
	if body, err := get("opensesame", "/barque/status"); err != nil || body != "status" {
		t.Errorf("an extra path: %q, %v", body, err)
	}
	if _, err := get("", "/barque/status"); !apierrors.IsUnauthorized(err) {
		t.Errorf("an extra path without credentials: %v", err)
	}
	if _, err := get("", "/api"); !apierrors.IsUnauthorized(err) {
		t.Errorf("anonymous beyond its paths: %v", err)
	}
	v := must(as("opensesame").Discovery().ServerVersion())(t)
	if v.GitVersion != "v"+kubernetesVersion+"+barque.v0.1.0" {
		t.Errorf("version %s", v.GitVersion)
	}
	must(
		c.admin.CoreV1().Namespaces().Create(t.Context(),
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}))(t)
	must(
		c.admin.CoreV1().ServiceAccounts("default").Create(t.Context(),
			&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}, metav1.CreateOptions{}))(t)
	pod := must(
		c.admin.CoreV1().Pods("default").Create(t.Context(),
			&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: podSpec()}, metav1.CreateOptions{}))(t)
	for _, toleration := range pod.Spec.Tolerations {
		want := map[string]int64{corev1.TaintNodeNotReady: 6, corev1.TaintNodeUnreachable: 7}[toleration.Key]
		if toleration.TolerationSeconds == nil || *toleration.TolerationSeconds != want {
			t.Errorf("toleration %+v, want %d s", toleration, want)
		}
	}
	eventually(t, "the audit log", func(context.Context) error {
		log, err := os.ReadFile(auditLog)
		if err == nil && !strings.Contains(string(log), `"username":"ann"`) {
			err = apierrors.NewInternalError(os.ErrNotExist)
		}
		return err
	})
}

// runAudit runs an audit log for the test.
func runAudit(t testing.TB, o *audit.Options, path string) *audit.Log {
	t.Helper()
	log := must(audit.New(o, path, slog.New(slog.DiscardHandler)))(t)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- log.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return log
}

func TestUnderPrefix(t *testing.T) {
	for _, c := range []struct {
		path, prefix string
		want         bool
	}{
		{"/join", "/join", true}, {"/join/a", "/join", true}, {"/joined", "/join", false}, {"/join/a", "/join/", true},
		{"/", "/join", false},
	} {
		if got := underPrefix(c.path, c.prefix); got != c.want {
			t.Errorf("underPrefix(%q, %q) = %v", c.path, c.prefix, got)
		}
	}
}

func TestConfigSaysWhatIsMissing(t *testing.T) {
	if _, err := New(Config{}); err == nil || !strings.Contains(err.Error(), "required") {
		t.Errorf("an empty configuration: %v", err)
	}
}
