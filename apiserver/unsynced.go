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
	"github.com/barque/barque/apiserver/storeerror"
	"github.com/barque/barque/raftstore"
)

// A server that is started without a quorum is not synced: authorization and admission read their
// objects from the store, and it cannot be read. The server still answers, for clients that reach
// no better one. Its answers name the missing leader, so that a dead cluster does not look like
// missing rights.

// unsynced reports whether authorization and admission have not read their objects yet. Once they
// have, it stays so.
func (s *Server) unsynced() bool {
	if s.synced.Load() {
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
	s.synced.Store(true)
	return false
}

// unsyncedPatience is how long a write at an unsynced server waits for the store. The store answers
// within two seconds when there has been no leader for long.
const unsyncedPatience = 3 * time.Second

var errStoreSlowToWrite = errors.New("the store did not answer within " + unsyncedPatience.String())

// withoutWritesUntilSynced refuses writes while this server is not synced and its store cannot
// serve. Admission would let them wait, and then forbid them.
func (s *Server) withoutWritesUntilSynced(next http.Handler, codecs runtime.NegotiatedSerializer) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		info, ok := request.RequestInfoFrom(r.Context())
		if !ok || !stores(info) || !s.unsynced() {
			next.ServeHTTP(w, r)
			return
		}
		ctx, cancel := context.WithTimeoutCause(r.Context(), unsyncedPatience, errStoreSlowToWrite)
		defer cancel()
		if _, err := s.cfg.Store.View(ctx, raftstore.ViewOptions{}); err != nil && r.Context().Err() == nil {
			if !errors.Is(err, raftstore.ErrUnavailable) { // with any other error, nothing was written
				err = fmt.Errorf("%w: %w", raftstore.ErrUnavailable, err)
			}
			gv := schema.GroupVersion{Group: info.APIGroup, Version: info.APIVersion}
			responsewriters.ErrorNegotiated(storeerror.OfWrite(err), codecs, gv, w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// stores reports whether a request would write to the store.
func stores(info *request.RequestInfo) bool {
	return info.IsResourceRequest &&
		slices.Contains([]string{"create", "update", "patch", "delete", "deletecollection"}, info.Verb) &&
		info.APIGroup != "authentication.k8s.io" && info.APIGroup != "authorization.k8s.io"
}

// reasonWhenUnsynced adds to a refusal of an authorizer that it has not read the roles yet.
type reasonWhenUnsynced struct {
	*rbac.Authorizer
	unsynced func() bool
}

// Authorize implements authorizer.Authorizer.
func (a reasonWhenUnsynced) Authorize(
	ctx context.Context, of authorizer.Attributes,
) (authorizer.Decision, string, error) {
	decision, reason, err := a.Authorizer.Authorize(ctx, of)
	if decision == authorizer.DecisionNoOpinion && err == nil && a.unsynced() {
		reason = "this server was just started and has not read the roles yet, which takes a leader of the store; see 'barque cluster status'"
	}
	return decision, reason, err
}

// ConditionsAwareAuthorize implements authorizer.Authorizer.
func (a reasonWhenUnsynced) ConditionsAwareAuthorize(
	ctx context.Context, of authorizer.Attributes,
) authorizer.ConditionsAwareDecision {
	return authorizer.ConditionsAwareDecisionFromParts(a.Authorize(ctx, of))
}
