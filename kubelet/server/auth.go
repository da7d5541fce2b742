package server

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/barque/barque/internal/clientcert"
	"github.com/barque/barque/internal/cutoff"
	"github.com/barque/barque/internal/httpserver"
	"github.com/barque/barque/internal/kubeletapi"
	"github.com/barque/barque/kubelet/config"
)

// maxCached bounds the cached answers of the API server. The settings have their lifetimes.
const maxCached = 1024

// superusers are the groups whose members may do everything here, so that servers reach a kubelet
// whose API server does not answer. Servers of before 28 November 2026 show a certificate of
// system:masters. From the next minor version on the API server is asked about those.
var superusers = []string{kubeletapi.ClientGroup, "system:masters"}

// user is the caller.
type user struct {
	name   string
	uid    string
	groups []string
}

// guard lets authenticated and authorized callers through.
type guard struct {
	client   kubernetes.Interface
	node     string
	settings *config.Configuration
	now      func() time.Time
	revoked  func(leaf *x509.Certificate) error // it may be nil
	// believed returns the present CAs. Without it the result of the handshake holds.
	believed func() (x509.VerifyOptions, bool)

	mu      sync.Mutex
	answers map[string]answer
}

type answer struct {
	user    *user // of a token; nil when it is not valid
	allowed bool
	until   time.Time
}

func newGuard(
	client kubernetes.Interface, node string, settings *config.Configuration, now func() time.Time,
	revoked func(leaf *x509.Certificate) error,
) *guard {
	return &guard{client: client, node: node, settings: settings, now: now, revoked: revoked,
		answers: map[string]answer{}}
}

// protect wraps a handler.
func (g *guard) protect(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u, err := g.authenticate(r)
		if err != nil {
			http.Error(w, "cannot authenticate: "+err.Error(), http.StatusServiceUnavailable)
			return
		}
		if u == nil {
			http.Error(w, "Unauthorized", http.StatusUnauthorized)
			return
		}
		httpserver.Authenticate(r.Context())
		verb, subresources := attributes(r)
		for _, sub := range subresources {
			ok, err := g.authorize(r.Context(), u, verb, sub)
			if err != nil {
				http.Error(w, "cannot authorize: "+err.Error(), http.StatusServiceUnavailable)
				return
			}
			if ok {
				next.ServeHTTP(w, r)
				return
			}
		}
		http.Error(w,
			fmt.Sprintf("Forbidden (user=%s, verb=%s, resource=nodes, subresource(s)=%v)", u.name, verb, subresources),
			http.StatusForbidden)
	})
}

// authenticate returns the caller, or nil without a proof.
func (g *guard) authenticate(r *http.Request) (*user, error) {
	if r.TLS != nil && len(r.TLS.VerifiedChains) > 0 {
		leaf := r.TLS.VerifiedChains[0][0]
		if g.counts(leaf) != nil || g.verify(r.TLS.PeerCertificates) != nil {
			httpserver.Estrange(r.Context())
			return nil, nil
		}
		cutoff.Proven(r.Context(), cutoff.ByCluster)
		subject := leaf.Subject
		return &user{name: subject.CommonName,
			groups: append(slices.Clone(subject.Organization), "system:authenticated")}, nil
	}
	token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok || token == "" {
		return nil, nil
	}
	key := fmt.Sprintf("token %x", sha256.Sum256([]byte(token)))
	if a, ok := g.cached(key); ok {
		return a.user, nil
	}
	review, err := g.client.AuthenticationV1().TokenReviews().Create(r.Context(),
		&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	a := answer{until: g.now().Add(g.settings.Authentication.Webhook.CacheTTL.Duration)}
	if review.Status.Authenticated {
		a.user = &user{name: review.Status.User.Username, uid: review.Status.User.UID,
			groups: review.Status.User.Groups}
	}
	g.keep(key, a)
	return a.user, nil
}

// counts returns the reason why a genuine certificate is not accepted, or nil.
func (g *guard) counts(leaf *x509.Certificate) error {
	if g.revoked == nil {
		return nil
	}
	return g.revoked(leaf)
}

// verify repeats the handshake's check of a certificate: since then it may have expired, or its CA
// may have been removed. A client may keep a connection for ever.
func (g *guard) verify(sent []*x509.Certificate) error {
	if g.believed == nil || len(sent) == 0 {
		return nil
	}
	options, ok := g.believed()
	if !ok {
		return errors.New("the CAs of clients are not known")
	}
	options.CurrentTime = g.now()
	_, err := clientcert.Verify(sent, options)
	return err
}

// attributes returns a request in the API's terms: it suffices that one of the subresources of this
// node is allowed.
func attributes(r *http.Request) (verb string, subresources []string) {
	switch r.Method {
	case http.MethodPost:
		verb = "create"
	case http.MethodPut:
		verb = "update"
	case http.MethodPatch:
		verb = "patch"
	case http.MethodDelete:
		verb = "delete"
	default:
		verb = "get"
	}
	first, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	if kubeletapi.OpensStream(r.URL.Path, r.Header) {
		return "create", []string{"proxy"}
	}
	switch first {
	case "stats":
		return verb, []string{"stats"}
	case "metrics":
		return verb, []string{"metrics"}
	case "logs":
		return verb, []string{"log"}
	case "pods", "runningpods":
		return verb, []string{"pods", "proxy"}
	case "healthz":
		return verb, []string{"healthz", "proxy"}
	case "configz":
		return verb, []string{"configz", "proxy"}
	}
	return verb, []string{"proxy"}
}

func (g *guard) authorize(ctx context.Context, u *user, verb, subresource string) (bool, error) {
	if slices.ContainsFunc(superusers, func(group string) bool { return slices.Contains(u.groups, group) }) {
		return true, nil
	}
	key := strings.Join(append([]string{"access", verb, subresource, u.name, u.uid}, u.groups...), "\x00")
	if a, ok := g.cached(key); ok {
		return a.allowed, nil
	}
	review, err := g.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{
			User: u.name, UID: u.uid, Groups: u.groups,
			ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb: verb, Version: "v1", Resource: "nodes", Subresource: subresource, Name: g.node},
		}}, metav1.CreateOptions{})
	if err != nil {
		return false, err
	}
	a := answer{allowed: review.Status.Allowed,
		until: g.now().Add(g.settings.Authorization.Webhook.CacheUnauthorizedTTL.Duration)}
	if a.allowed {
		a.until = g.now().Add(g.settings.Authorization.Webhook.CacheAuthorizedTTL.Duration)
	}
	g.keep(key, a)
	return a.allowed, nil
}

func (g *guard) cached(key string) (answer, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	a, ok := g.answers[key]
	return a, ok && g.now().Before(a.until)
}

func (g *guard) keep(key string, a answer) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.answers) >= maxCached {
		clear(g.answers) // rare, and costs a review each
	}
	g.answers[key] = a
}
