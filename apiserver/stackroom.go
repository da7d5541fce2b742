package apiserver

import (
	"net/http"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/authenticator"

	"github.com/barque/barque/internal/stackroom"
)

// A request has up to three goroutines, each started by a library: the HTTP server's, one for the
// request's deadline, and one for the work of a write. Each calls one of these three, or the
// storage, before its stack grows deep.

// withStackRoom is the first handler.
func withStackRoom(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		stackroom.Grow()
		next.ServeHTTP(w, r)
	})
}

// roomyAuthenticator is called first below the deadline.
type roomyAuthenticator struct{ authenticator.Request }

// AuthenticateRequest implements authenticator.Request.
func (a roomyAuthenticator) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	stackroom.Grow()
	return a.Request.AuthenticateRequest(r)
}

// roomyCreater is called first when an object is created.
type roomyCreater struct{ runtime.ObjectCreater }

// New implements runtime.ObjectCreater.
func (c roomyCreater) New(kind schema.GroupVersionKind) (runtime.Object, error) {
	stackroom.Grow()
	return c.ObjectCreater.New(kind)
}
