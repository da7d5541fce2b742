package adminapi

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"github.com/barque/barque/apiserver/extra"
	"github.com/barque/barque/membership/revocation"
)

// RevocationsPath: GET answers with the revocation.Entries of the server. POST takes a
// revocation.Order and answers with the revocation.Entry. Both are for members of system:masters.
const RevocationsPath = revocation.APIPath

// Revocations are the revoked certificates of the cluster.
type Revocations interface {
	RevokeCertificate(ctx context.Context, serial, name string, until time.Time, by, why string) (revocation.Entry, error)
}

// RevocationsHandler serves RevocationsPath.
func RevocationsHandler(entries func() *revocation.Entries, book Revocations, logger *slog.Logger) http.Handler {
	methods := map[string]http.HandlerFunc{
		http.MethodGet: func(w http.ResponseWriter, _ *http.Request) { extra.Answer(w, http.StatusOK, entries()) },
		http.MethodPost: func(w http.ResponseWriter, r *http.Request) {
			var order revocation.Order
			if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxOrder)).Decode(&order); err != nil {
				http.Error(w, fmt.Sprintf("the request is not the JSON that this server expects: %v", err), http.StatusBadRequest)
				return
			}
			if err := order.Check(); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			by := userOf(r)
			entry, err := book.RevokeCertificate(r.Context(), order.Serial, order.Name, order.Until, by, order.Why)
			if err == nil {
				logger.Info("a certificate was revoked", "serial", entry.ID, "name", entry.Name, "by", by, "why", entry.Why)
			}
			answerTokens(w, entry, err)
		},
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		serve, ok := methods[r.Method]
		if !ok {
			serve = func(w http.ResponseWriter, _ *http.Request) {
				http.Error(w, "only GET and POST are served here", http.StatusMethodNotAllowed)
			}
		}
		extra.MastersOnly(r.Method, serve).ServeHTTP(w, r)
	})
}
