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
