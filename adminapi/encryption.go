package adminapi

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/barque/barque/apiserver/encryption"
	"github.com/barque/barque/membership/datakeys"
	"github.com/barque/barque/raftstore"
)

// EncryptionPath answers with an EncryptionAnswer, which has the datakeys.Status of the encryption
// of objects in the store. POST takes the parameters "change", a datakeys.Change, any number of
// "resource" to encrypt besides those that are, and of "decrypt" to take out, and the flag
// "dryRun". It is for members of system:masters only.
const EncryptionPath = "/barque/v1/encryption"

// EncryptionAnswer is the answer to GET and POST.
type EncryptionAnswer struct {
	datakeys.Status
	Error   string `json:"error,omitempty"`
	Refused bool   `json:"refused,omitempty"` // nothing was changed
	// Unfinished is set if the change was begun and continues, or may have been.
	Unfinished bool `json:"unfinished,omitempty"`
	NoLeader   bool `json:"noLeader,omitempty"` // none for long; nothing was changed
}

// Resolve returns the full name of a resource that can be encrypted, as encryption.Transformers do.
type Resolve func(ctx context.Context, name string) (string, error)

// EncryptionHandler serves EncryptionPath.
func EncryptionHandler(keys *datakeys.Manager, resolve Resolve, logger *slog.Logger) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		who, ok := request.UserFrom(r.Context())
		switch {
		case !ok || !slices.Contains(who.GetGroups(), user.SystemPrivilegedGroup):
			http.Error(w, "this is for members of "+user.SystemPrivilegedGroup+" only", http.StatusForbidden)
			return
		case r.Method != http.MethodGet && r.Method != http.MethodPost:
			http.Error(w, "only GET and POST are served here", http.StatusMethodNotAllowed)
			return
		}
		var err error
		query := r.URL.Query()
		begun := false
		if r.Method == http.MethodPost {
			var o datakeys.Order
			if o, err = order(r.Context(), query, resolve); err == nil {
				err = keys.Apply(r.Context(), o)
			}
			if begun = err == nil && !o.DryRun; begun {
				logger.Info("an operator has asked for a change of the encryption", "change", o.Change, "resources", o.Add, "decrypt", o.Drop, "by", who.GetName())
			}
		}
		var answer EncryptionAnswer
		if err == nil {
			answer.Status, err = keys.Status(r.Context())
		}
		status := answer.judge(err, begun)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(answer) // fails if the client has gone
	})
}

// order reads the change that a request asks for. A name that is mistyped is refused.
func order(ctx context.Context, query url.Values, resolve Resolve) (datakeys.Order, error) {
	o := datakeys.Order{Change: datakeys.Change(query.Get("change")), DryRun: query.Get("dryRun") == "true"}
	for _, name := range query["resource"] {
		resource, err := resolve(ctx, name)
		var unknown *encryption.ResourceError
		if errors.As(err, &unknown) {
			err = &datakeys.RefusedError{Reason: unknown.Reason}
		}
		if err != nil {
			return o, err
		}
		o.Add = append(o.Add, resource)
	}
	for _, name := range query["decrypt"] { // also one whose definition is gone
		o.Drop = append(o.Drop, schema.ParseGroupResource(name).String())
	}
	return o, nil
}

// judge stores the error's meaning in the answer, and returns the HTTP status for it. A begun
// change continues even if reading its status failed afterwards.
func (a *EncryptionAnswer) judge(err error, begun bool) int {
	var refused *datakeys.RefusedError
	var conflict *raftstore.ConflictError
	if err == nil {
		return http.StatusOK
	}
	a.Error = err.Error()
	switch {
	case begun, errors.Is(err, raftstore.ErrUnknownOutcome):
		a.Unfinished = true
	case errors.As(err, &conflict):
		a.Error = "the state of the data keys was changed at the same time by somebody else; look with `barque secrets-encrypt status`"
		a.Refused = true
		return http.StatusConflict
	case errors.As(err, &refused):
		a.Refused = true
		return http.StatusConflict
	case errors.Is(err, raftstore.ErrLeaderless):
		a.NoLeader = true
	}
	return http.StatusServiceUnavailable
}
