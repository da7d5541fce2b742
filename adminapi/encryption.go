package adminapi

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/url"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/barque/barque/apiserver/extra"
	"github.com/barque/barque/internal/scope"
	"github.com/barque/barque/membership/datakeys"
	"github.com/barque/barque/raftstore"
)

// EncryptionPath answers with an EncryptionAnswer, which has the datakeys.Status of the encryption
// of objects in the store. POST is for administrators only. Its parameters are "change", a
// datakeys.Change, and the flag "dryRun". "resource" adds a resource to encrypt and "decrypt"
// removes one; both can be repeated.
const EncryptionPath = "/barque/v1/encryption"

// EncryptionAnswer is the answer to GET and POST.
type EncryptionAnswer struct {
	datakeys.Status
	Error   string `json:"error,omitempty"`
	Refused bool   `json:"refused,omitempty"` // nothing was changed
	// Unfinished is set if the change was begun and continues, or may have been.
	Unfinished bool `json:"unfinished,omitempty"`
	NoLeader   bool `json:"noLeader,omitempty"` // nothing was changed
}

// Resolve returns the full name of a resource that can be encrypted. It fails with a
// datakeys.RefusedError for any other.
type Resolve func(ctx context.Context, name string) (string, error)

// Encryption serves EncryptionPath.
type Encryption struct {
	Keys    *datakeys.Manager
	Resolve Resolve
	Relay   *Relay
	Leader  func() (name string, known bool)
	Logger  *slog.Logger
}

// problemParameter asks only for the problem of the server itself.
const problemParameter = "problem"

// ServeHTTP implements http.Handler.
func (e *Encryption) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var who user.Info
	if r.Method != http.MethodGet || !extra.IsServer(r) {
		var ok bool
		if who, ok = extra.Master(w, r); !ok {
			return
		}
	}
	switch {
	case r.Method != http.MethodGet && r.Method != http.MethodPost:
		http.Error(w, "only GET and POST are served here", http.StatusMethodNotAllowed)
		return
	case r.Method == http.MethodGet && e.byLeader(w, r):
		return
	}
	var err error
	query := r.URL.Query()
	begun := false
	if r.Method == http.MethodPost {
		var o datakeys.Order
		if o, err = order(r.Context(), query, e.Resolve); err == nil {
			err = e.Keys.Apply(r.Context(), o)
		}
		if begun = err == nil && !o.DryRun; begun {
			e.Logger.Info("an operator has asked for a change of the encryption", "change", o.Change, "resources",
				o.Add, "decrypt", o.Drop, "by", who.GetName())
		}
	}
	var answer EncryptionAnswer
	switch {
	case err != nil:
	case query.Get(problemParameter) != "":
		answer.Problem = e.Keys.Problem(r.Context())
	default:
		if answer.Status, err = e.Keys.Status(r.Context()); err == nil {
			e.addProblems(r.Context(), &answer.Status)
		}
	}
	status := answer.judge(err, begun)
	extra.Answer(w, status, answer)
}

// byLeader passes a request for the status on to the leader, the only server that knows the
// progress over the objects. It returns false if this server must answer, also after a failure of
// the leader.
func (e *Encryption) byLeader(w http.ResponseWriter, r *http.Request) bool {
	name, known := e.Leader()
	if !known || name == e.Relay.self || r.Header.Get(relayedHeader) != "" {
		return false
	}
	response, err := e.Relay.ask(r.Context(), name, http.MethodGet, r.URL.Path, r.URL.RawQuery)
	if err != nil {
		return false
	}
	defer response.Body.Close()
	var answer EncryptionAnswer
	if json.NewDecoder(response.Body).Decode(&answer) != nil { // of an earlier version
		return false
	}
	extra.Answer(w, response.StatusCode, answer)
	return true
}

// problemTimeout bounds how long a server is asked for its problem.
const problemTimeout = 3 * time.Second

// addProblems asks the living servers that are behind for the reason.
func (e *Encryption) addProblems(ctx context.Context, s *datakeys.Status) {
	ctx, cancel := context.WithTimeout(ctx, problemTimeout)
	defer cancel()
	var asking sync.WaitGroup
	for i := range s.Servers {
		to := &s.Servers[i]
		if !to.Alive || to.Name == e.Relay.self || to.Generation >= s.Generation {
			continue
		}
		asking.Go(func() {
			response, err := e.Relay.ask(ctx, to.Name, http.MethodGet, EncryptionPath, problemParameter+"=true")
			if err != nil {
				return // its state is shown
			}
			defer response.Body.Close()
			var answer EncryptionAnswer
			if json.NewDecoder(response.Body).Decode(&answer) == nil {
				to.Problem = answer.Problem
			}
		})
	}
	asking.Wait()
}

// order reads the change that a request asks for. A name that is mistyped is refused.
func order(ctx context.Context, query url.Values, resolve Resolve) (datakeys.Order, error) {
	o := datakeys.Order{Change: datakeys.Change(query.Get("change")), DryRun: query.Get("dryRun") == "true"}
	for _, name := range query["resource"] {
		resource, err := resolve(ctx, name)
		if err != nil {
			return o, err
		}
		o.Add = append(o.Add, resource)
	}
	for _, name := range query["decrypt"] { // also one whose definition is gone
		if name == scope.Core { // it would lose its point
			o.Drop = append(o.Drop, name)
			continue
		}
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
	case hasNoLeader(err):
		a.NoLeader = true
	}
	return http.StatusServiceUnavailable
}
