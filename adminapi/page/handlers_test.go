package page

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"github.com/barque/barque/internal/pagelogin"
)

type asking struct {
	t        *testing.T
	handlers map[string]http.Handler
}

// ask makes a request as a user, over a connection with a certificate, and decodes the answer.
func (a asking) ask(method, path string, who user.Info, leaf *x509.Certificate, own bool, into any) int {
	a.t.Helper()
	r := httptest.NewRequest(method, path, nil)
	if leaf != nil {
		r.TLS = &tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}}
	}
	if own {
		r.Header.Set(OwnHeader, "1")
	}
	w := httptest.NewRecorder()
	a.handlers[r.URL.Path].ServeHTTP(w, r.WithContext(request.WithUser(r.Context(), who)))
	if w.Code == http.StatusOK && into != nil {
		if err := json.Unmarshal(w.Body.Bytes(), into); err != nil {
			a.t.Fatal(err)
		}
	}
	if w.Code == http.StatusOK && w.Header().Get("Cache-Control") != "no-store" {
		a.t.Errorf("%s %s may be kept", method, path)
	}
	return w.Code
}

func extraOf(more map[string][]string, leaf *x509.Certificate, groups ...string) *user.DefaultInfo {
	who := &user.DefaultInfo{Name: leaf.Subject.CommonName, Groups: append(groups, user.AllAuthenticated),
		Extra: map[string][]string{user.CredentialIDKey: {credential(leaf)}}}
	for k, v := range more {
		who.Extra[k] = v
	}
	return who
}

func TestLogins(t *testing.T) {
	l := &Logins{Sessions: NewSessions(newRecords(), time.Now), Self: "s1", Version: "v1",
		Servers: func() []Server { return []Server{{"s1", "https://10.0.0.1:6443"}} },
		Logger:  slog.New(slog.DiscardHandler)}
	a := asking{t, map[string]http.Handler{}}
	l.AddHandlers(a.handlers)
	leaf := certificateOf(t, "ann", 24*time.Hour)
	ann, other := extraOf(nil, leaf), certificateOf(t, "bob", time.Hour)

	// Only the certificate that has proven the user counts, and only for the page's own request.
	for name, refused := range map[string]int{
		"no header":           a.ask("POST", pagelogin.LinkPath, ann, leaf, false, nil),
		"no certificate":      a.ask("POST", pagelogin.LinkPath, ann, nil, true, nil),
		"another certificate": a.ask("POST", pagelogin.LinkPath, ann, other, true, nil),
		"a token beside a certificate": a.ask("POST", pagelogin.LinkPath,
			&user.DefaultInfo{Name: "ann", Groups: ann.Groups}, leaf, true, nil),
		"a session": a.ask("POST", pagelogin.LinkPath,
			extraOf(map[string][]string{pagelogin.SessionExtra: {"x"}}, leaf), leaf, true, nil),
		"an unknown link": a.ask("POST", pagelogin.SessionPath,
			extraOf(map[string][]string{pagelogin.LinkExtra: {"x"}}, leaf), nil, true, nil),
	} {
		if refused != http.StatusForbidden && refused != http.StatusUnauthorized {
			t.Errorf("%s: status %d", name, refused)
		}
	}

	var link Link
	if code := a.ask("POST", pagelogin.LinkPath, ann, leaf, true, &link); code != 200 || link.User != "ann" ||
		len(link.Servers) != 1 {
		t.Fatalf("a link: %d, %+v", code, link)
	}
	var opened Opened
	byLink := extraOf(map[string][]string{pagelogin.LinkExtra: {link.ID}}, leaf)
	if code := a.ask("POST", pagelogin.SessionPath, byLink, nil, true, &opened); code != 200 || opened.User != "ann" {
		t.Fatalf("a session: %d, %+v", code, opened)
	}
	if code := a.ask("POST", pagelogin.SessionPath, byLink, nil, true, nil); code != http.StatusUnauthorized {
		t.Errorf("the link is good twice: %d", code)
	}
	in := extraOf(map[string][]string{pagelogin.SessionExtra: {opened.ID}}, leaf)
	var self Self
	if code := a.ask("GET", pagelogin.SessionPath, in, nil, false, &self); code != 200 || !self.Session ||
		!self.Expires.Equal(opened.Expires) || self.Server != "s1" {
		t.Errorf("the session describes itself: %d, %+v", code, self)
	}
	if code := a.ask("POST", pagelogin.SessionPath, ann, leaf, true, nil); code != 200 {
		t.Errorf("a session by a certificate: %d", code)
	}

	// The list of all is for administrators.
	if code := a.ask("GET", pagelogin.SessionsPath, ann, leaf, true, nil); code != http.StatusForbidden {
		t.Errorf("everybody lists sessions: %d", code)
	}
	admin := extraOf(nil, other, user.SystemPrivilegedGroup)
	var all, ended []Session
	if code := a.ask("GET", pagelogin.SessionsPath, admin, other, false, &all); code != 200 || len(all) != 2 {
		t.Errorf("the sessions: %d, %v", code, all)
	}
	if code := a.ask("DELETE", pagelogin.SessionsPath, admin, other, false, nil); code != http.StatusBadRequest {
		t.Errorf("all sessions are ended by an empty request: %d", code)
	}
	if code := a.ask("DELETE", pagelogin.SessionPath, in, nil, false, &ended); code != 200 || len(ended) != 1 ||
		ended[0].ID != opened.ID {
		t.Errorf("logging out: %d, %v", code, ended)
	}
	if code := a.ask("DELETE", pagelogin.SessionsPath+"?user=ann", admin, other, false, &ended); code != 200 ||
		len(ended) != 1 {
		t.Errorf("ending a user's sessions: %d, %v", code, ended)
	}
}
