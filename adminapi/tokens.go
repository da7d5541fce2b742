package adminapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"

	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/barque/barque/apiserver/extra"
	"github.com/barque/barque/membership/acts"
	"github.com/barque/barque/membership/token"
	"github.com/barque/barque/raftstore"
)

// Tokens are the cluster's join tokens.
type Tokens interface {
	Create(ctx context.Context, spec token.Spec, by string) (token.Made, error)
	List(ctx context.Context) ([]token.Info, error)
	Delete(ctx context.Context, id string) (was bool, err error)
}

// maxOrder bounds the size of a token.Order.
const maxOrder = 16 << 10

// TokensHandler serves token.Path. It is for administrators, whatever RBAC allows, because a
// server's token is worth as much as the CA's key.
func TokensHandler(tokens Tokens, logger *slog.Logger) http.Handler {
	methods := map[string]http.HandlerFunc{
		http.MethodGet: func(w http.ResponseWriter, r *http.Request) {
			all, err := tokens.List(r.Context())
			if all == nil {
				all = []token.Info{}
			}
			answerTokens(w, all, err)
		},
		http.MethodPost: func(w http.ResponseWriter, r *http.Request) {
			var order token.Order
			if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxOrder)).Decode(&order); err != nil {
				http.Error(w, fmt.Sprintf("the request is not the JSON that this server expects: %v", err),
					http.StatusBadRequest)
				return
			}
			if err := order.Spec().Check(); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			audit.AddAuditAnnotationsMap(r.Context(), acts.Token(order.Role, order.Uses, order.Spec().TTL))
			by := userOf(r)
			made, err := tokens.Create(r.Context(), order.Spec(), by)
			if err == nil {
				audit.AddAuditAnnotationsMap(r.Context(), acts.TokenID(made.ID))
				logger.Info("a join token was made", "tokenID", made.ID, "role", made.Role, "uses", made.Uses,
					"expires", made.Expires, "by", by)
			}
			answerTokens(w, made, err)
		},
		http.MethodDelete: func(w http.ResponseWriter, r *http.Request) {
			id := r.URL.Query().Get("id")
			if !token.IsID(id) {
				http.Error(w, fmt.Sprintf("the parameter id is %q, which is the ID of no token", id),
					http.StatusBadRequest)
				return
			}
			audit.AddAuditAnnotationsMap(r.Context(), acts.TokenID(id))
			was, err := tokens.Delete(r.Context(), id)
			if err == nil && was {
				logger.Info("a join token was deleted", "tokenID", id, "by", userOf(r))
			}
			if err == nil && !was {
				extra.Answer(w, http.StatusNotFound, token.Deletion{})
				return
			}
			answerTokens(w, token.Deletion{Was: was}, err)
		},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		serve, ok := methods[r.Method]
		if !ok {
			serve = func(w http.ResponseWriter, _ *http.Request) {
				http.Error(w, "only GET, POST and DELETE are served here", http.StatusMethodNotAllowed)
			}
		}
		extra.MastersOnly(r.Method, serve).ServeHTTP(w, r)
	})
}

func userOf(r *http.Request) string {
	if who, ok := request.UserFrom(r.Context()); ok {
		return who.GetName()
	}
	return ""
}

func answerTokens(w http.ResponseWriter, value any, err error) {
	switch {
	case err == nil:
		w.Header().Set("Cache-Control", "no-store") // one of the answers has a secret
		extra.Answer(w, http.StatusOK, value)
	case errors.Is(err, raftstore.ErrUnknownOutcome):
		http.Error(w, err.Error(), http.StatusGatewayTimeout)
	default:
		extra.Unavailable(w, err)
	}
}
