package adminapi

import (
	"errors"
	"fmt"
	"net/http"

	"github.com/barque/barque/apiserver/extra"
	"github.com/barque/barque/membership/keyring"
	"github.com/barque/barque/raftstore"
)

// KeysPath answers with a KeysAnswer, which has the keyring.Status of the gossip keys. RBAC
// controls the right to GET. POST is for administrators only. It takes the parameter "change",
// rotate or undo, and the flags "force" and "dryRun".
const KeysPath = "/barque/v1/keys"

// KeysAnswer is the answer to GET and POST.
type KeysAnswer struct {
	keyring.Status
	Error   string `json:"error,omitempty"`
	Refused bool   `json:"refused,omitempty"` // nothing was changed
	// Unfinished is set if the change was begun and continues, or may have been.
	Unfinished bool `json:"unfinished,omitempty"`
	NoLeader   bool `json:"noLeader,omitempty"` // nothing was changed
}

// KeysHandler serves KeysPath.
func KeysHandler(keys *keyring.Manager) http.Handler {
	return extra.MastersChange(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		force, dryRun := query.Get("force") == "true", query.Get("dryRun") == "true"
		var err error
		switch change := query.Get("change"); {
		case r.Method == http.MethodGet:
		case r.Method != http.MethodPost:
			http.Error(w, "only GET and POST are served here", http.StatusMethodNotAllowed)
			return
		case change == "rotate":
			err = keys.Rotate(r.Context(), force, dryRun)
		case change == "undo":
			err = keys.Undo(r.Context(), dryRun)
		default:
			http.Error(w, fmt.Sprintf("the parameter change is %q: want rotate or undo", change), http.StatusBadRequest)
			return
		}
		var answer KeysAnswer
		begun := err == nil && r.Method == http.MethodPost && !dryRun
		if err == nil {
			answer.Status, err = keys.Status(r.Context())
		}
		status := answer.judge(err, begun)
		extra.Answer(w, status, answer)
	}))
}

// judge stores the error's meaning in the answer, and returns the HTTP status for it. A begun
// change continues even if reading the keys failed afterwards.
func (a *KeysAnswer) judge(err error, begun bool) int {
	var refused *keyring.RefusedError
	var conflict *raftstore.ConflictError
	if err == nil {
		return http.StatusOK
	}
	a.Error = err.Error()
	switch {
	case begun, errors.Is(err, raftstore.ErrUnknownOutcome):
		a.Unfinished = true
	case errors.As(err, &conflict):
		a.Error = "write the state of the gossip keys: the gossip keys were changed at the same time by somebody else; look with `barque cluster keys list`"
		fallthrough
	case errors.As(err, &refused):
		a.Refused = true
		return http.StatusConflict
	case hasNoLeader(err):
		a.NoLeader = true
	}
	return http.StatusServiceUnavailable
}
