package authn

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"

	"github.com/barque/barque/apiserver/pageauth"
	"github.com/barque/barque/internal/cutoff"
	"github.com/barque/barque/internal/pagelogin"
)

// revokedError is the reason why a token counts no more, before its time. A failed look-up is
// another error.
type revokedError struct{ text string }

// Error implements error.
func (e *revokedError) Error() string { return e.text }

func revokedf(format string, args ...any) error {
	return &revokedError{fmt.Sprintf(format, args...)}
}

// notedTokens authenticates as the next one does, and notes the token of a service account for
// cutoff.Requests. It is outside of the cache, which has no request's context inside.
type notedTokens struct{ next authenticator.Token }

// AuthenticateToken implements authenticator.Token. No configured login names a service account.
func (n notedTokens) AuthenticateToken(ctx context.Context, token string) (*authenticator.Response, bool, error) {
	response, ok, err := n.next.AuthenticateToken(ctx, token)
	if ok && err == nil && strings.HasPrefix(response.User.GetName(), serviceaccount.ServiceAccountUsernamePrefix) {
		cutoff.ProvenByToken(ctx, token)
	}
	return response, ok, err
}

// Ended returns a function that judges a token which was good, of a service account or of the
// page. It returns the reason why the token counts no more: an object to which it is bound is
// gone, or the key that has signed it; or the session of the page has ended. It returns nil after
// a failed look-up, and for an account's token whose time is over.
func Ended(cfg Config) func(ctx context.Context, token string) error {
	accounts := endedAccounts(cfg)
	if cfg.PageSessions == nil || cfg.ClientCAs == nil {
		return accounts
	}
	page := pageauth.NewAuthenticator(cfg.PageSessions,
		&revocable{cfg.Revoked, newCertificates(cfg.ClientCAs, cfg.reserved)})
	return func(ctx context.Context, token string) error {
		if pagelogin.Is(token) {
			return page.Ended(ctx, token)
		}
		return accounts(ctx, token)
	}
}

func endedAccounts(cfg Config) func(ctx context.Context, token string) error {
	if cfg.Issuer == nil {
		return func(context.Context, string) error { return nil }
	}
	bound := &serviceAccountTokens{issuer: cfg.Issuer, objects: cfg.Objects, now: cfg.Now}
	secrets := &legacyTokens{issuer: cfg.Issuer, objects: cfg.Objects, now: cfg.Now}
	return func(ctx context.Context, token string) error {
		if err := cmp.Or(bound.ended(ctx, token), secrets.ended(ctx, token)); revoked(err) {
			return err
		}
		return nil
	}
}

func revoked(err error) bool {
	var is *revokedError
	return errors.As(err, &is)
}

// ended returns an error if the token may count no more; none for other tokens.
func (s *serviceAccountTokens) ended(ctx context.Context, token string) error {
	var c claims
	mine, err := s.issuer.open(token, s.issuer.url, &c)
	if !mine || err != nil {
		return err
	}
	_, err = s.check(ctx, &c)
	return err
}

// ended is serviceAccountTokens.ended for tokens in Secrets.
func (l *legacyTokens) ended(ctx context.Context, token string) error {
	var c legacyClaims
	mine, err := l.issuer.open(token, LegacyIssuer, &c)
	if !mine || err != nil {
		return err
	}
	_, err = l.check(ctx, &c, token)
	return err
}
