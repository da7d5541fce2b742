package healthchecks

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
)

func ask(path string, checks []healthz.HealthChecker, query string) string {
	mux := http.NewServeMux()
	healthz.InstallPathHandler(mux, path, checks...)
	w := httptest.NewRecorder()
	mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path+query, nil))
	return w.Body.String()
}

// One request checks the store once, under both names of the check.
func TestStoreIsAskedOnceForBothNames(t *testing.T) {
	questions, fault := 0, error(nil)
	checks := OfStore(func(context.Context) error { questions++; return fault })
	if body := ask("/readyz", checks, "?verbose"); !strings.Contains(body, "[+]store ok") ||
		!strings.Contains(body, "[+]etcd ok") || questions != 1 {
		t.Errorf("%d questions, %s", questions, body)
	}
	fault = errors.New("no quorum")
	if body := ask("/readyz", checks, "?verbose"); !strings.Contains(body, "[-]store failed") ||
		!strings.Contains(body, "[-]etcd failed") || questions != 2 {
		t.Errorf("%d questions, %s", questions, body)
	}
	if body := ask("/readyz", checks, "?exclude=store&exclude=etcd"); body != "ok" || questions != 2 {
		t.Errorf("%d questions, %s", questions, body)
	}
	if body := ask("/readyz", checks, "/etcd"); !strings.Contains(body, "no quorum") {
		t.Errorf("/readyz/etcd: %s", body)
	}
}

func TestReplicaThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		questions, hold := 0, make(chan struct{})
		checks := []healthz.HealthChecker{OfReplica(func() { questions++; <-hold })}
		for range 3 {
			if body := ask("/livez", checks, "?verbose"); !strings.Contains(body, "[-]etcd failed") {
				t.Error(body)
			}
		}
		if questions != 1 {
			t.Errorf("%d questions to a replica that hangs, want 1", questions)
		}
		close(hold)
		synctest.Wait()
		if body := ask("/livez", checks, "?verbose"); !strings.Contains(body, "[+]etcd ok") {
			t.Error(body)
		}
	})
}

func TestStartupPassesOnce(t *testing.T) {
	known := false
	checks := Startup("start", func() bool { return known })
	for _, name := range StartupNames() {
		if body := ask("/livez", checks, "?verbose"); !strings.Contains(body, "[-]"+name+" failed") {
			t.Errorf("before: %s", body)
		}
	}
	if body := ask("/livez", checks, "?exclude=start"); body != "ok" {
		t.Errorf("without the group: %s", body)
	}
	known = true
	for _, name := range StartupNames() {
		if body := ask("/livez", checks, "?verbose"); !strings.Contains(body, "[+]"+name+" ok") {
			t.Errorf("after: %s", body)
		}
		known = false // an informer that starts anew
	}
}

// A server that starts without a quorum lives, however long its start takes.
func TestLifeDoesNotDependOnTheStart(t *testing.T) {
	c := new(genericapiserver.Config)
	Add(c, Startup("start", func() bool { return false })...)
	if body := ask("/readyz", c.ReadyzChecks, ""); body == "ok" {
		t.Error("it is ready before the end of its start")
	}
	for path, checks := range map[string][]healthz.HealthChecker{"/livez": c.LivezChecks, "/healthz": c.HealthzChecks} {
		body := ask(path, checks, "?verbose")
		for _, name := range StartupNames() {
			if !strings.Contains(body, "[+]"+name+" ok") {
				t.Errorf("%s: %s", path, body)
			}
		}
	}
}
