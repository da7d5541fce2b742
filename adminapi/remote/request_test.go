package remote

import (
	"context"
	"crypto/tls"
	"encoding/pem"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
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
	"github.com/barque/barque/internal/exitcode"
)

// exitCode is the one with which a command ends that returns the error.
func exitCode(err error) int {
	var coded interface{ ExitCode() int }
	switch {
	case err == nil:
		return 0
	case errors.As(err, &coded):
		return coded.ExitCode()
	}
	return 1
}

// TestNoAnswerOfTheAPI: a silent server, such as one without a leader, costs a bounded time, and
// the error names the next step. A write without an answer may have taken effect.
func TestNoAnswerOfTheAPI(t *testing.T) {
	silent := func(ctx context.Context) error {
		<-ctx.Done()
		return errors.New("the client's own words")
	}
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		err := Ask(t.Context(), &rest.Config{Host: "s1"}, "list things", silent)
		if took := time.Since(began); took != Timeout {
			t.Errorf("it took %s", took)
		}
		if exitCode(err) != 1 || !strings.Contains(err.Error(), "list things: ask s1: no answer within 15s") ||
			!strings.Contains(err.Error(), "barque cluster status") {
			t.Errorf("exit code %d: %v", exitCode(err), err)
		}
		if err := Outcome(err, "`barque token ls` shows it"); exitCode(err) != exitcode.Unfinished ||
			!strings.Contains(err.Error(), "barque token ls") {
			t.Errorf("a write: exit code %d: %v", exitCode(err), err)
		}
	})
}

// TestOutcome: a write that was sent, and got no answer, may have been done, however the connection
// broke; one that never reached a server that is trusted was not.
func TestOutcome(t *testing.T) {
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
		if code := exitCode(Outcome(c.err, "it")); code != c.code {
			t.Errorf("%v: exit code %d, want %d", c.err, code, c.code)
		}
	}
}

// TestUnsentToAMachineThatIsOff: where there is no way to a server, no change leaves open whether
// something was changed.
func TestUnsentToAMachineThatIsOff(t *testing.T) {
	for _, gone := range []error{syscall.EHOSTUNREACH, os.ErrDeadlineExceeded} {
		config := &rest.Config{Host: "https://s1", Dial: func(context.Context, string, string) (net.Conn, error) {
			return nil, &net.OpError{Op: "dial", Net: "tcp", Err: gone}
		}}
		_, changed := ServerChange{Server: "s1", Change: adminapi.PromoteServer}.Make(t.Context(), config)
		_, rotated := KeysChange{}.Make(t.Context(), config)
		for what, err := range map[string]error{"a member": changed, "the keys": rotated} {
			if exitCode(err) != 1 || !errors.Is(err, gone) || !strings.Contains(err.Error(), "asks another server") {
				t.Errorf("%s, %v: exit code %d: %v", what, gone, exitCode(err), err)
			}
		}
		if asked := (&refusedCall{Text: "x",
			Err: &url.Error{Op: "Post", URL: "https://s1", Err: &net.OpError{Op: "dial", Err: gone}}}); outcomeLost(
			asked) {
			t.Errorf("%v: what was not sent may have been done", gone)
		}
	}
}

// TestQuestionsLeaveNoConnections: a command that waits asks often, and leaves no connection behind
// at the server for each time.
func TestQuestionsLeaveNoConnections(t *testing.T) {
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	server := httptest.NewUnstartedServer(
		http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, `{"change": "promote"}`) }))
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
	x := &CAExchange{Certs: Certs{Config: func() (*rest.Config, error) {
		return &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{Insecure: true}}, nil
	}}}
	for range 10 {
		_, keys := Keys(t.Context(), config)
		_, member := ServerChange{Server: "s1", Change: adminapi.PromoteServer}.Plan(t.Context(), config)
		_, certs := x.Status(t.Context())
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
