package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/barque/barque/adminapi/remote"
	"github.com/barque/barque/internal/exitcode"
)

// TestCtrlCWhileTheAPIIsAsked: a question was not done, and a write may have been.
func TestCtrlCWhileTheAPIIsAsked(t *testing.T) {
	silent := func(ctx context.Context) error {
		<-ctx.Done()
		return errors.New("the client's own words")
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	err := remote.Ask(over, &rest.Config{}, "list things", silent)
	if code := exitCode(interrupted(over, err)); code != exitcode.Interrupted {
		t.Errorf("Ctrl-C: exit code %d: %v", code, err)
	}
	if code := exitCode(interrupted(over, remote.Outcome(err, "it"))); code != exitcode.Unfinished {
		t.Errorf("Ctrl-C in a write: exit code %d", code)
	}
}

// TestALostAnswer: a write may have taken effect if the server does not know, or if the connection
// breaks. A refused one has not. A command that only reads changes nothing in any case.
func TestALostAnswer(t *testing.T) {
	answers := map[string]struct {
		does  http.HandlerFunc
		write int // exit code
	}{
		"unknown": {statusOnly(http.StatusGatewayTimeout, "Timeout"), exitcode.Unfinished},
		"cut":     {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, exitcode.Unfinished},
		"refused": {statusOnly(http.StatusServiceUnavailable, "ServiceUnavailable"), 1},
		"failed":  {statusOnly(http.StatusInternalServerError, "InternalError"), 1},
	}
	// the command that shows the outcome; empty for a command that changes nothing
	for line, look := range map[string]string{
		"token delete abcdef":         "barque token ls",
		"cluster promote s1":          "barque cluster members",
		"cluster transfer-leader":     "barque cluster status",
		"cluster keys rotate":         "barque cluster keys list",
		"cluster remove --dry-run s1": "",
		"cluster keys list":           "",
	} {
		for name, answer := range answers {
			if look == "" && name == "cut" {
				continue // a question is asked again, for ten seconds
			}
			t.Run(line+", "+name, func(t *testing.T) {
				want := answer.write
				if look == "" {
					want = 1
				}
				_, err := run(t, append(strings.Fields(line), "--kubeconfig", kubeconfigOf(t, answer.does))...)
				if exitCode(err) != want || want == exitcode.Unfinished && !strings.Contains(err.Error(), look) {
					t.Errorf("exit code %d, want %d: %v", exitCode(err), want, err)
				}
				if name == "unknown" && !strings.Contains(err.Error(), "because") {
					t.Errorf("the server's word is not told: %v", err)
				}
			})
		}
	}
}

// TestUnsent: without a route to a server, or with another server at the address, the outcome of
// every command is certain.
func TestUnsent(t *testing.T) {
	other := httptest.NewTLSServer(nil) // of a CA that is not in the kubeconfig
	t.Cleanup(other.Close)
	other.Config.ErrorLog = log.New(io.Discard, "", 0)
	untrusted := filepath.Join(t.TempDir(), "kubeconfig")
	text := "apiVersion: v1\nkind: Config\ncurrent-context: x\nclusters: [{name: c, cluster: {server: '" + other.URL +
		"'}}]\nusers: [{name: u, user: {}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\n"
	if err := os.WriteFile(untrusted, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	file := savedBackup(t)
	for _, line := range []string{
		"cluster keys rotate", "cluster promote s1", "cluster transfer-leader", "cluster remove s1 --yes",
		"cert rotate --ca --yes",
		"token delete abcdef", "snapshot restore --yes " + file,
	} {
		_, err := run(t, append(strings.Fields(line), "--kubeconfig", untrusted)...)
		var untrusted *tls.CertificateVerificationError
		if exitCode(err) != 1 || !errors.As(err, &untrusted) {
			t.Errorf("%s at a server that is not trusted: exit code %d: %v", line, exitCode(err), err)
		}
	}
}

// statusOnly answers everything with a Status of the API.
func statusOnly(code int, reason string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(
			map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
				"message": "because", "reason": reason})
	}
}

// TestAdvice: each command gives advice if no server answers, or if the user has no permission.
func TestAdvice(t *testing.T) {
	refusing := func(status int) string {
		return kubeconfigOf(t, func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(status)
			json.NewEncoder(w).Encode(
				map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status,
					"message": "you may not",
					"reason": map[int]string{http.StatusForbidden: "Forbidden",
						http.StatusUnauthorized: "Unauthorized"}[status]})
		})
	}
	away := filepath.Join(t.TempDir(), "kubeconfig")
	text := "apiVersion: v1\nkind: Config\ncurrent-context: x\nclusters: [{name: c, cluster: {server: '" + deadServer +
		"'}}]\nusers: [{name: u, user: {}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\n"
	if err := os.WriteFile(away, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	file := savedBackup(t)
	for says, kubeconfig := range map[string]string{
		"ask an administrator":      refusing(http.StatusForbidden),
		"identity is not known":     refusing(http.StatusUnauthorized),
		"asks another server that ": away,
	} {
		for _, line := range []string{
			"cluster remove s1 --yes", "cluster promote s1", "cluster transfer-leader", "cluster keys list",
			"cluster keys rotate",
			"token ls", "token delete x", "cert show",
			"snapshot ls", "snapshot save --unsealed " + filepath.Join(t.TempDir(), "x"),
			"snapshot restore --yes " + file, "verify --duration 1s",
		} {
			_, err := run(t, append(strings.Fields(line), "--kubeconfig", kubeconfig)...)
			if exitCode(err) != 1 || !strings.Contains(err.Error(), says) {
				t.Errorf("%s: exit code %d: %v; want 1, with %q", line, exitCode(err), err, says)
			}
		}
	}
	nothing := kubeconfigOf(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, `{"was": false}`)
	})
	earlier := kubeconfigOf(t, http.NotFound)
	if _, err := run(t, "token", "create", "--kubeconfig", earlier); exitCode(err) != 1 ||
		!strings.Contains(err.Error(), "ask an upgraded server") {
		t.Errorf("a server that keeps tokens in Secrets: exit code %d: %v", exitCode(err), err)
	}
	if _, err := run(t, "token", "delete", "nosuchid", "--kubeconfig", nothing); exitCode(err) != 2 ||
		err.Error() != "there is no token \"nosuchid\"; `barque token ls` lists the IDs" {
		t.Errorf("a token that is not there: exit code %d: %v", exitCode(err), err)
	}
	_, err := run(t, "token", "ls", "--kubeconfig", file+"-none")
	if exitCode(err) != 1 || !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), file+"-none") {
		t.Errorf("a kubeconfig that is not there: exit code %d: %v", exitCode(err), err)
	}
}
