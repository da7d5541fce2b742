package apiserver

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/server/healthz"

	"github.com/barque/barque/apiserver/healthchecks"
	"github.com/barque/barque/raftstore/storetest"
)

// A server whose store has lost its quorum is not ready and gives the reason; it lives, and is
// ready again with the quorum.
func TestReadyNamesTheReasonAndLifeDoesNotDependOnTheStore(t *testing.T) {
	group := storetest.NewCluster(t, 3, nil)
	store := group.Servers[0]
	c := startCluster(t, func(cfg *Config) {
		cfg.Store, cfg.ReadyChecks = store, healthchecks.OfStore(store.Ready)
		cfg.LiveChecks = []healthz.HealthChecker{healthchecks.OfReplica(func() { store.Status() })}
	})
	// The checks that kube-apiserver's users know by name. Some pass with the namespace "default".
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceDefault}}
	if _, err := c.admin.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil &&
		!apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	group.Await("the server lives", func() bool {
		code, _ := c.raw(t, "/livez", nil)
		return code == http.StatusOK
	})
	for _, path := range []string{"/healthz", "/livez", "/readyz"} {
		want := append([]string{"ping", "log", "etcd"}, healthchecks.StartupNames()...)
		for _, hook := range []string{
			"generic-apiserver-start-informers", "start-apiextensions-informers",
			"start-apiextensions-controllers", "crd-informer-synced", "start-kube-aggregator-informers",
			"apiservice-registration-controller",
			"apiservice-status-local-available-controller", "apiservice-status-remote-available-controller",
			"storage-readiness",
		} {
			want = append(want, "poststarthook/"+hook)
		}
		if path == "/readyz" {
			want = append(want, "informer-sync")
		}
		_, body := c.raw(t, path+"?verbose", nil)
		for _, name := range want {
			if !strings.Contains(string(body), "[+]"+name+" ok\n") {
				t.Errorf("%s lacks the check %s: %s", path, name, body)
			}
		}
	}
	ready := func() bool {
		code, _ := c.raw(t, "/readyz/store", nil)
		return code == http.StatusOK
	}
	group.Await("it is ready with a quorum", ready)
	group.Net.Isolate(storetest.Addr(0))
	group.Await("the reason is named", func() bool {
		code, body := c.raw(t, "/readyz/store", nil)
		return code == http.StatusInternalServerError &&
			strings.Contains(string(body), "no leader has been known for") &&
			strings.Contains(string(body), "2 of the 3 servers with a vote")
	})
	if code, body := c.raw(t, "/readyz?verbose", nil); code != http.StatusInternalServerError ||
		!strings.Contains(string(body), "[-]store failed") {
		t.Errorf("readyz without a quorum: %d %s", code, body)
	}
	if code, body := c.raw(t, "/livez?verbose", nil); code != http.StatusOK ||
		!strings.Contains(string(body), "[+]etcd ok") {
		t.Errorf("livez without a quorum: %d %s", code, body)
	}
	group.Net.Heal()
	group.Await("ready again", ready)
}

// TestTheStartDoesNotWaitForAllChecks: the rest of a server runs while a check of NotAtStart fails,
// and /readyz fails with it.
func TestTheStartDoesNotWaitForAllChecks(t *testing.T) {
	fails := func(*http.Request) error { return errors.New("not yet") }
	c := startUnready(t, func(cfg *Config) {
		cfg.ReadyChecks = []healthz.HealthChecker{healthz.NamedCheck("key", fails), healthz.NamedCheck("other", fails)}
		cfg.NotAtStart = []string{"key", "other"}
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := c.AwaitReady(ctx); err != nil {
		t.Fatalf("the start waits: %v", err)
	}
	for _, check := range []string{"key", "other"} {
		if code, body := c.raw(t, "/readyz?verbose", nil); code != http.StatusInternalServerError ||
			!strings.Contains(string(body), "[-]"+check+" failed") {
			t.Errorf("%d %s", code, body)
		}
	}
}
