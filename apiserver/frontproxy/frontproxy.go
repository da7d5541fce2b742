package frontproxy

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync/atomic"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/barque/barque/apiserver/configfile"
)

// ErrRefused is the error of a request in which a proxy names a user that it may not name. No other
// credentials of that request count: the proxy has spoken for somebody else.
var ErrRefused = errors.New("no authenticating proxy may name this user")

// Config of a Proxy. OwnCAs is optional.
type Config struct {
	Options *Options
	// OwnCAs returns the cluster's own CAs in PEM, which are refused as those of a proxy.
	OwnCAs func() []byte
	// Check refuses a user that no proxy may name.
	Check  func(who user.Info) error
	Logger *slog.Logger
}

// Proxy authenticates requests of authenticating proxies.
type Proxy struct {
	cfg     Config
	headers authenticator.Request
	current atomic.Pointer[authorities]
	file    *configfile.File
	flags   string // the hash of the flags beside the file
}

// New returns a Proxy, or nil when none is configured.
func New(cfg Config) (*Proxy, error) {
	o := cfg.Options
	if err := o.Check(); err != nil || o.CAFile == "" {
		return nil, err
	}
	first, err := o.read(cfg.OwnCAs)
	if err != nil {
		return nil, err
	}
	p := &Proxy{cfg: cfg, headers: headerrequest.NewDynamic(headers(o.UserHeaders), headers(o.UIDHeaders), headers(o.GroupHeaders), headers(o.ExtraPrefixes))}
	described, err := json.Marshal(o.lists())
	if err != nil {
		return nil, err
	}
	p.flags = configfile.Hash(described)
	p.current.Store(first)
	p.file = configfile.New(configfile.Config{Flag: CAFlag, Path: o.CAFile, Logger: cfg.Logger,
		Apply: func(_ context.Context, data []byte) error { return p.replace(data) }}, first.data)
	if len(o.AllowedNames) == 0 {
		cfg.Logger.Warn("every client certificate of these CAs is an authenticating proxy's, and its owner names any user: list the proxies' common names",
			"file", o.CAFile, "flag", namesFlag)
	}
	return p, nil
}

type headers = headerrequest.StaticStringSlice

// replace puts another content of the file into effect.
func (p *Proxy) replace(data []byte) error {
	next, err := parse(data, p.cfg.OwnCAs)
	if err != nil {
		return err
	}
	p.current.Store(next)
	return nil
}

// Run looks for a changed file until the context ends.
func (p *Proxy) Run(ctx context.Context) error { return p.file.Run(ctx) }

// States returns the state of the file and of the other flags; none for a nil Proxy.
func (p *Proxy) States() []configfile.State {
	if p == nil {
		return nil
	}
	return []configfile.State{p.file.State(), {Flag: "--requestheader-…", Hash: p.flags}}
}

// CAs returns the CAs of proxies in PEM; a nil Proxy has none.
func (p *Proxy) CAs() []byte {
	if p == nil {
		return nil
	}
	return p.current.Load().pem
}

// Headers returns the headers to remove from each request: a client's must reach no extension API
// server. It is nil for a nil Proxy.
func (p *Proxy) Headers() *authenticatorfactory.RequestHeaderConfig {
	if p == nil {
		return nil
	}
	o := p.cfg.Options
	return &authenticatorfactory.RequestHeaderConfig{UsernameHeaders: headers(o.UserHeaders), UIDHeaders: headers(o.UIDHeaders),
		GroupHeaders: headers(o.GroupHeaders), ExtraHeaderPrefixes: headers(o.ExtraPrefixes)}
}

// AuthenticateRequest implements authenticator.Request. A certificate alone names no user. Errors
// count only where nothing else authenticates the request: a user with a certificate of its own
// stays that user, whatever headers it sends.
func (p *Proxy) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 || !p.namesUser(r.Header) {
		return nil, false, nil
	}
	leaf := r.TLS.PeerCertificates[0]
	if err := p.verify(leaf, r.TLS.PeerCertificates[1:]); err != nil {
		return nil, false, err
	}
	response, ok, err := p.headers.AuthenticateRequest(r)
	if !ok || err != nil {
		return nil, false, err
	}
	if err := p.cfg.Check(response.User); err != nil {
		return nil, false, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	return response, true, nil
}

func (p *Proxy) namesUser(h http.Header) bool {
	return slices.ContainsFunc(p.cfg.Options.UserHeaders, func(name string) bool { return h.Get(name) != "" })
}

// verify returns an error unless the certificate is a proxy's.
func (p *Proxy) verify(leaf *x509.Certificate, others []*x509.Certificate) error {
	if names := p.cfg.Options.AllowedNames; len(names) > 0 && !slices.Contains(names, leaf.Subject.CommonName) {
		return fmt.Errorf("the client certificate %q is not an authenticating proxy's: %s does not list the name", leaf.Subject.CommonName, namesFlag)
	}
	options := x509.VerifyOptions{Roots: p.current.Load().pool, Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	for _, other := range others {
		options.Intermediates.AddCert(other)
	}
	if _, err := leaf.Verify(options); err != nil {
		return fmt.Errorf("the client certificate %q is not an authenticating proxy's by %s: %w", leaf.Subject.CommonName, CAFlag, err)
	}
	return nil
}
