package adminapi

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/barque/barque/membership/revocation"
)

// deeds are the acts on a book.
type deeds []string

func (d *deeds) RevokeCertificate(_ context.Context, serial, _ string, _ time.Time, by, _ string) (revocation.Entry, error) {
	*d = append(*d, "revoke "+serial+" by "+by)
	return revocation.Entry{ID: serial}, nil
}

func (d *deeds) RevokeUser(_ context.Context, name, by, _ string) (revocation.Entry, error) {
	*d = append(*d, "revoke user "+name+" by "+by)
	return revocation.Entry{Kind: revocation.User, Name: name}, nil
}

func (d *deeds) Readmit(_ context.Context, name, by, _ string) (revocation.Entry, error) {
	switch name {
	case "a8":
		return revocation.Entry{}, fmt.Errorf("a8: %w", revocation.ErrNotRevoked)
	case "a9":
		return revocation.Entry{}, fmt.Errorf("a9: %w", revocation.ErrKeyUnknown)
	}
	*d = append(*d, "readmit "+name+" by "+by)
	return revocation.Entry{Name: name}, nil
}

// TestRevocationsAreGuarded: an administrator shuts out neither itself nor a present member without
// force, and others than administrators may do nothing.
func TestRevocationsAreGuarded(t *testing.T) {
	var done deeds
	needed := func(o revocation.Order) error {
		if o.Serial == "0c" || o.Holder == "s1.x" {
			return errors.New("it is a certificate of a member")
		}
		return nil
	}
	h := RevocationsHandler(func() *revocation.Entries { return &revocation.Entries{} }, &done, needed, slog.New(slog.DiscardHandler))
	for what, c := range map[string]struct {
		body   string
		groups string
		status int
		does   string
	}{
		"another one":          {`{"serial":"0b"}`, "system:masters", http.StatusOK, "revoke 0b by ann"},
		"her own":              {`{"serial":"0a"}`, "system:masters", http.StatusConflict, ""},
		"her own, forced":      {`{"serial":"0a","force":true}`, "system:masters", http.StatusOK, "revoke 0a by ann"},
		"a member's":           {`{"serial":"0c"}`, "system:masters", http.StatusConflict, ""},
		"a member's, by ID":    {`{"serial":"0d","holder":"s1.x"}`, "system:masters", http.StatusConflict, ""},
		"a member's, forced":   {`{"serial":"0c","force":true}`, "system:masters", http.StatusOK, "revoke 0c by ann"},
		"a user":               {`{"user":"bob"}`, "system:masters", http.StatusOK, "revoke user bob by ann"},
		"a user, by ann":       {`{"user":"bob"}`, "barque:admins", http.StatusOK, "revoke user bob by ann"},
		"herself":              {`{"user":"ann"}`, "barque:admins", http.StatusConflict, ""},
		"herself, forced":      {`{"user":"ann","force":true}`, "barque:admins", http.StatusOK, "revoke user ann by ann"},
		"a part":               {`{"user":"barque:front-proxy","force":true}`, "system:masters", http.StatusBadRequest, ""},
		"a node":               {`{"user":"system:node:a1","force":true}`, "system:masters", http.StatusBadRequest, ""},
		"a user and serial":    {`{"user":"bob","serial":"0b"}`, "system:masters", http.StatusBadRequest, ""},
		"a user, by somebody":  {`{"user":"bob"}`, "users", http.StatusForbidden, ""},
		"an agent":             {`{"readmit":"a1"}`, "system:masters", http.StatusOK, "readmit a1 by ann"},
		"not revoked":          {`{"readmit":"a8"}`, "system:masters", http.StatusNotFound, ""},
		"without a key":        {`{"readmit":"a9"}`, "system:masters", http.StatusConflict, ""},
		"an impossible name":   {`{"readmit":"../a1"}`, "system:masters", http.StatusBadRequest, ""},
		"both":                 {`{"readmit":"a1","serial":"0b"}`, "system:masters", http.StatusBadRequest, ""},
		"nothing":              {`{}`, "system:masters", http.StatusBadRequest, ""},
		"by somebody":          {`{"serial":"0b"}`, "users", http.StatusForbidden, ""},
		"readmit, by somebody": {`{"readmit":"a1"}`, "users", http.StatusForbidden, ""},
	} {
		done = nil
		r := httptest.NewRequestWithContext(request.WithUser(t.Context(), &user.DefaultInfo{Name: "ann", Groups: []string{c.groups}}), http.MethodPost, RevocationsPath, strings.NewReader(c.body))
		r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{SerialNumber: big.NewInt(10), Subject: pkix.Name{CommonName: "ann"}}}}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		var want deeds
		if c.does != "" {
			want = deeds{c.does}
		}
		if w.Code != c.status || !slices.Equal(done, want) {
			t.Errorf("%s: %d, %q, does %q", what, w.Code, w.Body, done)
		}
	}
}
