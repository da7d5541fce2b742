package remote

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	"github.com/barque/barque/internal/exitcode"
	"github.com/barque/barque/membership/revocation"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/pki/identity"
)

// TestRevokedJudges: a client judges by the entries of a server as the server does. A server of an
// earlier version has none.
func TestRevokedJudges(t *testing.T) {
	ca, err := pki.NewAuthority("c1", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	earlier := false
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if earlier || r.URL.Path != revocation.APIPath {
			http.NotFound(w, r)
			return
		}
		all := revocation.Entries{Version: 9,
			List: []revocation.Entry{{Kind: revocation.User, Name: "ann", Revision: 5},
				{Kind: revocation.Agent, Name: "a1", Revision: 5}}}
		if err := json.NewEncoder(w).Encode(all); err != nil {
			t.Error(err)
		}
	}))
	defer server.Close()
	client := clientOf(t, server.URL)
	all, err := Revoked(t.Context(), client)
	if err != nil {
		t.Fatal(err)
	}
	for revision, revoked := range map[uint64]bool{5: true, 6: false} {
		i, err := identity.New(t.Context(),
			identity.Config{Name: "ann", Now: time.Now, Logger: slog.New(slog.DiscardHandler),
				Issue: pki.TrustOf(ca).Signs(func() pki.Request {
					return pki.Request{CommonName: "ann", Usage: pki.Client, Revision: revision}
				}, time.Now)})
		if err != nil {
			t.Fatal(err)
		}
		if err := all.Check(i.Certificate().Leaf); (err != nil) != revoked {
			t.Errorf("of revision %d: %v", revision, err)
		}
	}
	earlier = true
	if _, err := Revoked(t.Context(), client); !errors.Is(err, ErrRevokesNothing) {
		t.Errorf("at a server of an earlier version: %v", err)
	}
}

func clientOf(t *testing.T, url string) rest.Interface {
	t.Helper()
	client, err := rest.UnversionedRESTClientFor(
		&rest.Config{Host: url, ContentConfig: rest.ContentConfig{GroupVersion: &schema.GroupVersion{},
			NegotiatedSerializer: serializer.NewCodecFactory(runtime.NewScheme()).WithoutConversion()}})
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// TestRevocationsTellTheReason: the server's words reach the user, with the exit code of a refusal.
func TestRevocationsTellTheReason(t *testing.T) {
	forbidden := `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"ann may not do that","reason":"Forbidden","code":403}`
	for what, c := range map[string]struct {
		order  revocation.Order
		status int
		body   string
		code   int
		says   string
	}{
		"her own": {revocation.Order{Serial: "0a"}, 409,
			"it is the certificate with which you ask; give --force", exitcode.Refused,
			"nothing was changed: it is the certificate with which you ask"},
		"an agent not revoked": {revocation.Order{Readmit: "a1"}, 404,
			"agent \"a1\": its certificates are not revoked", exitcode.Usage, "agent \"a1\": its certificates"},
		"an agent without a key": {revocation.Order{Readmit: "a1"}, 409, "no key of it was recorded", exitcode.Refused,
			"no key of it was recorded"},
		"an earlier server": {revocation.Order{Serial: "0a"}, 404, "404 page not found", 1, "earlier version"},
		"without rights":    {revocation.Order{Serial: "0a"}, 403, forbidden, 1, "ann may not do that"},
		"without rights, text": {revocation.Order{Serial: "0a"}, 403, "this is for administrators", 1,
			"this is for administrators"},
		"the store": {revocation.Order{Serial: "0a"}, 503, "the store is closed", 1,
			"the store is closed"},
		"of unknown outcome": {revocation.Order{Serial: "0a"}, 504, "the answer is lost", exitcode.Unfinished,
			"the answer is lost"},
		"a text too long": {revocation.Order{Serial: "0a"}, 400, "a text is longer", 1, "a text is longer"},
	} {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasPrefix(c.body, "{") {
				w.Header().Set("Content-Type", "application/json")
				w.WriteHeader(c.status)
				if _, err := w.Write([]byte(c.body)); err != nil {
					t.Error(err)
				}
				return
			}
			http.Error(w, c.body, c.status)
		}))
		_, err := Revoke(t.Context(), clientOf(t, server.URL), c.order)
		if err = Outcome(err, "look"); exitCode(err) != c.code || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: exit code %d: %v", what, exitCode(err), err)
		}
		if c.code == 1 && c.status != 404 {
			if _, err := Revoked(t.Context(), clientOf(t, server.URL)); err == nil ||
				!strings.Contains(err.Error(), c.says) {
				t.Errorf("%s, the list: %v", what, err)
			}
		}
		server.Close()
	}
}
