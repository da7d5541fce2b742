package remote

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"

	"github.com/barque/barque/membership/revocation"
	"github.com/barque/barque/pki"
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
		all := revocation.Entries{Version: 9, List: []revocation.Entry{{Kind: revocation.User, Name: "ann", Revision: 5}, {Kind: revocation.Agent, Name: "a1", Revision: 5}}}
		if err := json.NewEncoder(w).Encode(all); err != nil {
			t.Error(err)
		}
	}))
	defer server.Close()
	client, err := rest.UnversionedRESTClientFor(&rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{GroupVersion: &schema.GroupVersion{},
		NegotiatedSerializer: serializer.NewCodecFactory(runtime.NewScheme()).WithoutConversion()}})
	if err != nil {
		t.Fatal(err)
	}
	all, err := Revoked(t.Context(), client)
	if err != nil {
		t.Fatal(err)
	}
	for revision, revoked := range map[uint64]bool{5: true, 6: false} {
		i, err := pki.NewIdentity(t.Context(), pki.IdentityConfig{Name: "ann", Now: time.Now, Logger: slog.New(slog.DiscardHandler),
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
