package adminapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"k8s.io/apiserver/pkg/audit"

	"github.com/barque/barque/apiserver/extra"
	"github.com/barque/barque/membership/acts"
	"github.com/barque/barque/membership/revocation"
)

// RevocationsPath: GET answers with the revocation.Entries of the server. POST takes a
// revocation.Order and answers with the revocation.Entry. Both are for administrators.
const RevocationsPath = revocation.APIPath

// Revocations are the revoked certificates of the cluster.
type Revocations interface {
	RevokeCertificate(ctx context.Context, serial, name string, until time.Time, by, why string) (revocation.Entry, error)
	RevokeUser(ctx context.Context, name, by, why string) (revocation.Entry, error)
	Readmit(ctx context.Context, name, by, why string) (revocation.Entry, error)
}

// RevocationsHandler serves RevocationsPath. needed returns the reason why a certificate is needed,
// as that of a present member, or nil.
func RevocationsHandler(entries func() *revocation.Entries, book Revocations, needed func(revocation.Order) error, logger *slog.Logger) http.Handler {
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
			audit.AddAuditAnnotationsMap(r.Context(), annotations(order))
			by := userOf(r)
			if order.Readmit != "" {
				readmit(w, r, book, order, by, logger)
				return
			}
			if err := guard(r, order, needed); err != nil && !order.Force {
				http.Error(w, err.Error()+"; to revoke it all the same, give --force", http.StatusConflict)
				return
			}
			entry, err := revoke(r.Context(), book, order, by)
			if err == nil {
				logger.Info("certificates were revoked by an administrator", "kind", entry.Kind, "serial", entry.ID, "name", entry.Name, "by", by, "why", entry.Why)
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

// annotations are those of the audit event, of a refused order too.
func annotations(o revocation.Order) map[string]string {
	switch {
	case o.Readmit != "":
		return acts.Order("readmit", revocation.Agent, o.Readmit, "")
	case o.User != "":
		return acts.Order("revoke", revocation.User, o.User, "")
	}
	return acts.Order("revoke", revocation.Certificate, o.Name, o.Serial)
}

func revoke(ctx context.Context, book Revocations, order revocation.Order, by string) (revocation.Entry, error) {
	if order.User != "" {
		return book.RevokeUser(ctx, order.User, by, order.Why)
	}
	return book.RevokeCertificate(ctx, order.Serial, order.Name, order.Until, by, order.Why)
}

// guard returns the reason why the order would shut out somebody who is to stay.
func guard(r *http.Request, order revocation.Order, needed func(revocation.Order) error) error {
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		switch own := r.TLS.PeerCertificates[0]; {
		case order.User == "" && revocation.SerialOf(own) == order.Serial:
			return errors.New("it is the certificate with which you ask")
		case order.User != "" && own.Subject.CommonName == order.User:
			return fmt.Errorf("the certificate with which you ask is one of %q", order.User)
		}
	}
	if order.User != "" {
		return nil // no member has a user's name
	}
	return needed(order)
}

func readmit(w http.ResponseWriter, r *http.Request, book Revocations, order revocation.Order, by string, logger *slog.Logger) {
	entry, err := book.Readmit(r.Context(), order.Readmit, by, order.Why)
	switch {
	case errors.Is(err, revocation.ErrNotRevoked):
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	case errors.Is(err, revocation.ErrKeyUnknown):
		http.Error(w, err.Error(), http.StatusConflict)
		return
	case err == nil:
		logger.Info("an agent was let in again", "agent", order.Readmit, "by", by, "why", order.Why)
	}
	answerTokens(w, entry, err)
}
