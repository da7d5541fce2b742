package authn

import (
	"fmt"
	"time"

	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/group"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	"k8s.io/apiserver/pkg/authentication/request/bearertoken"
	"k8s.io/apiserver/pkg/authentication/request/union"
	"k8s.io/apiserver/pkg/authentication/request/websocket"
	"k8s.io/apiserver/pkg/authentication/request/x509"
	tokencache "k8s.io/apiserver/pkg/authentication/token/cache"
	"k8s.io/apiserver/pkg/authentication/token/tokenfile"
	tokenunion "k8s.io/apiserver/pkg/authentication/token/union"
)

// cacheFor is how long a token that was good is taken to be so. It bounds how long a token lives
// on after the object that it is bound to.
const cacheFor = 10 * time.Second

// Config says which credentials are accepted. Only Objects is required.
type Config struct {
	// ClientCAs gives the authorities that sign client certificates; nil accepts none.
	ClientCAs x509.VerifyOptionFunc
	// Issuer of the service-account tokens that are accepted; nil accepts none.
	Issuer *Issuer
	// Audiences that tokens must be for at least one of.
	Audiences []string
	Objects   *Objects
	// Process authenticates the tokens of clients inside this process; nil means there are none.
	Process authenticator.Token
	// TokenFile is a file of lines "token,user,uid,groups"; "" means none.
	TokenFile string
	// AnonymousPaths lists the paths that may be asked without credentials; empty means all, as far
	// as RBAC lets them, and NoAnonymous none.
	AnonymousPaths []string
	NoAnonymous    bool
	Now            func() time.Time
}

// New returns the authenticator of requests, and the one of bearer tokens alone, for TokenReview.
func New(cfg Config) (authenticator.Request, authenticator.Token, error) {
	var tokens []authenticator.Token
	if cfg.TokenFile != "" {
		static, err := tokenfile.NewCSV(cfg.TokenFile)
		if err != nil {
			return nil, nil, fmt.Errorf("token file %s: %w", cfg.TokenFile, err)
		}
		tokens = append(tokens, authenticator.WrapAudienceAgnosticToken(cfg.Audiences, static))
	}
	if cfg.Issuer != nil {
		tokens = append(tokens, &serviceAccountTokens{cfg.Issuer, cfg.Objects, cfg.Audiences, cfg.Now})
	}
	tokens = append(tokens, authenticator.WrapAudienceAgnosticToken(cfg.Audiences, &bootstrapTokens{cfg.Objects, cfg.Now}))
	token := tokencache.New(tokenunion.New(tokens...), true, cacheFor, 0)
	if cfg.Process != nil {
		token = tokenunion.New(cfg.Process, token)
	}

	var requests []authenticator.Request
	if cfg.ClientCAs != nil {
		requests = append(requests, x509.NewDynamic(cfg.ClientCAs, x509.CommonNameUserConversion))
	}
	requests = append(requests, bearertoken.New(token), websocket.NewProtocolAuthenticator(token))
	request := group.NewAuthenticatedGroupAdder(union.New(requests...))
	if !cfg.NoAnonymous {
		conditions := make([]apiserver.AnonymousAuthCondition, 0, len(cfg.AnonymousPaths))
		for _, p := range cfg.AnonymousPaths {
			conditions = append(conditions, apiserver.AnonymousAuthCondition{Path: p})
		}
		// Credentials that are wrong must not turn into anonymous access.
		request = union.NewFailOnError(request, anonymous.NewAuthenticator(conditions))
	}
	return request, token, nil
}
