package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"

	"github.com/barque/barque/adminapi"
	"github.com/barque/barque/adminapi/remote"
	"github.com/barque/barque/internal/exitcode"
	"github.com/barque/barque/verify"
)

// TestNoAnswerOfTheAPI: a server that says nothing, as one does without a leader, costs a bounded
// time, and the user is told where to look. A write whose answer did not come may have been done.
func TestNoAnswerOfTheAPI(t *testing.T) {
	silent := func(ctx context.Context) error {
		<-ctx.Done()
		return errors.New("the client's own words")
	}
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		err := remote.Ask(t.Context(), &rest.Config{Host: "s1"}, "list things", silent)
		if took := time.Since(began); took != remote.Timeout {
			t.Errorf("it took %s", took)
		}
		if exitCode(err) != 1 || !strings.Contains(err.Error(), "list things: ask s1: no answer within 15s") || !strings.Contains(err.Error(), "barque cluster status") {
			t.Errorf("exit code %d: %v", exitCode(err), err)
		}
		if err := perhaps(err, "it"); exitCode(err) != exitcode.Unfinished || !strings.Contains(err.Error(), "barque token ls") {
			t.Errorf("a write: exit code %d: %v", exitCode(err), err)
		}
	})
	over, cancel := context.WithCancel(t.Context())
	cancel()
	err := remote.Ask(over, &rest.Config{}, "list things", silent)
	if code := exitCode(interrupted(over, err)); code != exitcode.Interrupted {
		t.Errorf("Ctrl-C: exit code %d: %v", code, err)
	}
	if code := exitCode(interrupted(over, perhaps(err, "it"))); code != exitcode.Unfinished {
		t.Errorf("Ctrl-C in a write: exit code %d", code)
	}
}

// TestALostAnswer: a write that the server knows nothing certain of, or whose connection is cut,
// may have been done; one that it refuses was not. What only looks changes nothing, whatever
// becomes of the answer.
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
	for line, look := range map[string]string{ // what shows whether it was done; empty for a command that changes nothing
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

// TestPerhapsDone: a write that was sent, and got no answer, may have been done, however the
// connection broke; one that never reached a server that is trusted was not.
func TestPerhapsDone(t *testing.T) {
	call := func(err error) error { return &url.Error{Op: "Post", URL: "https://s1", Err: err} }
	for _, c := range []struct {
		err  error
		code int
	}{
		{call(syscall.EPIPE), exitcode.Unfinished},
		{call(errors.New("http2: client connection lost")), exitcode.Unfinished},
		{call(errors.New("http2: server sent GOAWAY and closed the connection")), exitcode.Unfinished},
		{call(&net.OpError{Op: "read", Err: syscall.ECONNRESET}), exitcode.Unfinished},
		{call(io.EOF), exitcode.Unfinished},
		{call(&net.OpError{Op: "dial", Err: syscall.EHOSTUNREACH}), 1},
		{call(syscall.ECONNREFUSED), 1},
		{call(&tls.CertificateVerificationError{Err: errors.New("of another CA")}), 1},
		{apierrors.NewForbidden(schema.GroupResource{}, "x", nil), 1},
		{apierrors.NewTimeoutError("it took too long", 0), exitcode.Unfinished},
	} {
		if code := exitCode(perhaps(c.err, "it")); code != c.code {
			t.Errorf("%v: exit code %d, want %d", c.err, code, c.code)
		}
	}
}

// TestUnsent: where there is no way to a server, or one to somebody else, no command leaves open
// whether something was changed.
func TestUnsent(t *testing.T) {
	other := httptest.NewTLSServer(nil) // of a CA that the kubeconfig does not know
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
		"cluster keys rotate", "cluster promote s1", "cluster transfer-leader", "cluster remove s1 --yes", "cert rotate --ca --yes",
		"token delete abcdef", "snapshot restore --yes " + file,
	} {
		_, err := run(t, append(strings.Fields(line), "--kubeconfig", untrusted)...)
		var untrusted *tls.CertificateVerificationError
		if exitCode(err) != 1 || !errors.As(err, &untrusted) {
			t.Errorf("%s at a server that is not trusted: exit code %d: %v", line, exitCode(err), err)
		}
	}
	// A machine that is off.
	for _, gone := range []error{syscall.EHOSTUNREACH, os.ErrDeadlineExceeded} {
		config := &rest.Config{Host: "https://s1", Dial: func(context.Context, string, string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: gone}
		}}
		_, changed := remote.MemberChange(t.Context(), config, http.MethodPost, "promote s1", "s1", adminapi.PromoteServer)
		_, rotated := remote.Keys(t.Context(), config, http.MethodPost, nil)
		for what, err := range map[string]error{"memberChange": changed, "askKeys": rotated} {
			if exitCode(err) != 1 || !errors.Is(err, gone) || !strings.Contains(err.Error(), "asks another server") {
				t.Errorf("%s, %v: exit code %d: %v", what, gone, exitCode(err), err)
			}
		}
		if asked := (&remote.RefusedCall{Text: "x", Err: &url.Error{Op: "Post", URL: "https://s1", Err: &net.OpError{Op: "dial", Err: gone}}}); remote.OutcomeLost(asked) {
			t.Errorf("%v: what was not sent may have been done", gone)
		}
	}
}

// TestVerified: a promise that was found to be broken counts also when the run was interrupted, or
// could not clean up; that nothing is left is said only when nothing is.
func TestVerified(t *testing.T) {
	kept, broken := &verify.Report{Checks: []verify.Check{{Name: "c"}}}, &verify.Report{Checks: []verify.Check{{Name: "c", Problems: []string{"p"}}}}
	unjudged := &verify.Report{Checks: []verify.Check{{Name: "c", Unjudged: []string{"u"}}}}
	left := fmt.Errorf("%w", errors.Join(context.Canceled, &verify.LeftError{Namespace: "n"}))
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for name, c := range map[string]struct {
		r           *verify.Report
		err         error
		interrupted bool
		code        int
	}{
		"kept":                             {kept, nil, false, 0},
		"not judged":                       {unjudged, nil, false, 1},
		"broken":                           {broken, nil, false, 1},
		"failed":                           {kept, errors.New("x"), false, 1},
		"nothing was begun":                {nil, errors.New("x"), false, 1},
		"interrupted before it began":      {nil, context.Canceled, true, exitcode.Interrupted},
		"interrupted":                      {kept, context.Canceled, true, exitcode.Interrupted},
		"interrupted, something is left":   {kept, left, true, exitcode.Unfinished},
		"something is left":                {kept, &verify.LeftError{Namespace: "n"}, false, exitcode.Unfinished},
		"broken, interrupted":              {broken, context.Canceled, true, 1},
		"broken, and something is left":    {broken, &verify.LeftError{Namespace: "n"}, false, 1},
		"broken, interrupted, and is left": {broken, left, true, 1},
	} {
		ctx := t.Context()
		if c.interrupted {
			ctx = over
		}
		err := interrupted(ctx, verified(c.r, c.err, c.interrupted))
		if code := exitCode(err); code != c.code {
			t.Errorf("%s: exit code %d, want %d: %v", name, code, c.code, err)
		}
		if c.err != nil && !strings.Contains(err.Error(), c.err.Error()) {
			t.Errorf("%s: %v; want %v", name, err, c.err)
		}
	}
}

// statusOnly answers everything with a Status of the API.
func statusOnly(code int, reason string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": "because", "reason": reason})
	}
}

// TestAdvice: each command tells what can be done where nobody answers, or where the user has no
// rights.
func TestAdvice(t *testing.T) {
	refusing := func(status int) string {
		return kubeconfigOf(t, func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(status)
			json.NewEncoder(w).Encode(map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status, "message": "you may not",
				"reason": map[int]string{http.StatusForbidden: "Forbidden", http.StatusUnauthorized: "Unauthorized"}[status]})
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
		"ask an administrator":     refusing(http.StatusForbidden),
		"identity is not known":    refusing(http.StatusUnauthorized),
		"asks another server who ": away,
	} {
		for _, line := range []string{
			"cluster remove s1 --yes", "cluster promote s1", "cluster transfer-leader", "cluster keys list", "cluster keys rotate",
			"token ls", "token delete x", "cert show",
			"snapshot ls", "snapshot save --unsealed " + filepath.Join(t.TempDir(), "x"), "snapshot restore --yes " + file, "verify --duration 1s",
		} {
			_, err := run(t, append(strings.Fields(line), "--kubeconfig", kubeconfig)...)
			if exitCode(err) != 1 || !strings.Contains(err.Error(), says) {
				t.Errorf("%s: exit code %d: %v; want 1, with %q", line, exitCode(err), err, says)
			}
		}
	}
	nothing := kubeconfigOf(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusNotFound)
		io.WriteString(w, `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}`)
	})
	if _, err := run(t, "token", "delete", "nosuchid", "--kubeconfig", nothing); exitCode(err) != 2 || err.Error() != "there is no token \"nosuchid\"; `barque token ls` lists them by their IDs" {
		t.Errorf("a token that is not there: exit code %d: %v", exitCode(err), err)
	}
	_, err := run(t, "token", "ls", "--kubeconfig", file+"-none")
	if exitCode(err) != 1 || !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), file+"-none") {
		t.Errorf("a kubeconfig that is not there: exit code %d: %v", exitCode(err), err)
	}
}

// TestQuestionsLeaveNoConnections: a command that waits asks often, and leaves no connection behind
// at the server for each time.
func TestQuestionsLeaveNoConnections(t *testing.T) {
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, `{"change": "promote"}`) }))
	server.EnableHTTP2 = true
	server.Config.ConnState = func(c net.Conn, s http.ConnState) {
		mu.Lock()
		defer mu.Unlock()
		if s == http.StateClosed {
			delete(open, c)
		} else {
			open[c] = true
		}
	}
	server.StartTLS()
	defer server.Close()
	config := &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{
		CAData: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})}}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	text := "apiVersion: v1\nkind: Config\ncurrent-context: x\nclusters: [{name: c, cluster: {server: '" + server.URL + "', insecure-skip-tls-verify: true}}]\n" +
		"users: [{name: u, user: {}}]\ncontexts: [{name: x, context: {cluster: c, user: u}}]\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		_, keys := remote.Keys(t.Context(), config, http.MethodGet, nil)
		_, member := remote.MemberChange(t.Context(), config, http.MethodGet, "promote s1", "s1", adminapi.PromoteServer)
		certs := certCall(t.Context(), path, http.MethodGet, adminapi.CAPath, nil, new(map[string]any))
		if err := errors.Join(keys, member, certs); err != nil {
			t.Fatal(err)
		}
	}
	for deadline := time.Now().Add(time.Minute); ; runtime.Gosched() { // the server learns of it a moment later
		mu.Lock()
		left := len(open)
		mu.Unlock()
		if left == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d connections are left of 30 questions", left)
		}
	}
}
