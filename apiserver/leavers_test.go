package apiserver

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"
)

// An error because a client has left is a detail; an earlier one, or one of a time-out, is
// an error.
func TestLeaversAreDetails(t *testing.T) {
	for name, c := range map[string]struct {
		request func(context.Context) (context.Context, context.CancelFunc)
		level   string
	}{
		"a client that waits": {context.WithCancel, "ERROR"},
		"a client that left": {func(ctx context.Context) (context.Context, context.CancelFunc) {
			ctx, cancel := context.WithCancel(ctx)
			cancel()
			return ctx, cancel
		}, "DEBUG"},
		"a request without time left": {func(ctx context.Context) (context.Context, context.CancelFunc) {
			return context.WithDeadline(ctx, time.Unix(1, 0))
		}, "ERROR"},
	} {
		t.Run(name, func(t *testing.T) {
			defer klog.CaptureState().Restore()
			var said bytes.Buffer
			klog.SetSlogLogger(slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelDebug})))
			ctx, cancel := c.request(t.Context())
			defer cancel()
			quietLeavers(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				logger := klog.FromContext(r.Context()).WithName("watch").WithValues("pod", "p")
				utilruntime.HandleErrorWithContext(klog.NewContext(r.Context(), logger), errors.New("broken pipe"),
					"Failed to encode watch event")
			})).ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil))
			if got := said.String(); !strings.Contains(got, "level="+c.level) || !strings.Contains(got, "broken pipe") {
				t.Errorf("%s", got)
			}
		})
	}
}
