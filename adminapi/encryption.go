package adminapi

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"slices"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/barque/barque/membership/datakeys"
	"github.com/barque/barque/raftstore"
)

// EncryptionPath answers with an EncryptionAnswer, which has the datakeys.Status of the encryption
// of objects in the store. POST takes the parameters "change", a datakeys.Change, and any number of
// "resource", and the flag "dryRun". It is for members of system:masters only.
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

// EncryptionHandler serves EncryptionPath.
func EncryptionHandler(keys *datakeys.Manager, logger *slog.Logger) http.Handler {
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
			change, dryRun := datakeys.Change(query.Get("change")), query.Get("dryRun") == "true"
			err = unencryptable(query["resource"])
			if err == nil {
				err = keys.Apply(r.Context(), change, query["resource"], dryRun)
			}
			if begun = err == nil && !dryRun; begun {
				logger.Info("an operator has asked for a change of the encryption", "change", change, "resources", query["resource"], "by", who.GetName())
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

// neverEncrypted are resources that are written in one transaction with others, or are gone before
// anybody rewrites them.
var neverEncrypted = []string{"events", "events.events.k8s.io", "services", "ipaddresses.networking.k8s.io", "servicecidrs.networking.k8s.io", "leases.coordination.k8s.io"}

func unencryptable(resources []string) error {
	for _, r := range resources {
		if slices.Contains(neverEncrypted, r) || r == "" {
			return &datakeys.RefusedError{Reason: "objects of the resource \"" + r + "\" cannot be encrypted"}
		}
	}
	return nil
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
