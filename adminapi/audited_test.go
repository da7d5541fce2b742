package adminapi

import (
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/apis/audit"
	auditing "k8s.io/apiserver/pkg/audit"

	"github.com/barque/barque/internal/clusterusers"
	"github.com/barque/barque/membership/revocation"
	"github.com/barque/barque/membership/token"
)

// TestOrdersAreAudited: the event says which token or certificate an operator's request is about,
// that of a refused request too, and has no secret.
func TestOrdersAreAudited(t *testing.T) {
	quiet := slog.New(slog.DiscardHandler)
	tokens := TokensHandler(&fakeTokens{}, quiet)
	revocations := RevocationsHandler(func() *revocation.Entries { return &revocation.Entries{} }, &deeds{}, inUse(),
		quiet)
	for what, c := range map[string]struct {
		h                  http.Handler
		method, path, body string
		want               map[string]string
	}{
		"a token": {tokens, "POST", token.Path, `{"role":"server","ttlSeconds":3600,"uses":1}`,
			map[string]string{"token.barque.io/token-id": "abcdef", "token.barque.io/role": "server",
				"token.barque.io/uses": "1", "token.barque.io/ttl": "1h0m0s"}},
		"one for ever": {tokens, "POST", token.Path, `{"role":"agent"}`,
			map[string]string{"token.barque.io/token-id": "abcdef", "token.barque.io/role": "agent",
				"token.barque.io/uses": "any", "token.barque.io/ttl": "unlimited"}},
		"a deletion": {tokens, "DELETE", token.Path + "?id=zzzzzz", "",
			map[string]string{"token.barque.io/token-id": "zzzzzz"}},
		"a certificate": {revocations, "POST", RevocationsPath, `{"serial":"0b","name":"bob"}`,
			map[string]string{"revocation.barque.io/act": "revoke", "revocation.barque.io/kind": "certificate",
				"revocation.barque.io/name": "bob", "revocation.barque.io/serial": "0b"}},
		"a member's, refused": {revocations, "POST", RevocationsPath, `{"serial":"0c","name":"s1"}`,
			map[string]string{"revocation.barque.io/act": "revoke", "revocation.barque.io/kind": "certificate",
				"revocation.barque.io/name": "s1", "revocation.barque.io/serial": "0c"}},
		"a user": {revocations, "POST", RevocationsPath, `{"user":"bob"}`,
			map[string]string{"revocation.barque.io/act": "revoke", "revocation.barque.io/kind": "user",
				"revocation.barque.io/name": "bob"}},
		"an agent": {revocations, "POST", RevocationsPath, `{"readmit":"a1"}`,
			map[string]string{"revocation.barque.io/act": "readmit", "revocation.barque.io/kind": "agent",
				"revocation.barque.io/name": "a1"}},
	} {
		ctx := auditing.WithAuditContext(t.Context())
		event := auditing.AuditContextFrom(ctx)
		if err := event.Init(auditing.RequestAuditConfig{Level: audit.LevelMetadata}, nil); err != nil {
			t.Fatal(err)
		}
		r := by(clusterusers.AdminGroup,
			httptest.NewRequestWithContext(ctx, c.method, c.path, strings.NewReader(c.body)))
		c.h.ServeHTTP(httptest.NewRecorder(), r)
		if got := event.GetEventAnnotations(); !maps.Equal(got, c.want) {
			t.Errorf("%s: %v", what, got)
		}
	}
}
