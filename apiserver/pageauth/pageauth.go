// Package pageauth authenticates the sessions of the page at /ui, and restricts them to reading.
//
// A session stands for a client certificate. Each request of a session is authenticated as if it
// had come with that certificate: when the certificate ends, is revoked, or its CA is believed no
// more, the session has ended as well. The user's extra values mark the session, and Authorizer
// refuses a marked user all that is not reading, whatever the user's rights.
package pageauth

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"github.com/barque/barque/internal/cutoff"
	"github.com/barque/barque/internal/pagelogin"
)

// Sessions are the log-ins of the page.
type Sessions interface {
	// Find returns the certificate for which a token stands, and the extra value that marks its
	// user. It returns pagelogin.ErrUnknown for a token that counts no more, and
	// pagelogin.ErrLookup if that is not known.
	Find(ctx context.Context, token string) (leaf *x509.Certificate, key, id string, err error)
}

// Authenticator authenticates requests by the tokens of sessions. Other requests are not its own.
type Authenticator struct {
	sessions     Sessions
	certificates authenticator.Request
}

// NewAuthenticator returns an authenticator that asks another one, by certificates, for the user.
func NewAuthenticator(sessions Sessions, certificates authenticator.Request) *Authenticator {
	return &Authenticator{sessions, certificates}
}

// AuthenticateRequest implements authenticator.Request. It comes before the authenticator of client
// certificates: a browser that sends one must not gain rights by it.
func (a *Authenticator) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	token, ok := bearer(r)
	if !ok || !pagelogin.Is(token) {
		return nil, false, nil
	}
	response, err := a.authenticate(r.Context(), token)
	if err != nil {
		return nil, false, err
	}
	cutoff.ProvenByToken(r.Context(), token)
	return response, true, nil
}

func (a *Authenticator) authenticate(ctx context.Context, token string) (*authenticator.Response, error) {
	leaf, key, id, err := a.sessions.Find(ctx, token)
	if err != nil {
		return nil, err
	}
	shown := (&http.Request{TLS: &tls.ConnectionState{PeerCertificates: []*x509.Certificate{leaf}}}).WithContext(ctx)
	response, ok, err := a.certificates.AuthenticateRequest(shown)
	switch {
	case err != nil:
		return nil, fmt.Errorf("the certificate for which this log-in of the page stands: %w", err)
	case !ok:
		return nil, pagelogin.ErrUnknown
	}
	extra := maps.Clone(response.User.GetExtra())
	if extra == nil {
		extra = map[string][]string{}
	}
	extra[key] = []string{id}
	marked := *response
	marked.User = &user.DefaultInfo{Name: response.User.GetName(), UID: response.User.GetUID(),
		Groups: response.User.GetGroups(), Extra: extra}
	return &marked, nil
}

// Ended returns the reason why a token counts no more. It returns nil after a failed look-up, and
// for other tokens.
func (a *Authenticator) Ended(ctx context.Context, token string) error {
	if !pagelogin.Is(token) {
		return nil
	}
	_, err := a.authenticate(ctx, token)
	if err == nil || ctx.Err() != nil || errors.Is(err, pagelogin.ErrLookup) {
		return nil
	}
	return err
}

func bearer(r *http.Request) (string, bool) {
	kind, token, ok := strings.Cut(strings.TrimSpace(r.Header.Get("Authorization")), " ")
	return strings.TrimSpace(token), ok && strings.EqualFold(kind, "bearer")
}

// Authorizer restricts the sessions of the page, and lets everybody with a name open one.
type Authorizer struct{ authorizer.Authorizer }

// Authorize implements authorizer.Authorizer.
func (a Authorizer) Authorize(ctx context.Context, of authorizer.Attributes) (authorizer.Decision, string, error) {
	who := of.GetUser()
	if who == nil {
		return a.Authorizer.Authorize(ctx, of)
	}
	link, session := has(who, pagelogin.LinkExtra), has(who, pagelogin.SessionExtra)
	if reason := refusal(of, link, session); reason != "" {
		return authorizer.DecisionDeny, reason, nil
	}
	if opens(of, who) {
		return authorizer.DecisionAllow, "a session of the page has no more rights than its user", nil
	}
	return a.Authorizer.Authorize(ctx, of)
}

// ConditionsAwareAuthorize implements authorizer.Authorizer.
func (a Authorizer) ConditionsAwareAuthorize(
	ctx context.Context, of authorizer.Attributes,
) authorizer.ConditionsAwareDecision {
	return authorizer.ConditionsAwareDecisionFromParts(a.Authorize(ctx, of))
}

func has(who user.Info, key string) bool { return len(who.GetExtra()[key]) > 0 }

// opens reports whether a request makes a link, or is about the caller's own session.
func opens(of authorizer.Attributes, who user.Info) bool {
	return !of.IsResourceRequest() && slices.Contains(who.GetGroups(), user.AllAuthenticated) &&
		(of.GetPath() == pagelogin.LinkPath || of.GetPath() == pagelogin.SessionPath)
}

// refusal returns the reason why a session or a link may not make a request; empty for all others.
func refusal(of authorizer.Attributes, link, session bool) string {
	switch {
	case link && !(of.GetPath() == pagelogin.SessionPath && of.GetVerb() == "post"):
		return "a link to the page opens a session and does nothing else"
	case link || !session:
		return ""
	case of.IsResourceRequest():
		return refusedObject(of)
	}
	return refusedPath(of)
}

// reads are the verbs with which a session reads objects.
var reads = []string{"get", "list", "watch"}

// parts are the subresources that a session reads. Others, also of APIs that users add, may reach
// into pods, machines and consoles by a GET that is upgraded.
var parts = []string{"", "log", "status", "scale"}

func refusedObject(of authorizer.Attributes) string {
	group, resource := of.GetAPIGroup(), of.GetResource()
	switch {
	case of.GetVerb() == "create" && asksAboutSelf(group, resource):
		return ""
	case !slices.Contains(reads, of.GetVerb()):
		return "a session of the page only reads"
	case !slices.Contains(parts, of.GetSubresource()):
		return "a session of the page does not reach into pods and nodes"
	case group == "" && resource == "secrets", resource == "*", group == "*":
		return "a session of the page reads no Secrets"
	}
	return ""
}

// asksAboutSelf reports whether a created object is a question about the caller's own rights.
func asksAboutSelf(group, resource string) bool {
	return group == "authorization.k8s.io" &&
		(resource == "selfsubjectaccessreviews" || resource == "selfsubjectrulesreviews") ||
		group == "authentication.k8s.io" && resource == "selfsubjectreviews"
}

// A session reads these paths beside objects, and the folders with all that lies below.
var (
	paths   = []string{"/version", "/barque/v1/status", "/barque/v1/gossip", pagelogin.HistoryPath}
	folders = []string{"/api", "/apis", "/openapi", "/livez", "/readyz", "/healthz"}
)

func refusedPath(of authorizer.Attributes) string {
	path := of.GetPath()
	if path == pagelogin.SessionPath && (of.GetVerb() == "get" || of.GetVerb() == "delete") {
		return ""
	}
	if of.GetVerb() != "get" && of.GetVerb() != "head" {
		return "a session of the page only reads"
	}
	below := func(folder string) bool { return path == folder || strings.HasPrefix(path, folder+"/") }
	if slices.Contains(paths, path) || slices.ContainsFunc(folders, below) {
		return ""
	}
	return "a session of the page does not read " + path
}
