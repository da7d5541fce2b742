package logins

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	tokencache "k8s.io/apiserver/pkg/authentication/token/cache"
	"k8s.io/apiserver/pkg/authentication/token/tokenfile"
	"k8s.io/apiserver/pkg/authentication/user"
	configmetrics "k8s.io/apiserver/pkg/server/options/authenticationconfig/metrics"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/oidc"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/webhook"

	"github.com/barque/barque/apiserver/authn"
	"github.com/barque/barque/apiserver/configfile"
	"github.com/barque/barque/apiserver/frontproxy"
	"github.com/barque/barque/internal/lifecycle"
)

// A changed configuration counts once its issuers have shown their keys, within healthWithin;
// otherwise the former one goes on. It still answers those requests that have begun with it.
const (
	healthWithin = 30 * time.Second
	healthEvery  = 100 * time.Millisecond
	lingers      = time.Minute
)

// Config of the logins.
type Config struct {
	Options *Options
	// Server is this server's name, for metrics.
	Server string
	// Issuers of the cluster's own tokens: no other system issues or reviews such a token.
	Issuers []string
	// OwnCAs returns the cluster's CAs in PEM, which cannot be a proxy's; nil where there are none.
	OwnCAs func() []byte
	// Audiences of tokens for this API.
	Audiences []string
	Logger    *slog.Logger
}

// Logins are the configured ways to log in. Their owner calls Run.
type Logins struct {
	cfg      Config
	current  atomic.Pointer[generation]
	webhook  authenticator.Token
	static   authenticator.Token
	password *passwords
	proxy    *frontproxy.Proxy // nil without one
	files    configfile.Files
	settings []configfile.State
}

// New reads the files. An issuer or a webhook that does not answer is no error: it may run in this
// cluster, or come later.
func New(cfg Config) (*Logins, error) {
	o := cfg.Options
	l := &Logins{cfg: cfg}
	if err := l.configure(); err != nil {
		return nil, err
	}
	if path := o.Webhook.ConfigFile; path != "" {
		file, err := configfile.Fixed(webhookFlag, path, cfg.Logger)
		if err != nil {
			return nil, err
		}
		client, err := configfile.Webhook(path)
		if err != nil {
			return nil, fmt.Errorf("%s %w", webhookFlag, err)
		}
		reviews, err := webhook.New(client, o.Webhook.Version, cfg.Audiences, *webhook.DefaultRetryBackoff())
		if err != nil {
			return nil, fmt.Errorf("%s %s: %w", webhookFlag, path, err)
		}
		var tokens authenticator.Token = &notOfIssuers{&named{reviews, webhookFlag + " " + path}, cfg.Issuers}
		if ttl := o.Webhook.CacheTTL; ttl > 0 {
			tokens = tokencache.New(tokens, false, ttl, ttl)
		}
		l.webhook = &checkedTokens{tokens, "the webhook of " + path, fromOutside}
		l.files = append(l.files, file)
	}
	if path := o.TokenFile; path != "" {
		file, err := configfile.Fixed(tokensFlag, path, cfg.Logger)
		if err != nil {
			return nil, err
		}
		static, err := staticTokens(path)
		if err != nil {
			return nil, err
		}
		cfg.Logger.Warn(
			"static tokens are accepted: they do not end, and a change of the file counts from the next start on. Better are certificates of 'barque user add', or an OpenID Connect provider", "flag", tokensFlag)
		l.static = &checkedTokens{static, tokensFlag + " " + path, fromFile}
		l.files = append(l.files, file)
	}
	if path := o.BasicFile; path != "" {
		data, err := configfile.Read(path)
		if err != nil {
			return nil, fmt.Errorf("%s %w", basicFlag, err)
		}
		if l.password, err = newPasswords(data); err != nil {
			return nil, fmt.Errorf("%s %s: %w", basicFlag, path, err)
		}
		cfg.Logger.Warn(
			"passwords are accepted by HTTP basic authentication: each request carries the password, it does not end, and guessing it needs no more than this port. Better are certificates of 'barque user add', or an OpenID Connect provider", "flag", basicFlag)
		l.files = append(l.files, configfile.New(configfile.Config{Flag: basicFlag, Path: path, Logger: cfg.Logger,
			Apply: func(_ context.Context, data []byte) error { return l.password.replace(data) }}, data))
	}
	var err error
	l.proxy, err = frontproxy.New(frontproxy.Config{Options: &o.Proxy, OwnCAs: cfg.OwnCAs, Logger: cfg.Logger,
		Check: func(who user.Info) error { return fromOutside("an authenticating proxy", who) }})
	return l, err
}

// FrontProxy is the authenticating proxy of users, or nil.
func (l *Logins) FrontProxy() *frontproxy.Proxy { return l.proxy }

// configure puts the issuers and the conditions of anonymous requests into effect.
func (l *Logins) configure() error {
	o := l.cfg.Options
	config, err := o.jwt()
	if err != nil {
		return err
	}
	if o.ConfigFile == "" {
		if config == nil {
			return nil
		}
		if err := validate(config, l.cfg.Issuers); err != nil {
			return fmt.Errorf("--oidc-…: %w", err)
		}
		g, err := newGeneration(config, o.OIDC.SigningAlgs, l.cfg.Issuers, l.cfg.Server)
		if err != nil {
			return fmt.Errorf("--oidc-…: %w", err)
		}
		l.current.Store(g)
		described, err := json.Marshal(config)
		if err != nil {
			return err
		}
		l.settings = append(l.settings, configfile.State{Flag: "--oidc-…", Hash: configfile.Hash(described)})
		return nil
	}
	data, err := configfile.Read(o.ConfigFile)
	if err != nil {
		return fmt.Errorf("%s %w", configFlag, err)
	}
	g, err := l.generation(data)
	if err != nil {
		return fmt.Errorf("%s %s: %w", configFlag, o.ConfigFile, err)
	}
	l.current.Store(g)
	configmetrics.RegisterMetrics()
	configmetrics.RecordAuthenticationConfigLastConfigInfo(l.cfg.Server, string(data))
	l.files = append(l.files,
		configfile.New(configfile.Config{Flag: configFlag, Path: o.ConfigFile, Logger: l.cfg.Logger, Apply: l.reload,
			Reloaded: func(data []byte, err error) {
				if err != nil {
					configmetrics.RecordAuthenticationConfigAutomaticReloadFailure(l.cfg.Server)
					return
				}
				configmetrics.RecordAuthenticationConfigAutomaticReloadSuccess(l.cfg.Server, string(data))
			}}, data))
	return nil
}

func (l *Logins) generation(data []byte) (*generation, error) {
	config, err := Load(data, l.cfg.Issuers)
	if err != nil {
		return nil, err
	}
	if err := l.cfg.Options.anonymousTwice(config); err != nil {
		return nil, err
	}
	return newGeneration(config, oidc.AllValidSigningAlgorithms(), l.cfg.Issuers, l.cfg.Server)
}

// reload replaces the configuration, once its issuers are known.
func (l *Logins) reload(ctx context.Context, data []byte) error {
	g, err := l.generation(data)
	if err != nil {
		return err
	}
	if err := await(ctx, g.healthy); err != nil {
		g.end()
		return fmt.Errorf("an issuer did not answer within %s: %w", healthWithin, err)
	}
	former := l.current.Swap(g)
	time.AfterFunc(lingers, former.end)
	return nil
}

// await repeats a check until it passes, for healthWithin at most.
func await(ctx context.Context, check func() error) error {
	ctx, cancel := context.WithTimeout(ctx, healthWithin)
	defer cancel()
	ticks := time.NewTicker(healthEvery)
	defer ticks.Stop()
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-ticks.C:
		}
	}
}

// Run looks for changed files until the context ends.
func (l *Logins) Run(ctx context.Context) error {
	runs := []func(context.Context) error{l.files.Run}
	if l.proxy != nil {
		runs = append(runs, l.proxy.Run)
	}
	err := lifecycle.All(ctx, runs...)
	if g := l.current.Load(); g != nil {
		g.end()
	}
	return err
}

// Tokens returns the authenticators of bearer tokens, in the order in which they are called.
func (l *Logins) Tokens() []authenticator.Token {
	var out []authenticator.Token
	if l.static != nil {
		out = append(out, authenticator.WrapAudienceAgnosticToken(l.cfg.Audiences, l.static))
	}
	out = append(out, authenticator.WrapAudienceAgnosticToken(l.cfg.Audiences, authenticator.TokenFunc(l.issued)))
	if l.webhook != nil {
		out = append(out, l.webhook)
	}
	return out
}

func (l *Logins) issued(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	g := l.current.Load()
	if g == nil || g.tokens == nil {
		return nil, false, nil
	}
	return g.tokens.AuthenticateToken(ctx, token)
}

// Requests returns the authenticators of requests with other credentials.
func (l *Logins) Requests() []authenticator.Request {
	if l.password == nil {
		return nil
	}
	return []authenticator.Request{
		authenticator.RequestFunc(func(r *http.Request) (*authenticator.Response, bool, error) {
			response, ok, err := l.password.AuthenticateRequest(r)
			return (&checkedTokens{source: basicFlag, check: fromFile}).checked(response, ok, err)
		})}
}

// Anonymous returns the authenticator of requests without credentials, or nil for none, and whether
// the configuration mentions them.
func (l *Logins) Anonymous() (authenticator.Request, bool) {
	g := l.current.Load()
	if g == nil || !g.says {
		return nil, false
	}
	return g.anonymous, true
}

// Files returns the state of the files and flags, in the flags' order.
func (l *Logins) Files() []configfile.State {
	out := slices.Concat(l.settings, l.files.States(), l.proxy.States())
	if g := l.current.Load(); g != nil {
		if err := g.healthy(); err != nil {
			for i := range out {
				if out[i].Problem == "" && (out[i].Flag == configFlag || strings.HasPrefix(out[i].Flag, "--oidc-")) {
					out[i].Problem = "an issuer does not answer, so its users cannot log in: " + err.Error()
				}
			}
		}
	}
	slices.SortFunc(out, func(a, b configfile.State) int { return cmp.Compare(a.Flag, b.Flag) })
	return out
}

// staticTokens reads a file of static tokens. Upstream's reader takes a file without a token, and
// the last one of two equal tokens.
func staticTokens(path string) (authenticator.Token, error) {
	data, err := configfile.Read(path)
	if err != nil {
		return nil, fmt.Errorf("%s %w", tokensFlag, err)
	}
	if err := checkTokens(data); err != nil {
		return nil, fmt.Errorf("%s %s: %w", tokensFlag, path, err)
	}
	tokens, err := tokenfile.NewCSV(path)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", tokensFlag, path, err)
	}
	return tokens, nil
}

// named adds the source of an error to it: a failing webhook is one of several authenticators.
type named struct {
	next authenticator.Token
	name string
}

// AuthenticateToken implements authenticator.Token.
func (n *named) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	response, ok, err := n.next.AuthenticateToken(ctx, token)
	if err != nil {
		err = fmt.Errorf("the webhook of %s gives no verdict: %w", n.name, err)
	}
	return response, ok, err
}

// notOfIssuers keeps the cluster's own tokens from another system: it would learn them, and could
// accept one that has ended. Those are the tokens of its issuers, of accounts in Secrets, and
// bootstrap tokens.
type notOfIssuers struct {
	next    authenticator.Token
	issuers []string
}

// AuthenticateToken implements authenticator.Token.
func (n *notOfIssuers) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	if issuer := claimedIssuer(token); issuer == authn.LegacyIssuer || slices.Contains(n.issuers, issuer) ||
		authn.IsBootstrapToken(token) {
		return nil, false, nil
	}
	return n.next.AuthenticateToken(ctx, token)
}

// claimedIssuer returns the issuer that a JWT names, without any proof, or "".
func claimedIssuer(token string) string {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return ""
	}
	payload, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(parts[1], "="))
	if err != nil {
		return ""
	}
	var claims struct {
		Issuer string `json:"iss"`
	}
	if json.Unmarshal(payload, &claims) != nil {
		return ""
	}
	return claims.Issuer
}
