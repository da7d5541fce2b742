package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/barque/barque/raftstore"
)

// MembersPath, a slash and a server's name is that member of the store. DELETE takes it out; RBAC
// says who may.
const MembersPath = "/barque/v1/members"

// Removal is the answer to DELETE: what was done, or why not.
type Removal struct {
	Removed string `json:"removed,omitempty"`
	Error   string `json:"error,omitempty"`
}

// memberStore is what removing a member needs of the store. Remove refuses what would leave the
// voters that answer without a quorum.
type memberStore interface {
	Members() []raftstore.Member
	Remove(ctx context.Context, id, why string) error
}

var errNoMember = errors.New("is no member of the store; `barque cluster members` lists them")

// removeTimeout bounds the wait for a leader and its quorum.
const removeTimeout = 15 * time.Second

func removeMember(ctx context.Context, store memberStore, name string) error {
	ctx, cancel := context.WithTimeout(ctx, removeTimeout)
	defer cancel()
	for _, m := range store.Members() {
		if m.Name == name {
			return store.Remove(ctx, m.ID, "an operator removed it")
		}
	}
	return fmt.Errorf("%q %w", name, errNoMember)
}

func membersHandler(store memberStore) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodDelete {
			http.Error(w, "only DELETE is served here", http.StatusMethodNotAllowed)
			return
		}
		answer, status := Removal{Removed: strings.TrimPrefix(r.URL.Path, MembersPath+"/")}, http.StatusOK
		var refused *raftstore.RefusedError
		if err := removeMember(r.Context(), store, answer.Removed); err != nil {
			answer, status = Removal{Error: err.Error()}, http.StatusServiceUnavailable
			switch {
			case errors.Is(err, errNoMember):
				status = http.StatusNotFound
			case errors.As(err, &refused):
				status = http.StatusConflict
			}
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			return // the client has gone
		}
	})
}
