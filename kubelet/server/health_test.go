package server

import (
	"bytes"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/barque/barque/kubelet/config"
)

// TestHealthz: /healthz reports whether the kubelet does its work, and the log has the changes.
func TestHealthz(t *testing.T) {
	var ill error
	var log bytes.Buffer
	s := &Server{metrics: http.NotFoundHandler(),
		Config: Config{Healthy: func() error { return ill }, Logger: slog.New(slog.NewTextHandler(&log, nil))}}
	mux := s.routes()
	ask := func(path string) (int, string) {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		return w.Code, w.Body.String()
	}
	check := func(path string, code int, body string) {
		t.Helper()
		if got, said := ask(path); got != code || body != "" && said != body {
			t.Errorf("%s: %d %q", path, got, said)
		}
	}
	check("/healthz", 200, "ok")
	check("/healthz/ping", 200, "ok")
	check("/healthz/syncloop", 200, "ok")
	check("/healthz/other", 404, "")
	check("/healthz?verbose", 200, "[+]ping ok\n[+]syncloop ok\nhealthz check passed\n")
	if log.Len() > 0 {
		t.Errorf("a kubelet that is well says %s", &log)
	}
	ill = errors.New("the runtime is gone")
	check("/healthz", 500, "[+]ping ok\n[-]syncloop failed: the runtime is gone\nhealthz check failed\n")
	check("/healthz/syncloop", 500, "[-]syncloop failed: the runtime is gone\nhealthz check failed\n")
	check("/healthz/ping", 200, "ok")
	if n := strings.Count(log.String(), "level=ERROR"); n != 1 ||
		!strings.Contains(log.String(), "the runtime is gone") {
		t.Errorf("two questions to an ill kubelet: %s", &log)
	}
	ill = nil
	check("/healthz", 200, "ok")
	check("/healthz", 200, "ok")
	if n := strings.Count(log.String(), "well again"); n != 1 {
		t.Errorf("it says %s", &log)
	}
}

// TestLogsOfTheNode: the files of /var/log are at /logs/, unless the settings turn that off.
func TestLogsOfTheNode(t *testing.T) {
	for on, want := range map[bool]int{true: http.StatusOK, false: http.StatusNotFound} {
		set := config.Default()
		set.EnableSystemLogHandler = &on
		s := &Server{metrics: http.NotFoundHandler(), Config: Config{Settings: set}}
		w := httptest.NewRecorder()
		s.routes().ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/logs/", nil))
		if w.Code != want {
			t.Errorf("enableSystemLogHandler %t: %d %s", on, w.Code, w.Body)
		}
	}
}
