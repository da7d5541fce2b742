package main

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/barque/barque/adminapi"
	"github.com/barque/barque/apiserver/storeerror"
	"github.com/barque/barque/backups"
	"github.com/barque/barque/clusterstatus"
	"github.com/barque/barque/internal/exitcode"
	"github.com/barque/barque/membership/exchange"
	"github.com/barque/barque/raftstore"
)

// leaderless is a server that has known no leader for long. Its answers pass through the real code.
type leaderless struct{ changes int }

func (s *leaderless) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	say := func(status int, body any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(body)
	}
	err := &raftstore.LeaderlessError{For: raftstore.LeaderlessAfter, Reason: "no leader has been known for 10s"}
	mapped := storeerror.OfRead(err)
	if r.Method != http.MethodGet {
		s.changes++
		mapped = storeerror.OfWrite(err)
	}
	switch path := r.URL.Path; {
	case path == adminapi.CAPath && r.Method == http.MethodGet:
		say(http.StatusOK, exchange.Status{Generation: 1, Issuer: "c"})
	case strings.HasPrefix(path, adminapi.MembersPath):
		say(http.StatusServiceUnavailable,
			adminapi.MemberAnswer{Server: "s1", Change: adminapi.RemoveServer, Error: err.Error(), NoLeader: true})
	case path == adminapi.KeysPath:
		say(http.StatusServiceUnavailable, adminapi.KeysAnswer{Error: err.Error(), NoLeader: true})
	case path == backups.SnapshotRestorePath:
		say(http.StatusServiceUnavailable, backups.Restored{Error: err.Error(), NoLeader: true})
	default:
		var status apierrors.APIStatus
		errors.As(mapped, &status)
		body := status.Status()
		body.Kind, body.APIVersion = "Status", "v1"
		say(int(body.Code), body)
	}
}

// TestCommandsWithoutALeader: a command whose server reports that there is no leader fails at once,
// after one request, with its exit code for scripts, and reports that nothing was changed.
func TestCommandsWithoutALeader(t *testing.T) {
	file := savedBackup(t)
	for line, changes := range map[string]bool{
		"token create":                               true,
		"token delete abcdef":                        true,
		"token ls":                                   false,
		"cluster remove s1 --yes":                    true,
		"cluster promote s1":                         true,
		"cluster transfer-leader":                    true,
		"cluster keys rotate":                        true,
		"cluster keys list":                          false,
		"cert rotate --ca --yes":                     true,
		"cert rotate --service-accounts --yes":       true,
		"snapshot save --unsealed " + file + ".copy": false,
		"snapshot restore --yes " + file:             true,
		"verify":                                     true,
	} {
		t.Run(line, func(t *testing.T) {
			server := new(leaderless)
			kubeconfig := kubeconfigOf(t, server.ServeHTTP)
			if line == "token create" {
				kubeconfig = secureKubeconfigOf(t, server)
			}
			_, err := run(t, append(strings.Fields(line), "--kubeconfig", kubeconfig)...)
			if exitCode(err) != exitcode.NoQuorum ||
				!strings.Contains(err.Error(), "no leader has been known for 10s") ||
				!strings.Contains(err.Error(), "barque cluster status") {
				t.Errorf("exit code %d: %v", exitCode(err), err)
			}
			if err != nil && strings.Contains(err.Error(), "nothing was changed") != changes {
				t.Errorf("it is said that nothing was changed, or should be: %v", err)
			}
			if server.changes > 1 {
				t.Errorf("it was asked for %d times", server.changes)
			}
		})
	}
}

// TestVerifyThatFindsNoLeaderAsItBegins: the leader is lost between the first reads and the first
// write. That has changed nothing, so there is nothing to remove, which would take minutes.
func TestVerifyThatFindsNoLeaderAsItBegins(t *testing.T) {
	lost := new(leaderless)
	kubeconfig := secureKubeconfigOf(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, port, err := net.SplitHostPort(r.Host)
		switch path := r.URL.Path; {
		case err != nil:
			http.Error(w, err.Error(), http.StatusBadRequest)
		case path == clusterstatus.StatusPath:
			fmt.Fprint(w, `{"id": "c", "members": [{"name": "s1", "role": "server", "address": "127.0.0.1"}]}`)
		case strings.HasSuffix(path, "/endpointslices"):
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w,
				`{"kind": "EndpointSliceList", "apiVersion": "discovery.k8s.io/v1", "items": [{"ports": [{"port": %s}]}]}`, port)
		case path == "/readyz":
			fmt.Fprint(w, "ok")
		default:
			lost.ServeHTTP(w, r)
		}
	}))
	_, err := run(t, "verify", "--kubeconfig", kubeconfig)
	if exitCode(err) != exitcode.NoQuorum || !strings.Contains(err.Error(), "make the namespace") ||
		!strings.HasSuffix(err.Error(), "; nothing was changed") || lost.changes != 1 {
		t.Errorf("exit code %d after %d requests for a change: %v", exitCode(err), lost.changes, err)
	}
}

// secureKubeconfigOf is kubeconfigOf with the cluster's CA.
func secureKubeconfigOf(t *testing.T, handler http.Handler) string {
	t.Helper()
	server := httptest.NewTLSServer(handler)
	t.Cleanup(server.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := "apiVersion: v1\nkind: Config\ncurrent-context: x\nclusters: [{name: c, cluster: {server: '" + server.URL +
		"', certificate-authority-data: " +
		base64.StdEncoding.EncodeToString(ca) +
		"}}]\nusers: [{name: u, user: {}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestOnlyLongWithoutALeaderHasItsOwnExitCode: a busy store, or a running election, is no reason to
// look for dead servers.
func TestOnlyLongWithoutALeaderHasItsOwnExitCode(t *testing.T) {
	kubeconfig := kubeconfigOf(t, statusOnly(http.StatusServiceUnavailable, "ServiceUnavailable"))
	if _, err := run(t, "token", "ls", "--kubeconfig", kubeconfig); exitCode(err) != 1 {
		t.Errorf("exit code %d: %v", exitCode(err), err)
	}
}
