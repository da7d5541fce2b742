package pki

import (
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Trust has the current CAs: the trusted ones, and the issuing one. All that verifies or issues
// uses it, so that a CA can be exchanged during operation.
type Trust struct {
	mu      sync.Mutex
	now     *trusted
	changed chan struct{} // closed and replaced at every change

	revision atomic.Pointer[func() uint64] // see Dated
}

// trusted is the state of a Trust at one moment. It is immutable.
type trusted struct {
	bundle  Bundle
	clients circle
	own     map[Purpose]*circle // other purposes, if they have CAs of their own
	bridges []byte              // PEM; they follow certificates of the clients' CA

	accounts accounts
}

// NewTrust returns the CAs of the bundle. keys are this machine's keys; an agent has none.
func NewTrust(b Bundle, keys ...crypto.Signer) (*Trust, error) {
	now, err := newTrusted(b, keys)
	if err != nil {
		return nil, err
	}
	return &Trust{now: now, changed: make(chan struct{})}, nil
}

// TrustOf is the Trust in a single CA.
func TrustOf(ca *Authority) *Trust {
	t := &trusted{bundle: NewBundle(ca), clients: circle{[]*Authority{ca}, ca.Pool()}}
	return &Trust{now: t, changed: make(chan struct{})}
}

func newTrusted(b Bundle, keys []crypto.Signer) (*trusted, error) {
	if len(b.CAs) == 0 {
		return nil, errNoCA
	}
	clients, err := newCircle(b.CAs, keys)
	if err != nil {
		return nil, err
	}
	t := &trusted{bundle: b, clients: *clients, own: map[Purpose]*circle{}}
	for _, p := range ownPurposes {
		texts := *b.list(p.purpose)
		if len(texts) == 0 {
			continue
		}
		if t.own[p.purpose], err = newCircle(texts, keys); err != nil {
			return nil, fmt.Errorf("%s: %w", p.purpose, err)
		}
	}
	for _, bridge := range t.clients.cas[0].path(b.along()) {
		t.bridges = append(t.bridges, encodePEM("CERTIFICATE", bridge.Raw)...)
	}
	t.accounts, err = b.accounts(keys)
	return t, err
}

// Set takes another bundle, unless it is older than the present one.
func (t *Trust) Set(b Bundle, keys ...crypto.Signer) error {
	next, err := newTrusted(b, keys)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if b.Generation < t.now.bundle.Generation {
		return fmt.Errorf("the CAs of generation %d are older than those of %d, which this node has", b.Generation,
			t.now.bundle.Generation)
	}
	t.now = next
	close(t.changed)
	t.changed = make(chan struct{})
	return nil
}

func (t *Trust) current() *trusted {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.now
}

// Changed returns a channel that is closed at the next change.
func (t *Trust) Changed() <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.changed
}

// Bundle returns the trusted CAs.
func (t *Trust) Bundle() Bundle { return t.current().bundle }

// PEM returns the certificates of all trusted CAs, the issuing one first.
func (t *Trust) PEM() []byte { return t.current().bundle.PEM() }

// Pool returns the trusted CAs; the same pool until they change.
func (t *Trust) Pool() *x509.CertPool { return t.current().clients.pool }

// Issuer returns the CA that issues.
func (t *Trust) Issuer() *Authority { return t.current().clients.cas[0] }

// CAs returns all trusted CAs; the first one issues.
func (t *Trust) CAs() []*Authority { return slices.Clone(t.current().clients.cas) }

// Digest is the digest of the issuing CA.
func (t *Trust) Digest() string { return t.Issuer().Digest() }

// Issue is Authority.Issue by the issuing CA, with the bridges after the certificate. The
// certificate must verify by that CA, whose constraints may forbid it. While the next CA is an
// External CA, the certificate must verify by that one too: a node without such a certificate stops
// the exchange while it can be undone.
func (t *Trust) Issue(r Request, public crypto.PublicKey, now time.Time) ([]byte, error) {
	out, err := t.IssueNow(r, public, now)
	if err != nil {
		return nil, err
	}
	is := t.current()
	if next := is.clients.newest(is.bundle.Step); is.bundle.Step == Spreading && next.key != nil && next.External() {
		if _, err := next.issueChecked(r, public, now); err != nil {
			return nil,
				fmt.Errorf("%w: %w; the exchange does not go on: give it up with `barque cert rotate --ca --undo`",
					ErrNextCA, err)
		}
	}
	return out, nil
}

// ErrNextCA is returned by Issue for a certificate that the next CA, while it is being spread, may
// not issue.
var ErrNextCA = errors.New("the next CA may not issue the certificate")

// IssueNow is Issue without the check against the next CA.
func (t *Trust) IssueNow(r Request, public crypto.PublicKey, now time.Time) ([]byte, error) {
	is := t.current()
	r.Revision, r.origin = max(r.Revision, t.dating()), is.bundle.Origin
	out, err := is.clients.cas[0].issueChecked(r, public, now)
	if err != nil {
		return nil, err
	}
	return append(out, is.bridges...), nil
}

// SignCredential is Authority.SignCredential by the CA that issues.
func (t *Trust) SignCredential(c Credential) ([]byte, error) { return t.Issuer().SignCredential(c) }

// Seal is Authority.Seal by the CA that issues.
func (t *Trust) Seal(purpose string, plain, bound []byte) ([]byte, error) {
	return t.Issuer().Seal(purpose, plain, bound)
}

// Open is Authority.Open by the trusted CA whose key this machine has.
func (t *Trust) Open(purpose string, sealed, bound []byte) (plain []byte, err error) {
	err = errNoKey
	for _, ca := range t.current().clients.cas {
		if ca.key == nil {
			continue
		}
		if plain, err = ca.Open(purpose, sealed, bound); err == nil {
			return plain, nil
		}
	}
	return nil, err
}

// Verify checks that a trusted CA issued a certificate for the usage, and that it is valid at that
// time. others are the certificates that its holder sends along. A certificate of another cluster
// with the same CA does not count.
func (t *Trust) Verify(
	cert *x509.Certificate, others []*x509.Certificate, usage x509.ExtKeyUsage, now time.Time,
) error {
	return t.VerifyFor(Clients, cert, others, usage, now)
}

func verify(
	roots *x509.CertPool, cert *x509.Certificate, others []*x509.Certificate, usage x509.ExtKeyUsage, now time.Time,
) error {
	options := x509.VerifyOptions{Roots: roots, Intermediates: x509.NewCertPool(), CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{usage}}
	for _, other := range others {
		options.Intermediates.AddCert(other)
	}
	_, err := cert.Verify(options)
	return err
}

// VerifyCredential is Authority.VerifyCredential by any trusted CA.
func (t *Trust) VerifyCredential(data []byte, now time.Time) (c Credential, err error) {
	for _, ca := range t.current().clients.cas {
		if c, err = ca.VerifyCredential(data, now); err == nil || errors.Is(err, ErrCredentialEnded) {
			return c, err
		}
	}
	return c, err
}

// Issued reports whether the issuing CA has signed the certificate.
func (t *Trust) Issued(cert *x509.Certificate) bool {
	ca := t.Issuer()
	return cert.CheckSignatureFrom(ca.cert) == nil
}

// CanIssue reports whether this machine has the key of the issuing CA.
func (t *Trust) CanIssue() bool { return t.Issuer().key != nil }

// Digests returns the digests of the trusted CAs, the issuing one first.
func (b Bundle) Digests() ([]string, error) {
	cas, err := b.authorities()
	var out []string
	for _, ca := range cas {
		out = append(out, ca.Digest())
	}
	return out, err
}

// Knows reports whether the CA with the digest is, or was, one of this cluster's, for any purpose.
func (b Bundle) Knows(digest string) bool {
	believed, err := b.everyDigest()
	return err == nil && slices.Contains(believed, digest) || slices.Contains(b.Former, digest)
}

// Advance returns the bundle of the next step, once all nodes have completed this one. It needs the
// key of the issuing CA if a CA is exchanged.
func (t *Trust) Advance(now time.Time) (Bundle, error) {
	is := t.current()
	switch is.bundle.Step {
	case Spreading:
		if !is.bundle.ExchangesCA() {
			return is.bundle.signByNew(), nil
		}
		var bridge []byte
		if issuer, next := is.clients.cas[0], is.clients.newest(Spreading); issuer.bridges(next) {
			var err error
			if bridge, err = issuer.bridge(next, now); err != nil {
				return is.bundle, err
			}
		}
		return is.bundle.issueByNew(bridge, now), nil
	case Issuing:
		return is.bundle.retire(now)
	default:
		return is.bundle, fmt.Errorf("%w: none is under way", ErrStep)
	}
}

// ForEach returns a function that makes a TLS configuration for the current pool. It is the same
// one until the CAs change, so that sessions are resumed and connections kept.
func (t *Trust) ForEach(make func(roots *x509.CertPool) *tls.Config) func() *tls.Config {
	var mu sync.Mutex
	var of *x509.CertPool
	var config *tls.Config
	return func() *tls.Config {
		pool := t.Pool()
		mu.Lock()
		defer mu.Unlock()
		if pool != of {
			of, config = pool, make(pool)
		}
		return config
	}
}
