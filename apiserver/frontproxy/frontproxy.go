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
	"strings"
	"sync"
	"sync/atomic"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/authenticatorfactory"
	"k8s.io/apiserver/pkg/authentication/request/headerrequest"
	"k8s.io/apiserver/pkg/authentication/user"

	"github.com/barque/barque/apiserver/configfile"
	"github.com/barque/barque/internal/clientcert"
	"github.com/barque/barque/internal/cutoff"
)

// rememberedProxies is the number of cached certificates of proxies.
const rememberedProxies = 256

// ErrRefused is the error of a request in which a proxy names a user that it may not name. No other
// credentials of that request count, because they are the proxy's.
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
	known   *clientcert.Memory
	file    *configfile.File
	flags   string // the hash of the flags beside the file

	mu      sync.Mutex
	changed chan struct{} // closed when other CAs count
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
	p := &Proxy{cfg: cfg, known: clientcert.NewMemory(rememberedProxies), changed: make(chan struct{}),
		headers: headerrequest.NewDynamic(headers(o.UserHeaders), headers(o.UIDHeaders), headers(o.GroupHeaders),
			headers(o.ExtraPrefixes))}
	described, err := json.Marshal(o.lists())
	if err != nil {
		return nil, err
	}
	p.flags = configfile.Hash(described)
	p.current.Store(first)
	p.file = configfile.New(configfile.Config{Flag: CAFlag, Path: o.CAFile, Logger: cfg.Logger, Meanwhile: p.meanwhile,
		Apply: func(_ context.Context, data []byte) error { return p.replace(data) }}, first.data)
	if len(o.AllowedNames) == 0 {
		cfg.Logger.Warn(
			"every client certificate of these CAs is an authenticating proxy's, and its owner names any user: list the proxies' common names",
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
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.changed)
	p.changed = make(chan struct{})
	return nil
}

// meanwhile names the CAs that count while the content of the file cannot. An empty or missing file
// is a failed distribution more often than a decision, and would log out all users of all proxies.
func (p *Proxy) meanwhile() string {
	return fmt.Sprintf(
		"the proxies of the CAs before still log users in: %s; to end that, put another CA into the file, or restart the servers without %s",
		strings.Join(p.current.Load().names, ", "), CAFlag)
}

// Changed returns a channel that is closed when other CAs count.
func (p *Proxy) Changed() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.changed
}

// Believed returns the CAs of proxies at this moment.
func (p *Proxy) Believed() (x509.VerifyOptions, bool) { return p.current.Load().options, true }

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
	return &authenticatorfactory.RequestHeaderConfig{UsernameHeaders: headers(o.UserHeaders),
		UIDHeaders:   headers(o.UIDHeaders),
		GroupHeaders: headers(o.GroupHeaders), ExtraHeaderPrefixes: headers(o.ExtraPrefixes)}
}

// AuthenticateRequest implements authenticator.Request. A certificate alone names no user. Errors
// count only if no other authenticator accepts the request: a user with a certificate of its own
// stays that user, with any headers.
func (p *Proxy) AuthenticateRequest(r *http.Request) (*authenticator.Response, bool, error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 || !p.namesUser(r.Header) {
		return nil, false, nil
	}
	if err := p.verify(r.TLS.PeerCertificates); err != nil {
		return nil, false, err
	}
	response, ok, err := p.headers.AuthenticateRequest(r)
	if !ok || err != nil {
		return nil, false, err
	}
	if err := p.cfg.Check(response.User); err != nil {
		return nil, false, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	cutoff.Proven(r.Context(), cutoff.ByProxy)
	return response, true, nil
}

func (p *Proxy) namesUser(h http.Header) bool {
	return slices.ContainsFunc(p.cfg.Options.UserHeaders, func(name string) bool { return h.Get(name) != "" })
}

// Sent reports whether a proxy has sent the request, in the name of any user or of none. A nil
// Proxy has sent none.
func (p *Proxy) Sent(r *http.Request) bool {
	return p != nil && r.TLS != nil && len(r.TLS.PeerCertificates) > 0 && p.verify(r.TLS.PeerCertificates) == nil
}

// verify returns an error unless the certificate is a proxy's.
func (p *Proxy) verify(sent []*x509.Certificate) error {
	name := sent[0].Subject.CommonName
	if names := p.cfg.Options.AllowedNames; len(names) > 0 && !slices.Contains(names, name) {
		return fmt.Errorf("the client certificate %q is not an authenticating proxy's: %s does not list the name", name,
			namesFlag)
	}
	if err := p.known.Verify(sent, p.current.Load().options); err != nil {
		return fmt.Errorf("the client certificate %q is not an authenticating proxy's by %s: %w", name, CAFlag, err)
	}
	return nil
}
