package oidc

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dexidp/dex/server"
	"github.com/dexidp/dex/storage"
	"github.com/dexidp/dex/storage/memory"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/sirupsen/logrus"
	"golang.org/x/crypto/bcrypt"
)

const (
	callback = "http://127.0.0.1:5555/callback"
	clientID = "barque"
	secret   = "the client's secret"
)

// dex is a running provider.
type dex struct {
	*httptest.Server
	issuer string
}

func startDex(t *testing.T) *dex {
	t.Helper()
	module, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/dexidp/dex").Output()
	if err != nil {
		t.Fatal(err)
	}
	hash, err := bcrypt.GenerateFromPassword([]byte("ann's password"), 10)
	if err != nil {
		t.Fatal(err)
	}
	logger := logrus.New()
	logger.SetOutput(io.Discard)
	s := storage.WithStaticPasswords(memory.New(logger),
		[]storage.Password{{Email: "ann@example.org", Username: "ann", UserID: "7", Hash: hash}}, logger)
	s = storage.WithStaticClients(s,
		[]storage.Client{{ID: clientID, Secret: secret, Name: "Barque", RedirectURIs: []string{callback}}})
	s = storage.WithStaticConnectors(s, []storage.Connector{
		{ID: "local", Type: server.LocalConnector, Name: "Email"},
		{ID: "mock", Type: "mockCallback", Name: "Mock", Config: []byte("{}")},
	})
	var handler atomic.Pointer[server.Server]
	d := &dex{
		Server: httptest.NewTLSServer(
			http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handler.Load().ServeHTTP(w, r) }))}
	d.issuer = d.URL + "/dex"
	ctx, cancel := context.WithCancel(context.Background())
	running, err := server.NewServer(ctx,
		server.Config{Issuer: d.issuer, Storage: s, SkipApprovalScreen: true, Logger: logger,
			PrometheusRegistry: prometheus.NewRegistry(),
			Web:                server.WebConfig{Dir: filepath.Join(strings.TrimSpace(string(module)), "web")}})
	if err != nil {
		t.Fatal(err)
	}
	handler.Store(running)
	t.Cleanup(func() { cancel(); d.Close() })
	return d
}

func (d *dex) ca() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: d.Certificate().Raw}))
}

// login goes through the provider's pages, and returns the ID token.
func (d *dex) login(t *testing.T, connector string, form url.Values) string {
	t.Helper()
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	browser := &http.Client{Transport: d.Client().Transport, Jar: jar, Timeout: hang,
		CheckRedirect: func(r *http.Request, _ []*http.Request) error {
			if strings.HasPrefix(r.URL.String(), callback) {
				return http.ErrUseLastResponse
			}
			return nil
		}}
	page := func(response *http.Response, err error) (*http.Response, string) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response, string(body)
	}
	_, choice := page(
		browser.Get(
			d.issuer + "/auth?" +
				url.Values{"client_id": {clientID}, "redirect_uri": {callback}, "response_type": {"code"},
					"scope": {"openid email profile groups"}, "state": {"s"}}.Encode()))
	link := regexp.MustCompile(`href="([^"]*/auth/` + connector + `\?req=[^"]+)"`).FindStringSubmatch(choice)
	if link == nil {
		t.Fatalf("no way to %s in the page:\n%s", connector, choice)
	}
	at, err := url.Parse(d.issuer)
	if err != nil {
		t.Fatal(err)
	}
	next, err := at.Parse(link[1])
	if err != nil {
		t.Fatal(err)
	}
	last, body := page(browser.Get(next.String()))
	if form != nil {
		last, body = page(browser.PostForm(last.Request.URL.String(), form))
	}
	to, err := last.Location()
	if err != nil || to.Query().Get("code") == "" {
		t.Fatalf("the login ends at %s with %s:\n%s", last.Request.URL, last.Status, body)
	}
	request, err := http.NewRequest(http.MethodPost, d.issuer+"/token",
		strings.NewReader(
			url.Values{"grant_type": {"authorization_code"}, "code": {to.Query().Get("code")},
				"redirect_uri": {callback}}.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	request.SetBasicAuth(url.QueryEscape(clientID), url.QueryEscape(secret))
	_, body = page(browser.Do(request))
	var tokens struct {
		ID string `json:"id_token"`
	}
	if err := json.Unmarshal([]byte(body), &tokens); err != nil || tokens.ID == "" {
		t.Fatalf("no ID token in %s", body)
	}
	return tokens.ID
}

// TestDex: a user logs in with a password at Dex, and kubectl with the token. Rights follow name
// and groups; a changed file counts without a restart.
func TestDex(t *testing.T) {
	d := startDex(t)
	config := filepath.Join(t.TempDir(), "authentication.yaml")
	file := func(prefix string) string {
		return fmt.Sprintf(
			"apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\njwt:\n- issuer:\n    url: %s\n    audiences: [%s]\n    certificateAuthority: %q\n"+
				"  claimValidationRules:\n  - {expression: \"claims.email_verified == true\", message: the address is not verified}\n"+
				"  claimMappings:\n    username: {claim: email, prefix: \"%s\"}\n    groups: {claim: groups, prefix: \"%s\"}\n", d.issuer, clientID, d.ca(), prefix, prefix)
	}
	write(t, config, file("dex:"))
	s := startServer(t, "--authentication-config", config)
	admin := s.kubectl(s.kubeconfig)

	ann := s.kubectl(
		s.withToken(d.login(t, "local", url.Values{"login": {"ann@example.org"}, "password": {"ann's password"}})))
	eventually(t, "Dex's keys are known", ann.prints("dex:ann@example.org", "auth", "whoami"))
	if out, err := ann("get", "pods"); err == nil || !strings.Contains(out, "forbidden") {
		t.Errorf("without a role: %v\n%s", err, out)
	}
	if out, err := admin("create", "rolebinding", "ann", "--clusterrole=view",
		"--user=dex:ann@example.org"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	eventually(t, "the role counts", ann.prints("No resources found", "get", "pods"))
	if out, err := ann("get", "secrets"); err == nil {
		t.Errorf("the role view has no Secrets:\n%s", out)
	}

	trout := s.kubectl(s.withToken(d.login(t, "mock", nil)))
	eventually(t, "groups are mapped", trout.prints("dex:authors", "auth", "whoami"))

	write(t, config, file("corp:"))
	eventually(t, "the changed file counts", ann.prints("corp:ann@example.org", "auth", "whoami"))
	write(t, config, file("system:"))
	eventually(t, "a wrong file is shown in the status",
		s.command(s.kubeconfig).prints("reserved", "cluster", "status"))
	eventually(t, "the former file still counts", ann.prints("corp:ann@example.org", "auth", "whoami"))
}

// TestUsers: a user's certificate is made, listed and used. An administrator's does what
// admin.kubeconfig does, but is no member of system:masters.
func TestUsers(t *testing.T) {
	s := startServer(t)
	root := s.command(s.kubeconfig)
	kubeconfig := func(args ...string) string {
		t.Helper()
		out, err := s.output(s.kubeconfig, append([]string{"user", "add"}, args...)...)
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return write(t, filepath.Join(t.TempDir(), "kubeconfig"), out)
	}
	annConfig, adminConfig := kubeconfig("ann", "--group", "dev"),
		kubeconfig("laptop", "--group", "barque:admins", "--ttl", "1h")
	ann, admin := s.kubectl(annConfig), s.kubectl(adminConfig)
	eventually(t, "ann is who she is", ann.prints("dev", "auth", "whoami"))
	if out, err := ann("get", "secrets", "-A"); err == nil {
		t.Errorf("ann reads Secrets:\n%s", out)
	}
	eventually(t, "an administrator reads Secrets",
		admin.prints("No resources found", "get", "secrets", "-n", "default"))
	if out, err := admin("auth", "whoami"); err != nil || strings.Contains(out, "system:masters") ||
		!strings.Contains(out, "barque:admins") {
		t.Errorf("%v\n%s", err, out)
	}
	for _, args := range [][]string{{"user", "ls"}, {"token", "ls"}, {"audit", "--since", "1h"},
		{"user", "add", "another", "--group", "barque:admins"}} {
		if out, err := s.command(adminConfig)(args...); err != nil {
			t.Errorf("barque %s as an administrator: %v\n%s", strings.Join(args, " "), err, out)
		}
		if out, err := s.command(annConfig)(args...); err == nil {
			t.Errorf("barque %s as ann:\n%s", strings.Join(args, " "), out)
		}
	}
	if out, err := root("user", "ls"); err != nil || !strings.Contains(out, "ann") ||
		!strings.Contains(out, "barque:admins") || !strings.Contains(out, "another") {
		t.Errorf("%v\n%s", err, out)
	}
	for _, wrong := range [][]string{{"system:node:n1"}, {"x", "--group", "system:masters"},
		{"x", "--group", "barque:servers"}, {"x", "--ttl", "1m"}} {
		if out, err := root(append([]string{"user", "add"}, wrong...)...); err == nil {
			t.Errorf("barque user add %v:\n%s", wrong, out)
		}
	}
	// The rights of administrators can be taken from them, other than those of system:masters.
	if out, err := s.kubectl(s.kubeconfig)("delete", "clusterrolebinding", "barque:admins"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	eventually(t, "the rights are gone", func(context.Context) error {
		if out, err := admin("get", "secrets", "-n", "default"); err == nil {
			return fmt.Errorf("still: %s", out)
		}
		return nil
	})
}

// hang is the bound of a wait, which only a hang reaches.
const hang = 3 * time.Minute
