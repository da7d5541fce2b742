package klogs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"

	"github.com/barque/barque/internal/syncbuf"
)

// TestFaultsAreTold: all errors are logged, except those that are not this server's.
func TestFaultsAreTold(t *testing.T) {
	defer klog.ClearLogger()
	var said syncbuf.Buffer
	read := 0 // of it
	Bridge(slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelInfo})))
	lines := func(what string, want ...string) {
		t.Helper()
		all := said.String()
		got := strings.Split(strings.TrimSuffix(all[read:], "\n"), "\n")
		read = len(all)
		if len(want) == 0 && len(got) == 1 && got[0] == "" {
			return
		}
		if len(got) != len(want) {
			t.Fatalf("%s: %d lines, want %d:\n%s", what, len(got), len(want), strings.Join(got, "\n"))
		}
		for i := range want {
			if !strings.Contains(got[i], want[i]) {
				t.Errorf("%s: line %d is %s, want %q", what, i, got[i], want[i])
			}
		}
	}
	klog.ErrorS(nil, "Post-timeout activity", "method", "GET", "path", "/readyz")
	klog.ErrorS(nil, "Timeout or abort while handling", "method", "GET", "URI", "/readyz")
	utilruntime.HandleError(
		fmt.Errorf("apiserver was unable to write a application/json response: %w", http.ErrHandlerTimeout))
	utilruntime.HandleError(
		fmt.Errorf("apiserver received an error that is not an metav1.Status: %#+v: %v", http.ErrHandlerTimeout,
			http.ErrHandlerTimeout))
	utilruntime.HandleError(
		errors.New(
			"FinishRequest: post-timeout activity - time-elapsed: 5µs, panicked: false, err: gone, panic-reason: <nil>"))
	klog.Errorf("Failed to shutdown server: %v", context.DeadlineExceeded)
	klog.Info("a detail")
	lines("nobody's fault")
	utilruntime.HandleError(
		errors.New(
			"FinishRequest: post-timeout activity - time-elapsed: 5µs, panicked: true, err: <nil>, panic-reason: nil map"))
	lines("a panic", "nil map")
	klog.ErrorS(nil, "Timeout or abort while handling", "method", "GET", "URI", "/api/v1/pods")
	klog.Error("a fault")
	klog.Errorf("Failed to shutdown server: %v", errors.New("another reason"))
	lines("afterwards", "URI=/api/v1/pods", "level=ERROR msg=\"a fault\"",
		"level=ERROR msg=\"Failed to shutdown server: another reason\"")
}

// TestStrangersCannotFillTheLog: bad credentials are logged by a few lines, and the number of the
// others is. Another fault is logged beside them.
func TestStrangersCannotFillTheLog(t *testing.T) {
	defer klog.ClearLogger()
	var out syncbuf.Buffer
	Bridge(slog.New(slog.NewTextHandler(&out, nil)))
	for i := range 10_000 {
		klog.ErrorS(fmt.Errorf("token %d is bad", i), "Unable to authenticate the request")
	}
	klog.Error("another fault")
	if n := strings.Count(out.String(), "\n"); n < 2 || n > 20 || !strings.Contains(out.String(), "another fault") {
		t.Errorf("%d lines:\n%s", n, out.String())
	}
}
