package pageauth

import (
	"context"
	"crypto/x509"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/barque/barque/internal/pagelogin"
)

var everything = authorizer.AuthorizerFunc(
	func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
		return authorizer.DecisionAllow, "", nil
	})

func object(verb, group, resource, sub string) authorizer.AttributesRecord {
	return authorizer.AttributesRecord{Verb: verb, APIGroup: group, Resource: resource, Subresource: sub,
		Namespace: "x", Name: "y", ResourceRequest: true}
}

func at(verb, path string) authorizer.AttributesRecord {
	return authorizer.AttributesRecord{Verb: verb, Path: path}
}

// TestSessionsOnlyRead: a session of an administrator reads objects but Secrets, and the paths that
// the page needs, and does nothing else.
func TestSessionsOnlyRead(t *testing.T) {
	masters := []string{user.SystemPrivilegedGroup, user.AllAuthenticated}
	marked := func(key string) user.Info {
		return &user.DefaultInfo{Name: "ann", Groups: masters, Extra: map[string][]string{key: {"1"}}}
	}
	session, link := marked(pagelogin.SessionExtra), marked(pagelogin.LinkExtra)
	plain := &user.DefaultInfo{Name: "ann", Groups: masters}
	const selfReview = "selfsubjectaccessreviews"
	for _, c := range []struct {
		is      authorizer.AttributesRecord
		session bool
	}{
		{object("get", "", "pods", ""), true},
		{object("list", "apps", "deployments", ""), true},
		{object("watch", "", "events", ""), true},
		{object("get", "", "pods", "log"), true},
		{object("list", "metrics.k8s.io", "nodes", ""), true},
		{object("create", "authorization.k8s.io", selfReview, ""), true},
		{object("create", "authentication.k8s.io", "selfsubjectreviews", ""), true},
		{at("get", "/barque/v1/status"), true},
		{at("get", "/barque/v1/gossip"), true},
		{at("get", pagelogin.HistoryPath), true},
		{at("get", pagelogin.SessionPath), true},
		{at("delete", pagelogin.SessionPath), true},
		{at("get", "/version"), true},
		{at("get", "/apis/apps/v1"), true},
		{at("get", "/readyz/ping"), true},

		{object("get", "", "secrets", ""), false},
		{object("list", "", "secrets", ""), false},
		{object("list", "", "*", ""), false},
		{object("get", "*", "*", ""), false},
		{object("create", "", "pods", ""), false},
		{object("delete", "", "pods", ""), false},
		{object("patch", "", "nodes", "status"), false},
		{object("get", "", "pods", "exec"), false},
		{object("get", "subresources.example.com", "machines", "console"), false},
		{object("get", "", "pods", "*"), false},
		{object("get", "", "pods", "log"), true},
		{object("get", "apps", "deployments", "scale"), true},
		{object("get", "", "pods", "attach"), false},
		{object("get", "", "pods", "portforward"), false},
		{object("get", "", "nodes", "proxy"), false},
		{object("get", "", "services", "proxy"), false},
		{object("create", "", "serviceaccounts", "token"), false},
		{object("impersonate", "", "users", ""), false},
		{object("create", "authorization.k8s.io", "subjectaccessreviews", ""), false},
		{object("create", "authentication.k8s.io", "tokenreviews", ""), false},
		{object("*", "", "pods", ""), false},
		{at("post", pagelogin.LinkPath), false},
		{at("post", pagelogin.SessionPath), false},
		{at("get", pagelogin.SessionsPath), false},
		{at("get", "/barque/v1/tokens"), false},
		{at("get", "/barque/v1/snapshot-save"), false},
		{at("get", "/barque/v1/diagnosis"), false},
		{at("get", "/metrics"), false},
		{at("get", "/debug/pprof/heap"), false},
		{at("get", "/livezother"), false},
		{at("get", "/logs/"), false},
	} {
		is := c.is
		decide := func(who user.Info) authorizer.Decision {
			is.User = who
			decision, reason, err := Authorizer{everything}.Authorize(t.Context(), is)
			if err != nil || decision == authorizer.DecisionDeny && reason == "" {
				t.Errorf("%+v: %q, %v", is, reason, err)
			}
			if aware := (Authorizer{everything}).ConditionsAwareAuthorize(t.Context(), is); aware.IsAllow() !=
				(decision == authorizer.DecisionAllow) {
				t.Errorf("%+v is decided in two ways", is)
			}
			return decision
		}
		if got := decide(session) == authorizer.DecisionAllow; got != c.session {
			t.Errorf("a session may %s %s%s/%s: %t", is.Verb, is.Path, is.Resource, is.Subresource, got)
		}
		opens := is.Path == pagelogin.SessionPath && is.Verb == "post"
		if got := decide(link) == authorizer.DecisionAllow; got != opens {
			t.Errorf("a link may %s %s%s: %t", is.Verb, is.Path, is.Resource, got)
		}
		if decide(plain) != authorizer.DecisionAllow {
			t.Errorf("the user itself may not %s %s%s", is.Verb, is.Path, is.Resource)
		}
	}
}

// TestEverybodyOpensSessions: a user whom no role names may make a link, and open a session. One
// without a name may not, and nothing else is given.
func TestEverybodyOpensSessions(t *testing.T) {
	nothing := authorizer.AuthorizerFunc(
		func(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
			return authorizer.DecisionNoOpinion, "", nil
		})
	for _, c := range []struct {
		groups []string
		path   string
		want   authorizer.Decision
	}{
		{[]string{user.AllAuthenticated}, pagelogin.LinkPath, authorizer.DecisionAllow},
		{[]string{user.AllAuthenticated}, pagelogin.SessionPath, authorizer.DecisionAllow},
		{[]string{user.AllAuthenticated}, pagelogin.SessionsPath, authorizer.DecisionNoOpinion},
		{[]string{user.AllAuthenticated}, pagelogin.HistoryPath, authorizer.DecisionNoOpinion},
		{[]string{user.AllUnauthenticated}, pagelogin.LinkPath, authorizer.DecisionNoOpinion},
		{[]string{user.AllUnauthenticated}, pagelogin.SessionPath, authorizer.DecisionNoOpinion},
	} {
		is := at("post", c.path)
		is.User = &user.DefaultInfo{Name: "x", Groups: c.groups}
		if got, _, err := (Authorizer{nothing}).Authorize(t.Context(), is); got != c.want || err != nil {
			t.Errorf("%v %s: %v, %v", c.groups, c.path, got, err)
		}
	}
}

type fakeSessions struct {
	leaf *x509.Certificate
	err  error
}

func (f fakeSessions) Find(context.Context, string) (*x509.Certificate, string, string, error) {
	return f.leaf, pagelogin.SessionExtra, "7", f.err
}

// TestASessionIsItsCertificate: a request of a session is authenticated by the session's
// certificate, whatever the connection shows. It fails when that certificate does.
func TestASessionIsItsCertificate(t *testing.T) {
	leaf, revoked := &x509.Certificate{Raw: []byte("ann")}, errors.New("this certificate is revoked")
	var why error
	certificates := authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		if len(r.TLS.PeerCertificates) != 1 || r.TLS.PeerCertificates[0] != leaf {
			t.Errorf("another certificate is shown: %v", r.TLS.PeerCertificates)
		}
		return &authenticator.Response{User: &user.DefaultInfo{Name: "ann", Groups: []string{"dev"},
			Extra: map[string][]string{"k": {"v"}}}}, why == nil, why
	})
	request := func(header string) *http.Request {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Authorization", header)
		return r
	}
	a := NewAuthenticator(fakeSessions{leaf: leaf}, certificates)
	got, ok, err := a.AuthenticateRequest(request("bearer " + pagelogin.SessionPrefix + "x"))
	if !ok || err != nil || got.User.GetName() != "ann" || got.User.GetExtra()[pagelogin.SessionExtra][0] != "7" ||
		got.User.GetExtra()["k"][0] != "v" {
		t.Errorf("%+v, %t, %v", got, ok, err)
	}
	for _, other := range []string{"", "Bearer abc", "Basic " + pagelogin.SessionPrefix} {
		if _, ok, err := a.AuthenticateRequest(request(other)); ok || err != nil {
			t.Errorf("%q is taken for a session: %t, %v", other, ok, err)
		}
	}
	session := "Bearer " + pagelogin.SessionPrefix + "x"
	if why = revoked; !errors.Is(errOf(a.AuthenticateRequest(request(session))), revoked) ||
		!errors.Is(a.Ended(t.Context(), pagelogin.SessionPrefix+"x"), revoked) {
		t.Error("the session outlives its certificate")
	}
	gone := NewAuthenticator(fakeSessions{err: pagelogin.ErrUnknown}, certificates)
	if _, ok, err := gone.AuthenticateRequest(request(session)); ok || !errors.Is(err, pagelogin.ErrUnknown) {
		t.Errorf("a session that has ended: %t, %v", ok, err)
	}
	if gone.Ended(t.Context(), pagelogin.SessionPrefix+"x") == nil || gone.Ended(t.Context(), "other") != nil {
		t.Error("Ended is wrong about a session that has ended, or about another token")
	}
	away := NewAuthenticator(fakeSessions{err: pagelogin.ErrLookup}, certificates)
	if _, ok, err := away.AuthenticateRequest(request(session)); ok || err == nil {
		t.Error("an unknown session is let in")
	}
	if err := away.Ended(t.Context(), pagelogin.SessionPrefix+"x"); err != nil {
		t.Errorf("a watch ends by a failed look-up: %v", err)
	}
}

func errOf(_ *authenticator.Response, _ bool, err error) error { return err }
