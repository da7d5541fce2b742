package caller

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// TestTheSenderStaysKnown: the sender of an impersonating request stays known.
func TestTheSenderStaysKnown(t *testing.T) {
	masters := func(groups []string) bool { return slices.Contains(groups, user.SystemPrivilegedGroup) }
	ann, root := &user.DefaultInfo{Name: "ann"},
		&user.DefaultInfo{Name: "root", Groups: []string{user.SystemPrivilegedGroup}}
	for name, c := range map[string]struct {
		header   string
		from, as user.Info
		err      error
		both     bool
	}{
		"as herself":                  {"", ann, ann, nil, false},
		"as an administrator":         {"Impersonate-User", ann, root, nil, false},
		"by a group":                  {"Impersonate-Group", ann, root, nil, false},
		"an administrator":            {"", root, root, nil, true},
		"an administrator as another": {"Impersonate-User", root, root, nil, true},
		"an administrator as ann":     {"Impersonate-User", root, ann, nil, false},
		"nobody":                      {"Impersonate-User", nil, root, nil, false},
		"not proven":                  {"Impersonate-User", root, root, errors.New("revoked"), false},
	} {
		authenticates := Authenticator(
			authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
				return &authenticator.Response{User: c.from}, c.from != nil, c.err
			}))
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
		if c.header != "" {
			r.Header.Set(c.header, "x")
		}
		Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			_, _, err := authenticates.AuthenticateRequest(r)
			r = r.WithContext(request.WithUser(r.Context(), c.as))
			if from, ok := From(r.Context()); ok != (c.from != nil && err == nil) || ok && from != c.from {
				t.Errorf("%s: sent by %v", name, from)
			}
			if got := Both(r.Context(), masters); got != c.both {
				t.Errorf("%s: both are administrators: %t", name, got)
			}
		})).ServeHTTP(httptest.NewRecorder(), r)
	}
}
