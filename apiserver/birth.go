package apiserver

import (
	"context"
	"errors"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// BirthCheck is the name of the readiness check that fails until the cluster has been given what
// every cluster has. Who starts the leader's work must not wait for it: that work makes it pass.
const BirthCheck = "birth"

// errUnborn is why a server is not ready although its store is.
var errUnborn = errors.New("the leader has not laid down yet what every cluster has")

// born tells whether this server knows the default namespace, which ensure makes when the system
// namespaces, the default roles and the priority classes are there. It cannot be deleted, so a
// cluster is born once.
func (s *Server) born() bool {
	_, err := s.informers.Core().V1().Namespaces().Lister().Get(metav1.NamespaceDefault)
	return err == nil
}

func (s *Server) checkBirth(*http.Request) error {
	if s.born() {
		return nil
	}
	return errUnborn
}

// withoutRights answers the question for readiness with no as long as this server knows no roles,
// because it has just been started or the cluster was not born yet. Load balancers and the leader
// ask from the first moment on, without credentials or with a node's; they would be told that they
// may not ask, after all the work that it takes to say so.
func (s *Server) withoutRights(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/readyz" || r.URL.RawQuery != "" || !s.cold() && s.born() {
			next.ServeHTTP(w, r)
			return
		}
		http.Error(w, "[-]"+BirthCheck+" failed: reason withheld\nreadyz check failed", http.StatusInternalServerError)
	})
}

// Prepare returns when the cluster has what every cluster has and this server's authorizer knows
// it, so that other leader work, which relies on that, can start. After the birth of the cluster
// that is at once; LeaderRoutine repairs what is lost later.
func (s *Server) Prepare(ctx context.Context, client kubernetes.Interface) error {
	if s.born() {
		return nil
	}
	if err := s.ensure(ctx, client); err != nil {
		return err
	}
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for !s.born() || !s.defaults() {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-ticker.C:
		}
	}
	return nil
}
