package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/handlers/responsewriters"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/barque/barque/apiserver/rbac"
	"github.com/barque/barque/apiserver/storage"
	"github.com/barque/barque/raftstore"
)

// A server that is started without a quorum is cold: what authorization and admission go by, they
// read from the store, and it cannot be read. It answers, and is asked where there is no better
// one. So that nobody takes a dead cluster for missing rights, it says what is missing.

// cold tells whether this server has not read yet what authorization and admission go by. Once it
// has, it knows that for good.
func (s *Server) cold() bool {
	if s.warm.Load() {
		return false
	}
	over, cancel := context.WithCancel(context.Background())
	cancel()
	informers := s.informers.WaitForCacheSync(over.Done()) // those that were started
	for _, synced := range informers {
		if !synced {
			return true
		}
	}
	if len(informers) == 0 {
		return true
	}
	s.warm.Store(true)
	return false
}

// coldPatience is how long a write at a cold server waits for the store. It answers within two
// seconds when there has been no leader for long.
const coldPatience = 3 * time.Second

var errStoreSlowToWrite = errors.New("the store did not answer within " + coldPatience.String())

// withoutWritesWhenCold refuses writes while this server is cold and its store cannot serve.
// Admission would let them wait, and then forbid them.
func (s *Server) withoutWritesWhenCold(next http.Handler, codecs runtime.NegotiatedSerializer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := request.RequestInfoFrom(r.Context())
		if !ok || !stores(info) || !s.cold() {
			next.ServeHTTP(w, r)
			return
		}
		ctx, cancel := context.WithTimeoutCause(r.Context(), coldPatience, errStoreSlowToWrite)
		defer cancel()
		if _, err := s.cfg.Store.View(ctx, raftstore.ViewOptions{}); err != nil && r.Context().Err() == nil {
			if !errors.Is(err, raftstore.ErrUnavailable) { // whatever it is, nothing was written
				err = fmt.Errorf("%w: %w", raftstore.ErrUnavailable, err)
			}
			gv := schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}
			responsewriters.ErrorNegotiated(storage.WriteError(err), codecs, gv, w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// stores tells whether a request would write to the store.
func stores(info *request.RequestInfo) bool {
	return info.IsResourceRequest && slices.Contains([]string{"create", "update", "patch", "delete", "deletecollection"}, info.Verb) &&
		info.APIGroup != "authentication.k8s.io" && info.APIGroup != "authorization.k8s.io"
}

// toldWhenCold adds to a refusal of an authorizer that it has not read yet what it goes by.
type toldWhenCold struct {
	*rbac.Authorizer
	cold func() bool
}

// Authorize implements authorizer.Authorizer.
func (a toldWhenCold) Authorize(ctx context.Context, of authorizer.Attributes) (authorizer.Decision, string, error) {
	decision, reason, err := a.Authorizer.Authorize(ctx, of)
	if decision == authorizer.DecisionNoOpinion && err == nil && a.cold() {
		reason = "this server was just started and has not read the roles yet, which takes a leader of the store; see 'barque cluster status'"
	}
	return decision, reason, err
}

// ConditionsAwareAuthorize implements authorizer.Authorizer.
func (a toldWhenCold) ConditionsAwareAuthorize(ctx context.Context, of authorizer.Attributes) authorizer.ConditionsAwareDecision {
	return authorizer.ConditionsAwareDecisionFromParts(a.Authorize(ctx, of))
}
