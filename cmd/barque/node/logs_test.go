package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/klog/v2"

	"github.com/barque/barque/apiserver/storage"
	"github.com/barque/barque/internal/syncbuf"
)

// An outage of the store is one line when it begins, one each minute with the newest reason, and one when it is over or the
// server stops, however many caches there are; what else they say is told.
func TestAnOutageIsToldOnce(t *testing.T) {
	defer klog.ClearLogger()
	synctest.Test(t, func(t *testing.T) {
		var said syncbuf.Buffer
		read := 0 // of it
		o := bridgeLogs(slog.New(slog.NewTextHandler(&said, &slog.HandlerOptions{Level: slog.LevelInfo})))
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- o.Run(ctx) }()
		synctest.Wait()
		lines := func(what string, want ...string) {
			t.Helper()
			synctest.Wait()
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
		outage := func() {
			for i := range 100 {
				klog.Errorf("cacher (things%d): unexpected ListAndWatch error: failed to list: %s: no leader; reinitializing...", i, storage.Unreadable)
			}
		}
		for range 2 {
			outage()
			lines("it begins", "level=ERROR msg=\"the API's caches cannot read the store")
			<-time.After(outageQuiet - time.Second)
			outage()
			lines("it goes on")
			klog.Errorf("cacher (others): unexpected ListAndWatch error: failed to list: %s: another reason; reinitializing...", storage.Unreadable)
			<-time.After(outageQuiet - time.Second)
			outage()
			<-time.After(outageQuiet - time.Second)
			lines("after a minute", "level=ERROR msg=\"the API's caches still cannot read the store\" part=k8s times=301 since=")
			klog.Errorf("cacher (others): unexpected ListAndWatch error: failed to list: %s: a newer reason; reinitializing...", storage.Unreadable)
			for range 2 {
				<-time.After(outageQuiet - time.Second)
				klog.Errorf("cacher (others): unexpected ListAndWatch error: failed to list: %s: the newest reason; reinitializing...", storage.Unreadable)
			}
			lines("after two minutes", "newest reason")
			klog.Errorf("cacher (things): unexpected ListAndWatch error: what was read makes no sense; reinitializing...")
			lines("another error", "makes no sense")
			<-time.After(outageQuiet)
			lines("it is over", fmt.Sprintf("times=304 betweenFirstAndLast=%s newest=", 5*(outageQuiet-time.Second)))
			klog.ErrorS(nil, "Post-timeout activity", "method", "GET", "path", "/readyz")
			klog.ErrorS(nil, "Timeout or abort while handling", "method", "GET", "URI", "/readyz")
			utilruntime.HandleError(fmt.Errorf("apiserver was unable to write a application/json response: %w", http.ErrHandlerTimeout))
			utilruntime.HandleError(fmt.Errorf("apiserver received an error that is not an metav1.Status: %#+v: %v", http.ErrHandlerTimeout, http.ErrHandlerTimeout))
			utilruntime.HandleError(errors.New("FinishRequest: post-timeout activity - time-elapsed: 5µs, panicked: false, err: gone, panic-reason: <nil>"))
			klog.Errorf("Failed to shutdown server: %v", context.DeadlineExceeded)
			klog.Info("a detail")
			lines("nobody's fault")
			utilruntime.HandleError(errors.New("FinishRequest: post-timeout activity - time-elapsed: 5µs, panicked: true, err: <nil>, panic-reason: nil map"))
			lines("a panic", "nil map")
			klog.ErrorS(nil, "Timeout or abort while handling", "method", "GET", "URI", "/api/v1/pods")
			klog.Error("a fault")
			klog.Errorf("Failed to shutdown server: %v", errors.New("another reason"))
			lines("afterwards", "URI=/api/v1/pods", "level=ERROR msg=\"a fault\"", "level=ERROR msg=\"Failed to shutdown server: another reason\"")
		}
		outage()
		lines("a last one begins", "cannot read the store")
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		lines("the server stops meanwhile", "level=INFO msg=\"the server stops while the API's caches cannot read the store\" part=k8s times=100 betweenFirstAndLast=0s")
		klog.Errorf("cacher (things): unexpected ListAndWatch error: %s; reinitializing...", storage.Unreadable)
		lines("the server has stopped")
	})
}
