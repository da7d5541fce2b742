// Package caller has the sender of a request, also under impersonation.
//
// Impersonation replaces the user of a request, so that the request has the impersonated user's
// rights. For the API's objects that is right. Operations for administrators alone check the sender
// too, because a role can give the right to impersonate system:masters.
package caller

import (
	"context"
	"net/http"
	"strings"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
)

type key struct{}

// sender is noted between authentication and impersonation.
type sender struct{ user user.Info }

// headers begin the names of the headers for impersonation.
const headers = "Impersonate-"

// Handler wraps the handler that authenticates requests, with an authenticator by Authenticator.
func Handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for name := range r.Header {
			if strings.HasPrefix(name, headers) {
				r = r.WithContext(context.WithValue(r.Context(), key{}, new(sender)))
				break
			}
		}
		next.ServeHTTP(w, r)
	})
}

// Authenticator records the user that next has authenticated.
func Authenticator(next authenticator.Request) authenticator.Request {
	return authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		response, ok, err := next.AuthenticateRequest(r)
		if s, noted := r.Context().Value(key{}).(*sender); noted && ok && err == nil {
			s.user = response.User
		}
		return response, ok, err
	})
}

// From returns the user that sent the request of the context. Without impersonation that is the
// request's user.
func From(ctx context.Context) (user.Info, bool) {
	if s, ok := ctx.Value(key{}).(*sender); ok {
		return s.user, s.user != nil
	}
	return request.UserFrom(ctx)
}

// Both reports whether fit is true of the sender's groups and of the impersonated user's.
func Both(ctx context.Context, fit func(groups []string) bool) bool {
	who, known := request.UserFrom(ctx)
	from, sent := From(ctx)
	return known && sent && fit(who.GetGroups()) && fit(from.GetGroups())
}
