package authn

import (
	cryptox509 "crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"time"

	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/websocket"
	"k8s.io/apiserver/pkg/authentication/request/x509"
	tokencache "k8s.io/apiserver/pkg/authentication/token/cache"
	"k8s.io/apiserver/pkg/authentication/token/tokenfile"
	tokenunion "k8s.io/apiserver/pkg/authentication/token/union"

	"github.com/barque/barque/apiserver/frontproxy"
	"github.com/barque/barque/apiserver/pageauth"
)

// cacheFor is how long a valid token is cached. It bounds how long a token lives on after the
// object that it is bound to.
const cacheFor = 10 * time.Second

// The headers by which a server names the user of a request that it passes on.
const (
	UserHeader        = "X-Remote-User"
	UIDHeader         = "X-Remote-Uid"
	GroupHeader       = "X-Remote-Group"
	ExtraHeaderPrefix = "X-Remote-Extra-"
)

// Config has the accepted credentials. Only Objects is required.
type Config struct {
	// ClientCAs gives the authorities that sign client certificates; nil accepts none.
	ClientCAs x509.VerifyOptionFunc
	// Revoked returns the reason why a genuine client certificate counts no more, or nil; nil
	// revokes none.
	Revoked func(leaf *cryptox509.Certificate) error
	// ProxyCAs gives the authorities that sign the certificates of ProxyClients; nil: ClientCAs.
	ProxyCAs x509.VerifyOptionFunc
	// ProxyClients are the common names of client certificates whose requests name their user in
	// headers, see UserHeader. Certificates of users must never carry them.
	ProxyClients []string
	// Issuer of the service-account tokens that are accepted; nil accepts none.
	Issuer *Issuer
	// Audiences that tokens must be for at least one of.
	Audiences []string
	Objects   *Objects
	// PageSessions are the log-ins of the page; nil means that there are none.
	PageSessions pageauth.Sessions
	// Process authenticates the tokens of clients inside this process; nil means there are none.
	Process authenticator.Token
	// TokenFile is a file of lines "token,user,uid,groups"; "" means none.
	TokenFile string
	// AnonymousPaths lists the paths that need no credentials; empty means all, as far as RBAC lets
	// them, and NoAnonymous none.
	AnonymousPaths []string
	NoAnonymous    bool
	// Logins are the configured ones; nil means that there are none.
	Logins Logins
	Now    func() time.Time
}

// Logins are ways to log in that a user has configured. They are tried after the cluster's own.
type Logins interface {
	Tokens() []authenticator.Token
	Requests() []authenticator.Request
	// FrontProxy is the authenticating proxy of users; nil means that there is none.
	FrontProxy() *frontproxy.Proxy
	// Anonymous returns the authenticator of requests without credentials at this moment, nil for
	// none, and whether it counts in place of NoAnonymous and AnonymousPaths.
	Anonymous() (authenticator.Request, bool)
}

// New returns the authenticator of requests, and one that accepts nothing but bearer tokens, for
// TokenReview.
func New(cfg Config) (requests, tokens authenticator.Request, err error) {
	var kinds []authenticator.Token
	if cfg.TokenFile != "" {
		static, err := tokenfile.NewCSV(cfg.TokenFile)
		if err != nil {
			return nil, nil, fmt.Errorf("token file %s: %w", cfg.TokenFile, err)
		}
		kinds = append(kinds, authenticator.WrapAudienceAgnosticToken(cfg.Audiences, static))
	}
	if cfg.Issuer != nil {
		kinds = append(kinds, &serviceAccountTokens{cfg.Issuer, cfg.Objects, cfg.Audiences, cfg.Now},
			&legacyTokens{cfg.Issuer, cfg.Objects, cfg.Audiences, cfg.Now})
	}
	kinds = append(kinds,
		authenticator.WrapAudienceAgnosticToken(cfg.Audiences, &bootstrapTokens{cfg.Objects, cfg.Now}))
	if cfg.Logins != nil {
		kinds = append(kinds, cfg.Logins.Tokens()...)
	}
	token := tokencache.New(tokenunion.New(kinds...), true, cacheFor, 0)
	review := token
	token = notedTokens{token}
	if cfg.Process != nil {
		token, review = tokenunion.New(cfg.Process, token), tokenunion.New(cfg.Process, review)
	}

	if cfg.ProxyCAs == nil {
		cfg.ProxyCAs = cfg.ClientCAs
	}
	var ways []authenticator.Request
	if cfg.ProxyCAs != nil && len(cfg.ProxyClients) > 0 {
		proxied := headerrequest.NewDynamicVerifyOptionsSecure(cfg.ProxyCAs,
			headerrequest.StaticStringSlice(cfg.ProxyClients),
			headerrequest.StaticStringSlice{UserHeader}, headerrequest.StaticStringSlice{UIDHeader},
			headerrequest.StaticStringSlice{GroupHeader}, headerrequest.StaticStringSlice{ExtraHeaderPrefix})
		ways = append(ways, &revocable{cfg.Revoked, &namedCertificates{cfg.ProxyCAs, cfg.ProxyClients, proxied}})
	}
	if cfg.ClientCAs != nil {
		byCertificate := &revocable{cfg.Revoked, newCertificates(cfg.ClientCAs, cfg.reserved)}
		if cfg.PageSessions != nil { // first, see its AuthenticateRequest
			ways = append([]authenticator.Request{pageauth.NewAuthenticator(cfg.PageSessions, byCertificate)}, ways...)
		}
		ways = append(ways, byCertificate)
	}
	ways = append(ways, bearertoken.New(token), websocket.NewProtocolAuthenticator(token))
	if cfg.Logins != nil {
		ways = append(ways, cfg.Logins.Requests()...)
	}
	all := union.New(ways...)
	if cfg.Logins != nil {
		// First: a proxy may pass on its user's credentials.
		if proxy := cfg.Logins.FrontProxy(); proxy != nil {
			all = proxied(proxy, all)
		}
	}
	requests = group.NewAuthenticatedGroupAdder(all)
	// Wrong credentials must not turn into anonymous access.
	requests = union.NewFailOnError(requests, cfg.anonymous())
	return requests, group.NewAuthenticatedGroupAdder(bearertoken.New(review)), nil
}

// proxied tries the proxy first. The other authenticators count unless it named a user, permitted
// or not.
func proxied(proxy, others authenticator.Request) authenticator.Request {
	return authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		response, ok, err := proxy.AuthenticateRequest(r)
		if ok || errors.Is(err, frontproxy.ErrRefused) {
			return response, ok, err
		}
		response, ok, failed := others.AuthenticateRequest(r)
		if !ok && err != nil {
			failed = errors.Join(err, failed)
		}
		return response, ok, failed
	})
}

func (cfg *Config) reserved(namespace, name string) bool {
	return cfg.Objects != nil && cfg.Objects.Reserved != nil && cfg.Objects.Reserved(namespace, name)
}

// anonymous authenticates requests without credentials.
func (cfg *Config) anonymous() authenticator.Request {
	var fixed authenticator.Request
	if !cfg.NoAnonymous {
		conditions := make([]apiserver.AnonymousAuthCondition, 0, len(cfg.AnonymousPaths))
		for _, p := range cfg.AnonymousPaths {
			conditions = append(conditions, apiserver.AnonymousAuthCondition{Path: p})
		}
		fixed = anonymous.NewAuthenticator(conditions)
	}
	logins := cfg.Logins
	return authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
		now := fixed
		if logins != nil {
			if configured, counts := logins.Anonymous(); counts {
				now = configured
			}
		}
		if now == nil {
			return nil, false, nil
		}
		return now.AuthenticateRequest(r)
	})
}
