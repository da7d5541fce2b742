package apiserver

import (
	"context"
	"errors"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/barque/barque/apiserver/rbac"
)

// BootstrapCheck is the name of the readiness check that fails until the cluster has its default
// objects. The leader's work makes it pass, so that work must not wait for it.
const BootstrapCheck = "bootstrap"

// errNotBootstrapped is why a server is not ready although its store is.
var errNotBootstrapped = errors.New("the leader has not created the cluster's default objects yet")

// bootstrapped reports whether this server knows the default namespace. ensure creates it after the
// system namespaces, the default roles and the priority classes. It cannot be deleted, so a
// cluster is bootstrapped once.
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
// and the leader request it from the first moment on, without credentials or with a node's. Without
// the roles they would get the error that it is forbidden.
func (s *Server) withoutRights(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/readyz" || r.URL.RawQuery != "" || !s.unsynced() && s.bootstrapped() {
			next.ServeHTTP(w, r)
			return
		}
		http.Error(w, "[-]"+BootstrapCheck+" failed: reason withheld\nreadyz check failed",
			http.StatusInternalServerError)
	})
}

// rightsPatience is how long Prepare waits for this server's informers to show roles that it has
// written. Without it, users that remove roles again would keep it waiting.
const rightsPatience = 5 * time.Second

// Prepare returns when the cluster has its default objects and this server's authorizer knows them.
// Other leader work relies on them and starts then: controllers and the scheduler have no rights
// but those of their roles. In a bootstrapped cluster it checks the roles only, and in memory,
// unless one is missing. That is so when an earlier version has led until now. LeaderRoutine
// repairs objects that are lost later.
func (s *Server) Prepare(ctx context.Context, client kubernetes.Interface) error {
	ready := func() bool { return s.bootstrapped() && s.defaults() }
	if ready() {
		return nil
	}
	if s.bootstrapped() {
		// Not an error: a role that cannot be written, as in a namespace that is being deleted, is
		// no reason to stop the controllers, which delete the namespace.
		if err := rbac.Reconcile(ctx, client, s.informers.Rbac().V1()); err != nil {
			s.logger.Warn("some controllers may lack rights; trying again", "err", err)
			return nil
		}
		patient, cancel := context.WithTimeout(ctx, rightsPatience)
		defer cancel()
		if err := poll(patient, ready); err != nil && ctx.Err() == nil {
			s.logger.Warn("some controllers may lack rights: default roles are changed again and again")
			return nil
		}
		return context.Cause(ctx)
	}
	if err := s.ensure(ctx, client); err != nil {
		return err
	}
	return poll(ctx, ready)
}

// poll returns when done returns true.
func poll(ctx context.Context, done func() bool) error {
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for !done() {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
		}
	}
	return nil
}
