package logins

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
	v1 "k8s.io/apiserver/pkg/apis/apiserver/v1"
	"k8s.io/apiserver/pkg/apis/apiserver/v1alpha1"
	"k8s.io/apiserver/pkg/apis/apiserver/v1beta1"
	"k8s.io/apiserver/pkg/apis/apiserver/validation"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	authenticationcel "k8s.io/apiserver/pkg/authentication/cel"
	"k8s.io/apiserver/pkg/authentication/request/anonymous"
	tokenunion "k8s.io/apiserver/pkg/authentication/token/union"
	"k8s.io/apiserver/pkg/server/dynamiccertificates"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/oidc"

	"github.com/barque/barque/apiserver/configfile"
	"github.com/barque/barque/apiserver/secureport"
)

// codecs decode configurations of all versions. A field that does not exist is an error: a typing
// error must not make a rule void.
var codecs = sync.OnceValue(func() serializer.CodecFactory {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	return serializer.NewCodecFactory(scheme, serializer.EnableStrict)
})

// kind is that of the file. Its versions are those of install.
var kind = configfile.Kind{Name: "AuthenticationConfiguration",
	APIVersions: []string{v1.SchemeGroupVersion.String(), v1beta1.SchemeGroupVersion.String(),
		v1alpha1.SchemeGroupVersion.String()}}

// compiler is made once: it takes long, and much memory.
var compiler = sync.OnceValue(authenticationcel.NewDefaultCompiler)

// Load decodes and validates an AuthenticationConfiguration. Its issuers must not be those of the
// cluster's own tokens.
func Load(data []byte, ownIssuers []string) (*apiserver.AuthenticationConfiguration, error) {
	if err := kind.Check(data); err != nil {
		return nil, err
	}
	decoded, err := runtime.Decode(codecs().UniversalDecoder(), data)
	if err != nil {
		return nil, configfile.Plain(err)
	}
	config, ok := decoded.(*apiserver.AuthenticationConfiguration)
	if !ok {
		return nil, fmt.Errorf("it has a %T: want an AuthenticationConfiguration", decoded)
	}
	return config, validate(config, ownIssuers)
}

func validate(config *apiserver.AuthenticationConfiguration, ownIssuers []string) error {
	if err := validation.ValidateAuthenticationConfiguration(compiler(), config, ownIssuers).ToAggregate(); err != nil {
		return err
	}
	for i, jwt := range config.JWT {
		if jwt.Issuer.EgressSelectorType != "" {
			return fmt.Errorf("jwt[%d].issuer.egressSelectorType: servers have no egress selector; leave it out", i)
		}
		for _, claim := range []struct {
			field  string
			prefix *string
		}{{"username", jwt.ClaimMappings.Username.Prefix}, {"groups", jwt.ClaimMappings.Groups.Prefix}} {
			if claim.prefix != nil && isReserved(*claim.prefix) {
				return fmt.Errorf(
					"jwt[%d].claimMappings.%s.prefix: %q is reserved, as is whatever begins with %s; choose another prefix", i, claim.field, *claim.prefix, strings.Join(Reserved, " or "))
			}
		}
	}
	return nil
}

// generation is a configuration in effect.
type generation struct {
	tokens authenticator.Token // nil without issuers
	health []func() error      // of each issuer
	// anonymous authenticates requests without credentials, if the configuration mentions them;
	// says reports that.
	anonymous authenticator.Request
	says      bool
	end       context.CancelFunc
}

// newGeneration makes the authenticators of a valid configuration. They work in the background
// until end is called.
func newGeneration(
	config *apiserver.AuthenticationConfiguration, algs, ownIssuers []string, server string,
) (*generation, error) {
	ctx, cancel := context.WithCancel(context.Background()) // cancelled by end: a configuration outlives its reader
	g := &generation{end: cancel}
	var issuers []authenticator.Token
	for i, jwt := range config.JWT {
		options := oidc.Options{JWTAuthenticator: jwt, SupportedSigningAlgs: algs, DisallowedIssuers: ownIssuers,
			APIServerID: server, Compiler: compiler()}
		if ca := jwt.Issuer.CertificateAuthority; ca != "" {
			provider, err := dynamiccertificates.NewStaticCAContent("oidc-authenticator", []byte(ca))
			if err != nil {
				cancel()
				return nil, fmt.Errorf("jwt[%d].issuer.certificateAuthority: %w", i, err)
			}
			options.CAContentProvider = provider
		}
		issuer, err := oidc.New(ctx, options)
		if err != nil {
			cancel()
			return nil, fmt.Errorf("jwt[%d]: %w", i, err)
		}
		issuers = append(issuers, &checkedTokens{issuer, "a token of " + jwt.Issuer.URL, fromOutside})
		g.health = append(g.health, issuer.HealthCheck)
	}
	if len(issuers) > 0 {
		g.tokens = tokenunion.NewFailOnError(issuers...)
	}
	if a := config.Anonymous; a != nil {
		g.says, g.anonymous = true, anonymous.NewAuthenticator(permitted(a))
	}
	return g, nil
}

// permitted are the paths that need no credentials; none means all. The paths of health and of the
// version are always among them, as with --anonymous-auth=false: proxies check there for a server
// that is ready, and joining machines for the version.
func permitted(a *apiserver.AnonymousAuthConfig) []apiserver.AnonymousAuthCondition {
	var out []apiserver.AnonymousAuthCondition
	if a.Enabled {
		if len(a.Conditions) == 0 {
			return nil
		}
		out = slices.Clone(a.Conditions)
	}
	for _, path := range secureport.OpenPaths {
		out = append(out, apiserver.AnonymousAuthCondition{Path: path})
	}
	return out
}

// healthy returns the errors of the issuers whose keys are not known yet.
func (g *generation) healthy() error {
	var wrong []error
	for _, check := range g.health {
		wrong = append(wrong, check())
	}
	return errors.Join(wrong...)
}
