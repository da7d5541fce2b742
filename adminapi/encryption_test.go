package adminapi

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/barque/barque/internal/clusterusers"
	"github.com/barque/barque/membership/datakeys"
	"github.com/barque/barque/membership/join"
)

// TestTheLeaderTellsHowFarItIs: any server answers with the status of the leader, which knows the
// object that stops a change. Administrators only get it.
func TestTheLeaderTellsHowFarItIs(t *testing.T) {
	const stops = "the object /registry/secrets/a/b cannot be read"
	leader := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != EncryptionPath || r.Header.Get(relayedHeader) != "s1" ||
			r.URL.Query().Get(RelayParameter) != "s2" {
			http.Error(w, "unexpected", http.StatusBadRequest)
			return
		}
		_ = json.NewEncoder(w).Encode(EncryptionAnswer{Status: datakeys.Status{Waiting: []string{stops}}})
	}))
	defer leader.Close()
	roots := x509.NewCertPool()
	roots.AddCert(leader.Certificate())
	at := netip.MustParseAddrPort(leader.Listener.Addr().String())
	relay := NewRelay("s1", func() []join.Server { return []join.Server{{Name: "s2", API: at}} },
		&tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, nil, func() bool { return false }, nil)
	defer relay.client.CloseIdleConnections()
	e := &Encryption{Relay: relay, Leader: func() (string, bool) { return "s2", true }}
	get := func(group string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodGet, EncryptionPath, nil)
		w := httptest.NewRecorder()
		e.ServeHTTP(w,
			r.WithContext(request.WithUser(r.Context(), &user.DefaultInfo{Name: "u", Groups: []string{group}})))
		return w
	}
	var answer EncryptionAnswer
	if w := get(user.SystemPrivilegedGroup); json.Unmarshal(w.Body.Bytes(), &answer) != nil ||
		!slices.Contains(answer.Waiting, stops) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := get(clusterusers.AdminGroup); json.Unmarshal(w.Body.Bytes(), &answer) != nil ||
		!slices.Contains(answer.Waiting, stops) {
		t.Errorf("an administrator gets %d %s", w.Code, w.Body)
	}
	if w := get("others"); w.Code != http.StatusForbidden || strings.Contains(w.Body.String(), stops) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	for what, name := range map[string]string{"itself": "s1", "an unknown one": "s9"} {
		e.Leader = func() (string, bool) { return name, true }
		if e.byLeader(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, EncryptionPath, nil)) {
			t.Errorf("%s has answered as the leader", what)
		}
	}
	e.Leader = func() (string, bool) { return "s2", true }
	relayed := httptest.NewRequest(http.MethodGet, EncryptionPath, nil)
	relayed.Header.Set(relayedHeader, "s3")
	if e.byLeader(httptest.NewRecorder(), relayed) {
		t.Error("it is passed on again")
	}
}

// TestOrder: an unknown resource is refused, and resources to decrypt have their own parameter.
func TestOrder(t *testing.T) {
	resolve := func(_ context.Context, name string) (string, error) {
		switch name {
		case "secrets", "secrets.":
			return "secrets", nil
		case "no leader":
			return "", io.ErrUnexpectedEOF
		}
		return "", &datakeys.RefusedError{Reason: "no " + name}
	}
	o, err := order(t.Context(),
		url.Values{"change": {"enable"}, "resource": {"secrets."}, "decrypt": {"configmaps.", "*.", "*.*", "*.apps"},
			"dryRun": {"true"}}, resolve)
	if err != nil || o.Change != datakeys.Enable || !slices.Equal(o.Add, []string{"secrets"}) ||
		!slices.Equal(o.Drop, []string{"configmaps", "*.", "*.*", "*.apps"}) || !o.DryRun {
		t.Errorf("%+v, %v", o, err)
	}
	var refused *datakeys.RefusedError
	if _, err := order(t.Context(), url.Values{"resource": {"secrets", "secret"}}, resolve); !errors.As(err, &refused) {
		t.Errorf("%v", err)
	}
	if _, err := order(t.Context(), url.Values{"resource": {"no leader"}}, resolve); err == nil ||
		errors.As(err, &refused) {
		t.Errorf("%v", err)
	}
}
