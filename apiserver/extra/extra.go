// Package extra has the common parts of a server's handlers beside the API's objects (see
// apiserver.Config): the permissions, and the form of answers.
package extra

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/barque/barque/apiserver/storeerror"
	"github.com/barque/barque/internal/caller"
	"github.com/barque/barque/internal/clusterusers"
	"github.com/barque/barque/raftstore"
)

// MastersOnly refuses other methods, and users without system:masters or barque:admins, independent
// of RBAC. A user that impersonates an administrator has to be one.
func MastersOnly(method string, next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch _, ok := Master(w, r); {
		case !ok:
		case r.Method != method:
			http.Error(w, "only "+method+" is served here", http.StatusMethodNotAllowed)
		default:
			next(w, r)
		}
	})
}

// MastersAndServers is MastersOnly that serves the other servers, too, because they act for
// an administrator.
func MastersAndServers(method string, next http.HandlerFunc) http.Handler {
	masters := MastersOnly(method, next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == method && IsServer(r) {
			next(w, r)
			return
		}
		masters.ServeHTTP(w, r)
	})
}

// MastersChange serves the path to all users that may read it by RBAC. It refuses every other
// method to users that are no administrators, as MastersOnly does.
func MastersChange(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			if _, ok := Master(w, r); !ok {
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

// IsServer reports whether the request is another server's.
func IsServer(r *http.Request) bool { return caller.Both(r.Context(), clusterusers.HasServer) }

// Master returns the user of an administrator's request, as for MastersOnly. It has refused any
// other request.
func Master(w http.ResponseWriter, r *http.Request) (user.Info, bool) {
	if !caller.Both(r.Context(), clusterusers.HasAdmin) {
		http.Error(w,
			"this is for members of "+user.SystemPrivilegedGroup+" and "+clusterusers.AdminGroup+
				" only; acting as one is not enough", http.StatusForbidden)
		return nil, false
	}
	return request.UserFrom(r.Context())
}

// Get serves a value in JSON.
func Get(value func(r *http.Request) any) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet {
			http.Error(w, fmt.Sprintf("only GET is served here, not %s", r.Method), http.StatusMethodNotAllowed)
			return
		}
		Answer(w, http.StatusOK, value(r))
	})
}

// Answer answers with a value in JSON.
func Answer(w http.ResponseWriter, status int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(value); err != nil {
		return // the client has gone
	}
}

// Unavailable answers that a request could not be served. If there has been no leader for long, the
// answer has the reason, as those of the API do.
func Unavailable(w http.ResponseWriter, err error) {
	if !errors.Is(err, raftstore.ErrLeaderless) {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	Answer(w, http.StatusServiceUnavailable, metav1.Status{
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status:   metav1.StatusFailure, Code: http.StatusServiceUnavailable,
		Reason: metav1.StatusReasonServiceUnavailable, Message: err.Error(),
		Details: &metav1.StatusDetails{
			Causes: []metav1.StatusCause{{Type: storeerror.CauseNoLeader, Message: err.Error()}}},
	})
}
