package pki

import (
	"bytes"
	"cmp"
	"crypto"
	"crypto/x509"
	"fmt"
	"slices"
	"time"
)

// Purpose is a kind of certificates with CAs of its own. A certificate of one purpose is worthless
// where another is required.
type Purpose string

const (
	// Clients is for people, nodes and programs at the API and at kubelets, and for the serving
	// sides of both: Bundle.CAs. An operator may bring this CA, and requests for certificates are
	// signed by it.
	Clients Purpose = "clients"
	// Peers is for servers at the store of the others, and where they ask each other for keys.
	Peers Purpose = "peers"
	// FrontProxy is for the API servers at extension API servers, which accept any user that its
	// holder names.
	FrontProxy Purpose = "front-proxy"
)

// ownPurposes are the purposes that may have CAs beside the clients', with the uses of their keys.
var ownPurposes = []struct {
	purpose Purpose
	use     KeyUse
}{{Peers, PeersKey}, {FrontProxy, FrontProxyKey}}

// Purposes returns all purposes, the clients' first.
func Purposes() []Purpose { return []Purpose{Clients, Peers, FrontProxy} }

// list returns the CAs of a purpose.
func (b *Bundle) list(p Purpose) *[]string {
	switch p {
	case Peers:
		return &b.Peers
	case FrontProxy:
		return &b.FrontProxy
	}
	return &b.CAs
}

// For returns the certificates of the CAs that are trusted for a purpose, PEM; the first one
// issues. Without own CAs the clients' CAs serve the purpose.
func (b Bundle) For(p Purpose) []string {
	if own := *b.list(p); len(own) > 0 {
		return own
	}
	return b.CAs
}

// Separate reports whether a purpose beside the clients' has CAs of its own. It is true from the
// start of the exchange that adds them.
func (b Bundle) Separate() bool { return len(b.Peers)+len(b.FrontProxy) > 0 }

// CAOf makes a built-in CA for a purpose. Its name has the purpose and the time, so that a person
// can distinguish the CAs of a cluster.
func CAOf(p Purpose, clusterID string, now time.Time) (*Authority, error) {
	name := builtInName
	if p != Clients {
		name += string(p) + " "
	}
	return newSelfSigned(name+clusterID+" "+now.UTC().Format("20060102T150405Z"), now)
}

// WithCA returns the bundle of a new cluster with a separate CA for a purpose.
func (b Bundle) WithCA(p Purpose, ca *Authority) Bundle {
	*b.list(p) = []string{string(ca.pem)}
	return b
}

// BeginFor returns the bundle with a new CA for another purpose than the clients'. It follows
// Begin. If the CA is the next one for clients, the purpose ends without a CA of its own.
func (b Bundle) BeginFor(p Purpose, next *Authority) (Bundle, error) {
	if b.Step != Spreading || !b.ExchangesCA() {
		return b, fmt.Errorf("%w: it is not at the beginning", ErrStep)
	}
	own := *b.list(p)
	if len(own) == 0 { // the clients' CA has served it until now
		own = b.CAs[:1]
	}
	*b.list(p) = append(slices.Clone(own), string(next.pem))
	return b, nil
}

// change applies a change to the CAs of each purpose that has own ones. CAs that are then trusted
// for no purpose become former.
func (b Bundle) change(change func(cas []string) []string) (Bundle, error) {
	before, err := b.everyDigest()
	if err != nil {
		return b, err
	}
	for _, p := range Purposes() {
		if own := b.list(p); len(*own) > 0 {
			*own = change(*own)
		}
	}
	for _, own := range ownPurposes { // the clients' CA is not an own CA of another purpose
		if cas := b.list(own.purpose); len(*cas) == 1 && (*cas)[0] == b.CAs[0] {
			*cas = nil
		}
	}
	after, err := b.everyDigest()
	if err != nil {
		return b, err
	}
	former := slices.Clone(b.Former)
	for _, digest := range before {
		if !slices.Contains(after, digest) {
			former = append(former, digest)
		}
	}
	b.Former = former
	return b, nil
}

// everyDigest returns the digests of the CAs of all purposes, each one once.
func (b Bundle) everyDigest() (all []string, err error) {
	for _, p := range Purposes() {
		digests, err := digestsOf(*b.list(p))
		if err != nil {
			return nil, err
		}
		for _, digest := range digests {
			if !slices.Contains(all, digest) {
				all = append(all, digest)
			}
		}
	}
	return all, nil
}

func digestsOf(cas []string) (digests []string, err error) {
	for _, text := range cas {
		ca, err := ParseAuthority([]byte(text), nil)
		if err != nil {
			return nil, err
		}
		digests = append(digests, ca.Digest())
	}
	return digests, nil
}

// circle are the CAs of a purpose.
type circle struct {
	cas  []*Authority // the first one issues; it has its key on a server
	pool *x509.CertPool
}

func newCircle(texts []string, keys []crypto.Signer) (*circle, error) {
	c := &circle{pool: x509.NewCertPool()}
	for _, text := range texts {
		ca, err := ParseAuthority([]byte(text), nil)
		if err != nil {
			return nil, err
		}
		c.pool.AddCert(ca.cert)
		for _, key := range keys {
			if SamePublicKey(key.Public(), ca.cert.PublicKey) {
				ca.key = key
			}
		}
		c.cas = append(c.cas, ca)
	}
	return c, nil
}

// newest is the issuing CA, or the next one.
func (c *circle) newest(step Step) *Authority {
	if step == Spreading {
		return c.cas[len(c.cas)-1]
	}
	return c.cas[0]
}

// circle returns the CAs of a purpose; without own ones, the clients'.
func (t *trusted) circle(p Purpose) *circle {
	if own := t.own[p]; own != nil {
		return own
	}
	return &t.clients
}

// CAsFor returns all trusted CAs of a purpose; the first one issues.
func (t *Trust) CAsFor(p Purpose) []*Authority { return slices.Clone(t.current().circle(p).cas) }

// EveryCA returns the CAs of all purposes, each one once.
func (t *Trust) EveryCA() []*Authority {
	is := t.current()
	all := slices.Clone(is.clients.cas)
	for _, p := range ownPurposes {
		for _, ca := range is.circle(p.purpose).cas {
			if !slices.ContainsFunc(all, func(known *Authority) bool { return bytes.Equal(known.pem, ca.pem) }) {
				all = append(all, ca)
			}
		}
	}
	return all
}

// PoolFor returns the trusted CAs of a purpose; the same pool until they change.
func (t *Trust) PoolFor(p Purpose) *x509.CertPool { return t.current().circle(p).pool }

// PEMFor returns the certificates of all trusted CAs of a purpose, the issuing one first.
func (t *Trust) PEMFor(p Purpose) []byte {
	var out []byte
	for _, ca := range t.current().circle(p).cas {
		out = append(out, ca.pem...)
	}
	return out
}

// EveryPEM returns the certificates of the CAs of all purposes.
func (t *Trust) EveryPEM() []byte {
	var out []byte
	for _, ca := range t.EveryCA() {
		out = append(out, ca.pem...)
	}
	return out
}

// VerifyFor is Verify by the CAs of a purpose.
func (t *Trust) VerifyFor(
	p Purpose, cert *x509.Certificate, others []*x509.Certificate, usage x509.ExtKeyUsage, now time.Time,
) error {
	is := t.current()
	if err := verify(is.circle(p).pool, cert, others, usage, now); err != nil {
		return err
	}
	return is.bundle.belongs(cert)
}

// IssueFor is Issue by the CA of a purpose. No bridge follows a certificate of a purpose with own
// CAs: a bridge to the clients' CA would count where that purpose is required.
func (t *Trust) IssueFor(p Purpose, r Request, public crypto.PublicKey, now time.Time) ([]byte, error) {
	is := t.current()
	own := is.own[p]
	if own == nil {
		return t.Issue(r, public, now)
	}
	r.Revision, r.origin = max(r.Revision, t.dating()), is.bundle.Origin
	return own.cas[0].issueChecked(r, public, now)
}

// Vouch returns a certificate of a purpose's next CA (PEM) for the key that IssueFor certifies; nil
// unless the next CA is being spread. Its holder sends it along. A peer that knows the next CA then
// need not trust the present one, whose key may be stolen. Other peers ignore it.
func (t *Trust) Vouch(p Purpose, r Request, public crypto.PublicKey, now time.Time) ([]byte, error) {
	is := t.current()
	c := is.circle(p)
	next := c.newest(is.bundle.Step)
	if next == c.cas[0] {
		return nil, nil
	}
	if next.key == nil {
		return nil, errNoKey
	}
	r.Revision, r.origin = max(r.Revision, t.dating()), is.bundle.Origin
	return next.issueChecked(r, public, now)
}

// maxVouchers bounds the signatures that are checked among a peer's additional certificates. A
// server sends one voucher.
const maxVouchers = 4

// Vouched reports whether the newest CA of a purpose, the issuing or the next one, has certified a
// certificate's holder. It has signed the certificate, or another that the holder sends along, for
// the same key, name and groups.
func (t *Trust) Vouched(p Purpose, cert *x509.Certificate, others []*x509.Certificate, now time.Time) bool {
	is := t.current()
	newest := is.circle(p).newest(is.bundle.Step).cert
	checked := 0
	for _, c := range append([]*x509.Certificate{cert}, others...) {
		if !bytes.Equal(c.RawSubjectPublicKeyInfo, cert.RawSubjectPublicKeyInfo) ||
			!bytes.Equal(c.RawSubject, cert.RawSubject) ||
			SignedOnRequest(c) || now.Before(c.NotBefore) || now.After(c.NotAfter) {
			continue
		}
		if c.CheckSignatureFrom(newest) == nil {
			return true
		}
		if checked++; checked == maxVouchers {
			return false
		}
	}
	return false
}

// NewestFor returns the digest of the newest CA of a purpose: the issuing one, or the next one.
func (b Bundle) NewestFor(p Purpose) (string, error) {
	cas := b.For(p)
	if b.Step == Spreading {
		cas = lastFirst(cas)
	}
	digests, err := digestsOf(cas[:min(1, len(cas))])
	if err != nil || len(digests) == 0 {
		return "", cmp.Or(err, errNoCA)
	}
	return digests[0], nil
}
