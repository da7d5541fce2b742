package apiserver

import (
	"context"
	"errors"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// BootstrapCheck is the name of the readiness check that fails until the cluster has its default
// objects. The leader's work makes it pass, so that work must not wait for it.
const BootstrapCheck = "bootstrap"

// errNotBootstrapped is why a server is not ready although its store is.
var errNotBootstrapped = errors.New("the leader has not created the cluster's default objects yet")

// bootstrapped tells whether this server knows the default namespace. ensure creates it after the
// system namespaces, the default roles and the priority classes. It cannot be deleted, so a cluster
// is bootstrapped once.
func (s *Server) bootstrapped() bool {
	_, err := s.informers.Core().V1().Namespaces().Lister().Get(metav1.NamespaceDefault)
	return err == nil
}

func (s *Server) checkBootstrap(*http.Request) error {
	if s.bootstrapped() {
		return nil
	}
	return errNotBootstrapped
}

// withoutRights fails /readyz until RBAC is synced and the cluster is bootstrapped. Load balancers
// and the leader ask from the first moment on, without credentials or with a node's. Without the
// roles they would be told that they may not ask.
func (s *Server) withoutRights(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/readyz" || r.URL.RawQuery != "" || !s.unsynced() && s.bootstrapped() {
			next.ServeHTTP(w, r)
			return
		}
		http.Error(w, "[-]"+BootstrapCheck+" failed: reason withheld\nreadyz check failed", http.StatusInternalServerError)
	})
}

// Prepare returns when the cluster has its default objects and this server's authorizer knows them.
// Other leader work relies on them and starts then. Once the cluster is bootstrapped it returns at
// once; LeaderRoutine repairs objects that are lost later.
func (s *Server) Prepare(ctx context.Context, client kubernetes.Interface) error {
	if s.bootstrapped() {
		return nil
	}
	if err := s.ensure(ctx, client); err != nil {
		return err
	}
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for !s.bootstrapped() || !s.defaults() {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
		}
	}
	return nil
}
