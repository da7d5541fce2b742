package adminapi

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/barque/barque/internal/syncbuf"
	"github.com/barque/barque/membership/token"
	"github.com/barque/barque/raftstore"
)

type fakeTokens struct {
	made []string // the users that made a token
	err  error
}

func (f *fakeTokens) Create(_ context.Context, spec token.Spec, by string) (token.Made, error) {
	f.made = append(f.made, by)
	return token.Made{ID: "abcdef", Token: "the secret", Role: spec.Role, Uses: spec.Uses}, f.err
}
func (f *fakeTokens) List(context.Context) ([]token.Info, error)        { return nil, f.err }
func (f *fakeTokens) Delete(_ context.Context, id string) (bool, error) { return id == "abcdef", f.err }

// TestTokensAreForAdministrators: users outside system:masters list and make no tokens, whatever
// RBAC allows, and no token's secret is logged.
func TestTokensAreForAdministrators(t *testing.T) {
	for name, c := range map[string]struct {
		groups       []string
		method, path string
		body         string
		err          error
		status       int
		want         string
	}{
		"a list": {[]string{"system:masters"}, "GET", "", "", nil, 200, "[]"},
		"one": {[]string{"system:masters"}, "POST", "", `{"role":"server","ttlSeconds":3600,"uses":1}`, nil,
			200, `"token":"the secret"`},
		"a king's":       {[]string{"system:masters"}, "POST", "", `{"role":"king"}`, nil, 400, "--role"},
		"nonsense":       {[]string{"system:masters"}, "POST", "", "?", nil, 400, "JSON"},
		"a deletion":     {[]string{"system:masters"}, "DELETE", "?id=abcdef", "", nil, 200, `"was":true`},
		"one that is no": {[]string{"system:masters"}, "DELETE", "?id=zzzzzz", "", nil, 404, `"was":false`},
		"an odd ID":      {[]string{"system:masters"}, "DELETE", "?id=../form", "", nil, 400, "no token"},
		"another method": {[]string{"system:masters"}, "PUT", "", "", nil, 405, "GET, POST and DELETE"},
		"who knows": {[]string{"system:masters"}, "POST", "", `{"role":"agent"}`, raftstore.ErrUnknownOutcome, 504,
			""},
		"no leader":     {[]string{"system:masters"}, "GET", "", "", raftstore.ErrLeaderless, 503, "NoLeader"},
		"another fault": {[]string{"system:masters"}, "GET", "", "", errors.New("it is broken"), 503, "broken"},
		"a user reads":  {[]string{"system:authenticated"}, "GET", "", "", nil, 403, "system:masters"},
		"a user makes": {[]string{"system:authenticated"}, "POST", "", `{"role":"server"}`, nil, 403,
			"system:masters"},
		"a user deletes": {[]string{"system:nodes"}, "DELETE", "?id=abcdef", "", nil, 403, "system:masters"},
		"nobody":         {nil, "GET", "", "", nil, 403, "system:masters"},
	} {
		tokens := &fakeTokens{err: c.err}
		var log syncbuf.Buffer
		r := httptest.NewRequestWithContext(t.Context(), c.method, token.Path+c.path, strings.NewReader(c.body))
		if c.groups != nil {
			r = r.WithContext(request.WithUser(r.Context(), &user.DefaultInfo{Name: "ann", Groups: c.groups}))
		}
		w := httptest.NewRecorder()
		TokensHandler(tokens, slog.New(slog.NewTextHandler(&log, nil))).ServeHTTP(w, r)
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.want) {
			t.Errorf("%s: %d %s", name, w.Code, w.Body)
		}
		if c.status == http.StatusForbidden && len(tokens.made) > 0 || strings.Contains(log.String(), "secret") {
			t.Errorf("%s: made by %q; log:\n%s", name, tokens.made, log.String())
		}
		if c.status == http.StatusOK && c.method == "POST" {
			var made token.Made
			if err := json.Unmarshal(w.Body.Bytes(), &made); err != nil || tokens.made[0] != "ann" ||
				!strings.Contains(log.String(), "by=ann") || w.Header().Get("Cache-Control") != "no-store" {
				t.Errorf("%s: %+v, by %q, %v", name, made, tokens.made, err)
			}
		}
	}
}
