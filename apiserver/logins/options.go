package logins

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/oidc"
	certutil "k8s.io/client-go/util/cert"
	cliflag "k8s.io/component-base/cli/flag"

	"github.com/barque/barque/apiserver/configfile"
	"github.com/barque/barque/apiserver/frontproxy"
)

// The flags that name files.
const (
	configFlag  = "--authentication-config"
	webhookFlag = "--authentication-token-webhook-config-file"
	tokensFlag  = "--token-auth-file"
	basicFlag   = "--basic-auth-file"
	oidcCAFlag  = "--oidc-ca-file"
)

// Options are the flags. All but basic authentication are upstream's.
type Options struct {
	ConfigFile string // an AuthenticationConfiguration
	OIDC       OIDC   // one issuer, without a file
	Webhook    Webhook
	TokenFile  string
	BasicFile  string
	Proxy      frontproxy.Options

	changed func(flag string) bool
	// anonymousPaths are the paths of the flag --anonymous-paths.
	anonymousPaths func() []string
}

// OIDC is an issuer of ID tokens, as flags describe it.
type OIDC struct {
	IssuerURL, ClientID, CAFile   string
	UsernameClaim, UsernamePrefix string
	GroupsClaim, GroupsPrefix     string
	SigningAlgs                   []string
	RequiredClaims                map[string]string
}

// Webhook reviews tokens.
type Webhook struct {
	ConfigFile, Version string
	CacheTTL            time.Duration
}

// NewOptions returns upstream's defaults: no configured login.
func NewOptions() *Options {
	return &Options{
		OIDC:    OIDC{UsernameClaim: "sub", SigningAlgs: []string{"RS256"}},
		Webhook: Webhook{Version: "v1beta1", CacheTTL: 2 * time.Minute},
		changed: func(string) bool { return false }, anonymousPaths: func() []string { return nil },
	}
}

// AddFlags adds the flags.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.ConfigFile, configFlag[2:], "",
		"file with an AuthenticationConfiguration of apiserver.config.k8s.io: issuers of JWTs, and the conditions of anonymous requests. A change counts within seconds; give the file to all servers")
	fs.StringVar(&o.OIDC.IssuerURL, "oidc-issuer-url", "",
		"URL of an OpenID Connect provider, https://…, whose ID tokens log users in; --authentication-config can do more")
	fs.StringVar(&o.OIDC.ClientID, "oidc-client-id", "",
		"audience that ID tokens must be for: the client ID at the provider")
	fs.StringVar(&o.OIDC.CAFile, oidcCAFlag[2:], "",
		"file with the CAs of the provider's certificate (default: those of this machine)")
	fs.StringVar(&o.OIDC.UsernameClaim, "oidc-username-claim", o.OIDC.UsernameClaim, "claim with the user's name")
	fs.StringVar(&o.OIDC.UsernamePrefix, "oidc-username-prefix", "",
		"prefix of users' names; - is none (default: the issuer's URL and #, or none for the claim email)")
	fs.StringVar(&o.OIDC.GroupsClaim, "oidc-groups-claim", "", "claim with the user's groups")
	fs.StringVar(&o.OIDC.GroupsPrefix, "oidc-groups-prefix", "", "prefix of groups")
	fs.StringSliceVar(&o.OIDC.SigningAlgs, "oidc-signing-algs", o.OIDC.SigningAlgs,
		"algorithms of signatures that are accepted, of "+strings.Join(oidc.AllValidSigningAlgorithms(), ", "))
	fs.Var(cliflag.NewMapStringStringNoSplit(&o.OIDC.RequiredClaims), "oidc-required-claim",
		"claim that ID tokens must have, key=value; may be repeated")
	fs.StringVar(&o.Webhook.ConfigFile, webhookFlag[2:], "",
		"kubeconfig of a webhook that reviews bearer tokens which the cluster has not issued")
	fs.StringVar(&o.Webhook.Version, "authentication-token-webhook-version", o.Webhook.Version,
		"version of the TokenReview for the webhook: v1beta1 or v1")
	fs.DurationVar(&o.Webhook.CacheTTL, "authentication-token-webhook-cache-ttl", o.Webhook.CacheTTL,
		"how long an answer of the webhook counts; a good one counts for ten seconds at least, also with 0")
	fs.StringVar(&o.TokenFile, tokensFlag[2:], "",
		"file with static bearer tokens, lines of token,user,uid,\"group1,group2\"; read at the start")
	fs.StringVar(&o.BasicFile, basicFlag[2:], "",
		"file with users' passwords for HTTP basic authentication, lines of USER:BCRYPT-HASH[:GROUP,GROUP]. Not recommended: see docs/authentication.md")
	o.Proxy.AddFlags(fs)
	o.changed = fs.Changed
	o.anonymousPaths = func() []string {
		paths, err := fs.GetStringSlice("anonymous-paths")
		if err != nil { // there is no such flag
			return nil
		}
		return paths
	}
}

// anonymousTwice returns an error when both a file and flags configure requests
// without credentials.
func (o *Options) anonymousTwice(config *apiserver.AuthenticationConfiguration) error {
	switch paths := o.anonymousPaths(); {
	case config.Anonymous == nil:
		return nil
	case o.changed("anonymous-auth"):
		return errors.New("it has a field anonymous, which goes without --anonymous-auth")
	case len(paths) > 0 && !slices.Equal(paths, []string{"all"}):
		return fmt.Errorf(
			"it has a field anonymous, which goes without --anonymous-paths=%s: give --anonymous-paths=all, or remove the field", strings.Join(paths, ","))
	}
	return nil
}

// jwt returns the configuration that the flags of an issuer make, or nil.
func (o *Options) jwt() (*apiserver.AuthenticationConfiguration, error) {
	c := &o.OIDC
	switch {
	case c.IssuerURL == "" && c.ClientID == "":
		for _, name := range []string{"ca-file", "username-claim", "username-prefix", "groups-claim", "groups-prefix",
			"signing-algs", "required-claim"} {
			if o.changed("oidc-" + name) {
				return nil,
					fmt.Errorf("--oidc-%s belongs to an issuer: give --oidc-issuer-url and --oidc-client-id", name)
			}
		}
		return nil, nil
	case c.IssuerURL == "" || c.ClientID == "":
		return nil, errors.New("give both of --oidc-issuer-url and --oidc-client-id, or none")
	case o.ConfigFile != "":
		return nil, errors.New("--authentication-config has the issuers: it goes without --oidc-…")
	case c.UsernameClaim == "":
		return nil,
			errors.New("--oidc-username-claim is empty: want the claim with the user's name, such as sub or email")
	case len(c.SigningAlgs) == 0:
		return nil, errors.New("--oidc-signing-algs is empty: want RS256, for example")
	}
	for _, alg := range c.SigningAlgs {
		if !slices.Contains(oidc.AllValidSigningAlgorithms(), alg) {
			return nil,
				fmt.Errorf("--oidc-signing-algs %q: want some of %s", alg,
					strings.Join(oidc.AllValidSigningAlgorithms(), ", "))
		}
	}
	prefix := c.UsernamePrefix
	switch {
	case prefix == "-":
		prefix = ""
	case prefix == "" && c.UsernameClaim != "email":
		prefix = c.IssuerURL + "#"
	}
	jwt := apiserver.JWTAuthenticator{
		Issuer: apiserver.Issuer{URL: c.IssuerURL, Audiences: []string{c.ClientID}},
		ClaimMappings: apiserver.ClaimMappings{
			Username: apiserver.PrefixedClaimOrExpression{Claim: c.UsernameClaim, Prefix: &prefix}},
	}
	if c.GroupsClaim != "" {
		jwt.ClaimMappings.Groups = apiserver.PrefixedClaimOrExpression{Claim: c.GroupsClaim,
			Prefix: new(c.GroupsPrefix)}
	} else if c.GroupsPrefix != "" {
		return nil, errors.New("--oidc-groups-prefix needs --oidc-groups-claim")
	}
	for _, claim := range slices.Sorted(maps.Keys(c.RequiredClaims)) {
		jwt.ClaimValidationRules = append(jwt.ClaimValidationRules,
			apiserver.ClaimValidationRule{Claim: claim, RequiredValue: c.RequiredClaims[claim]})
	}
	if c.CAFile != "" {
		ca, err := configfile.Read(c.CAFile)
		if err != nil {
			return nil, fmt.Errorf("%s %w", oidcCAFlag, err)
		}
		if _, err := certutil.ParseCertsPEM(ca); err != nil { // without any, the CAs of this machine would count
			return nil, fmt.Errorf("%s %s: want one or more CERTIFICATE blocks in PEM: %w", oidcCAFlag, c.CAFile, err)
		}
		jwt.Issuer.CertificateAuthority = string(ca)
	}
	return &apiserver.AuthenticationConfiguration{JWT: []apiserver.JWTAuthenticator{jwt}}, nil
}

// Check validates the options and the files that they name. The error names the flag.
func (o *Options) Check() error {
	flags, err := o.jwt()
	if err != nil {
		return err
	}
	if flags != nil {
		if err := validate(flags, nil); err != nil {
			return fmt.Errorf("--oidc-…: %w", err)
		}
	}
	if o.ConfigFile != "" {
		data, err := configfile.Read(o.ConfigFile)
		if err != nil {
			return fmt.Errorf("%s %w", configFlag, err)
		}
		config, err := Load(data, nil)
		if err != nil {
			return fmt.Errorf("%s %s: %w", configFlag, o.ConfigFile, err)
		}
		if err := o.anonymousTwice(config); err != nil {
			return fmt.Errorf("%s %s: %w", configFlag, o.ConfigFile, err)
		}
	}
	if o.Webhook.ConfigFile != "" {
		if _, err := configfile.Webhook(o.Webhook.ConfigFile); err != nil {
			return fmt.Errorf("%s %w", webhookFlag, err)
		}
	}
	switch {
	case o.Webhook.Version != "v1" && o.Webhook.Version != "v1beta1":
		return fmt.Errorf("--authentication-token-webhook-version %q: want v1 or v1beta1", o.Webhook.Version)
	case o.Webhook.CacheTTL < 0:
		return fmt.Errorf("--authentication-token-webhook-cache-ttl %s is negative", o.Webhook.CacheTTL)
	}
	if o.TokenFile != "" {
		if _, err := staticTokens(o.TokenFile); err != nil {
			return err
		}
	}
	if o.BasicFile != "" {
		data, err := configfile.Read(o.BasicFile)
		if err != nil {
			return fmt.Errorf("%s %w", basicFlag, err)
		}
		if _, err := parsePasswords(data); err != nil {
			return fmt.Errorf("%s %s: %w", basicFlag, o.BasicFile, err)
		}
	}
	return o.Proxy.Check()
}
