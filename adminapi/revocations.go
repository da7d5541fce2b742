package adminapi

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
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
	RevokeCertificate(
		ctx context.Context, serial, name string, until time.Time, by, why string,
	) (revocation.Entry, error)
	RevokeUser(ctx context.Context, name, by, why string) (revocation.Entry, error)
	Readmit(ctx context.Context, name string, serials []string, by, why string) (revocation.Entry, error)
}

// InUse knows the certificates that the cluster needs.
type InUse struct {
	// IsCA reports whether a CA that is believed has the serial number.
	IsCA func(serial string) bool
	// Needed returns the reason why a certificate is needed, as by its name that of a present
	// member, or nil.
	Needed func(revocation.Order) error
	// Find looks for a certificate among those that the members have. silent are the members that
	// do not say which they have.
	Find func(ctx context.Context, serial string) (held *Held, silent []string)
	// Serials returns the serial numbers of an agent's certificates, as far as it answers.
	Serials func(ctx context.Context, agent string) []string
}

// RevocationsHandler serves RevocationsPath.
func RevocationsHandler(
	entries func() *revocation.Entries, book Revocations, used InUse, logger *slog.Logger,
) http.Handler {
	methods := map[string]http.HandlerFunc{
		http.MethodGet: func(w http.ResponseWriter, _ *http.Request) { extra.Answer(w, http.StatusOK, entries()) },
		http.MethodPost: func(w http.ResponseWriter, r *http.Request) {
			var order revocation.Order
			if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxOrder)).Decode(&order); err != nil {
				http.Error(w, fmt.Sprintf("the request is not the JSON that this server expects: %v", err),
					http.StatusBadRequest)
				return
			}
			if err := order.Check(); err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			made, danger := used.complete(r, &order)
			audit.AddAuditAnnotationsMap(r.Context(), annotations(order))
			by := userOf(r)
			switch {
			case order.Readmit != "":
				readmit(w, r, book, order, used.Serials(r.Context(), order.Readmit), by, logger)
				return
			case errors.Is(danger, revocation.ErrCA):
				http.Error(w, danger.Error(), http.StatusConflict)
				return
			case danger != nil && !order.Force:
				http.Error(w, danger.Error()+"; to revoke it all the same, give --force", http.StatusConflict)
				return
			}
			var err error
			if made.Entry, err = revoke(r.Context(), book, order, by); err == nil {
				logger.Info("certificates were revoked by an administrator", "kind", made.Kind, "serial", made.ID,
					"name", made.Name, "by", by, "reason", made.Why)
			}
			answerTokens(w, made, err)
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

// complete completes an order by the certificate in use, and returns the reason why the order would
// shut out a present member, or its own sender.
func (u *InUse) complete(r *http.Request, order *revocation.Order) (made revocation.Made, danger error) {
	own := ownCertificate(r)
	switch {
	case order.Readmit != "":
		return made, nil
	case order.User != "" && own != nil && own.Subject.CommonName == order.User:
		return made, fmt.Errorf("the certificate with which you ask is one of %q", order.User)
	case order.User != "": // no member has a user's name
		return made, nil
	case u.IsCA(order.Serial):
		return made, revocation.ErrCA
	}
	held, silent := u.Find(r.Context(), order.Serial)
	if held != nil {
		made.Node, made.Role, made.Use = held.Node, held.Role, held.Certificate.Name
		order.Name, order.Until = held.commonName(), held.Certificate.NotAfter
	}
	switch needed := u.Needed(*order); {
	case own != nil && revocation.SerialOf(own) == order.Serial:
		return made, errors.New("it is the certificate with which you ask")
	case needed != nil:
		return made, needed
	case held != nil && !held.administrators():
		return made, fmt.Errorf("it is the certificate %q of %s %s, which is a member", made.Use, made.Role, made.Node)
	case held == nil && order.Name == "" && len(silent) > 0:
		return made,
			fmt.Errorf("it may be a certificate of a member: these do not say which they have: %s",
				strings.Join(silent, ", "))
	}
	return made, nil
}

func ownCertificate(r *http.Request) *x509.Certificate {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return nil
	}
	return r.TLS.PeerCertificates[0]
}

func readmit(w http.ResponseWriter, r *http.Request, book Revocations, order revocation.Order, serials []string,
	by string,
	logger *slog.Logger) {
	entry, err := book.Readmit(r.Context(), order.Readmit, serials, by, order.Why)
	switch {
	case errors.Is(err, revocation.ErrNotRevoked):
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	case errors.Is(err, revocation.ErrKeyUnknown):
		http.Error(w, err.Error(), http.StatusConflict)
		return
	case err == nil:
		logger.Info("an agent was let in again", "agent", order.Readmit, "by", by, "reason", order.Why)
	}
	answerTokens(w, entry, err)
}
