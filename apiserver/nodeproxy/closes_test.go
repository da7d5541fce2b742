package nodeproxy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/barque/barque/internal/await"
)

// records are the log records, at every level.
type records struct {
	mu  sync.Mutex
	all []slog.Record
}

// captureLogs collects the logs of the Kubernetes libraries until the test ends.
func captureLogs(t *testing.T) *records {
	r := &records{}
	state := klog.CaptureState()
	t.Cleanup(state.Restore)
	klog.SetSlogLogger(slog.New(r))
	return r
}

// Enabled implements slog.Handler.
func (r *records) Enabled(context.Context, slog.Level) bool { return true }

// WithAttrs implements slog.Handler.
func (r *records) WithAttrs([]slog.Attr) slog.Handler { return r }

// WithGroup implements slog.Handler.
func (r *records) WithGroup(string) slog.Handler { return r }

// Handle implements slog.Handler.
func (r *records) Handle(_ context.Context, record slog.Record) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, record)
	return nil
}

// await returns the first record with an error that is wanted.
func (r *records) await(t *testing.T, wanted func(error) bool) slog.Record {
	t.Helper()
	var found slog.Record
	err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, time.Minute, true,
		func(context.Context) (bool, error) {
			r.mu.Lock()
			defer r.mu.Unlock()
			for _, record := range r.all {
				if err := errorOf(record); err != nil && wanted(err) {
					found = record
					return true, nil
				}
			}
			return false, nil
		})
	if err != nil {
		t.Fatalf("it was not logged: %v", err)
	}
	return found
}

func errorOf(record slog.Record) (found error) {
	record.Attrs(func(a slog.Attr) bool {
		if err, ok := a.Value.Any().(error); ok && a.Key == "err" {
			found = err
		}
		return found == nil
	})
	return found
}

// TestEndOfACommandIsNoError: the API server ends the client's WebSocket when the command has
// ended. A client that pings once more, or closes only then, makes no error.
func TestEndOfACommandIsNoError(t *testing.T) {
	logged := captureLogs(t)
	proxy := newProxy(t, newCluster(), runtimeOfNode{})
	served := make(chan struct{})
	next := connecting(proxy.PodExec(), "pod", with(&corev1.PodExecOptions{Command: []string{"true"}, Stdout: true}))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(served)
		next.ServeHTTP(w, r)
	}))
	defer server.Close()
	dialer := websocket.Dialer{Subprotocols: []string{remotecommand.StreamProtocolV5Name}}
	client, _, err := dialer.DialContext(t.Context(), strings.Replace(server.URL, "http", "ws", 1), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	client.SetCloseHandler(func(int, string) error { return nil })
	for err == nil {
		_, _, err = client.ReadMessage()
	}
	if !websocket.IsCloseError(err, websocket.CloseNormalClosure) {
		t.Fatal(err)
	}
	if err := client.WriteControl(websocket.PingMessage, nil, time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	client.Close()
	await.Value(t, "the end of the request", served)
	logged.mu.Lock()
	defer logged.mu.Unlock()
	for _, record := range logged.all {
		if record.Level > slog.LevelDebug {
			t.Errorf("%v %s: %v", record.Level, record.Message, errorOf(record))
		}
	}
}

// TestOtherErrorsOfStreamsAreTold: only closes of our own, and clients that leave, are details.
func TestOtherErrorsOfStreamsAreTold(t *testing.T) {
	logged := captureLogs(t)
	broken := errors.New("broken")
	left := &websocket.CloseError{Code: websocket.CloseAbnormalClosure, Text: "unexpected EOF"}
	quietCloses(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		logger := klog.FromContext(r.Context()).WithName("stream").WithValues("pod", "p")
		logger.Error(broken, "it broke")
		logger.Error(fmt.Errorf("reading: %w", net.ErrClosed), "it was closed")
		logger.Error(left, "Error proxying data from client to backend")
	})).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
	if record := logged.await(t,
		func(err error) bool { return errors.Is(err, broken) }); record.Level != slog.LevelError {
		t.Errorf("an error was logged at %v", record.Level)
	}
	if record := logged.await(t,
		func(err error) bool { return errors.Is(err, net.ErrClosed) }); record.Level > slog.LevelDebug {
		t.Errorf("a close was logged at %v", record.Level)
	}
	if record := logged.await(t, func(err error) bool { return errors.Is(err, left) }); record.Level > slog.LevelDebug {
		t.Errorf("a client that left was logged at %v", record.Level)
	}
}
