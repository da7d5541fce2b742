package pki

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Step is the step of the exchange of a cluster's CA.
//
//	settled ──begin──▶ spreading ──all trust the new CA────▶ issuing ──all certificates are its──▶ settled
//	   ▲                   │
//	   └──────undo─────────┘
type Step string

const (
	Settled   Step = ""          // one CA, which issues
	Spreading Step = "spreading" // the old CA issues, the new one is being spread
	Issuing   Step = "issuing"   // the new CA issues, the old one is still trusted
)

// Bundle has the trusted CAs of a cluster, with the issuing one first. It is public; the keys are
// kept elsewhere.
type Bundle struct {
	// Generation rises by one with each change. A node never returns to a lower one.
	Generation uint64 `json:"generation"`
	Step       Step   `json:"step,omitempty"`
	// CAs are the certificates of all trusted CAs, PEM; the first one issues.
	CAs []string `json:"cas"`
	// Peers and FrontProxy are the CAs for these purposes, in the same form. A cluster that began
	// with an earlier version has none until it exchanges the CA: see For. During that exchange the
	// clients' previous CA is one of them.
	Peers      []string `json:"peers,omitempty"`
	FrontProxy []string `json:"frontProxy,omitempty"`
	// Bridges are certificates of this cluster's CAs that another CA has signed. They are sent
	// along with issued certificates, for clients that trust the other CA only. The other CA may be
	// the previous one: an old copy of a kubeconfig trusts the servers until that CA ends. Or it is
	// a CA above an External CA. Bridges are never trusted themselves.
	Bridges []string `json:"bridges,omitempty"`
	// Former are the digests of the CAs that were trusted before, those of undone exchanges among
	// them. A token that pins one was made for this cluster, and admits no machine any more.
	Former []string `json:"former,omitempty"`
	// Origin identifies the cluster, and clusters that continue it after a recovery. Certificates
	// have it, because another cluster may have the same External CA. A cluster that never had an
	// External CA has none.
	Origin string `json:"origin,omitempty"`
	// AccountKeys are the public keys of service accounts' tokens, PEM. The first key signs and all
	// verify. They are exchanged together with the CA, or alone. FormerAccountKeys verify for a
	// limited time. Keys of undone exchanges are among them; they have signed nothing and verify
	// nothing.
	AccountKeys       []string    `json:"accountKeys,omitempty"`
	FormerAccountKeys []FormerKey `json:"formerAccountKeys,omitempty"`
	// Since is the start of the exchange.
	Since time.Time `json:"since,omitzero"`
	// Forced means that the exchange does not wait for nodes without a sign of life.
	Forced bool `json:"forced,omitempty"`
}

// NewBundle returns the first bundle of a cluster.
func NewBundle(ca *Authority) Bundle {
	return Bundle{Generation: 1, CAs: []string{string(ca.pem)}}
}

// ErrStep is returned when the exchange is at a step that does not allow the request.
var ErrStep = errors.New("the exchange is at another step")

// ExchangesCA reports whether the current exchange is one of the CA, and not of the key of service
// accounts alone.
func (b Bundle) ExchangesCA() bool { return b.Step != Settled && len(b.CAs) > 1 }

// Begin returns the bundle with a new CA beside the issuing one, and a new key of service accounts.
// They sign nothing yet.
func (b Bundle) Begin(next *Authority, account crypto.PublicKey, now time.Time) (Bundle, error) {
	out, err := b.BeginAccounts(account, now)
	if err == nil {
		out.CAs = append(slices.Clone(b.CAs), string(next.pem))
	}
	return out, err
}

// BeginAccounts returns the bundle with a new key of service accounts beside the signing one. The
// CA stays.
func (b Bundle) BeginAccounts(account crypto.PublicKey, now time.Time) (Bundle, error) {
	if b.Step != Settled {
		return b, fmt.Errorf("%w: one is under way since %s (%s)", ErrStep, b.Since.UTC().Format(time.RFC3339), b.Step)
	}
	text, err := marshalPublic(account)
	if err != nil {
		return b, err
	}
	out := b.advance(Spreading)
	out.AccountKeys = append(slices.Clone(b.AccountKeys), text)
	out.Since = now.UTC().Truncate(time.Second)
	return out, nil
}

// Undo returns the bundle without the new CA and key, which have signed nothing yet.
func (b Bundle) Undo() (Bundle, error) {
	switch b.Step {
	case Spreading:
	case Issuing:
		return b, fmt.Errorf("%w: the new keys sign already; the exchange can go on only", ErrStep)
	default:
		return b, fmt.Errorf("%w: none is under way", ErrStep)
	}
	out := b.advance(Settled)
	out.Since, out.Forced = time.Time{}, false
	if b.ExchangesCA() {
		var err error
		if out, err = out.change(withoutLast); err != nil {
			return b, err
		}
	}
	if n := len(b.AccountKeys); n > 0 {
		out.AccountKeys = slices.Clip(b.AccountKeys[:n-1])
		out.FormerAccountKeys = append(slices.Clone(b.FormerAccountKeys), FormerKey{Key: b.AccountKeys[n-1]})
	}
	out.Bridges = out.useful(time.Time{})
	return out, nil
}

// Force returns the bundle with an exchange that does not wait for nodes without a sign of life.
func (b Bundle) Force() (Bundle, error) {
	if b.Step == Settled {
		return b, fmt.Errorf("%w: none is under way", ErrStep)
	}
	out := b.advance(b.Step)
	out.Forced = true
	return out, nil
}

// signByNew makes the new key of service accounts the one that signs.
func (b Bundle) signByNew() Bundle {
	out := b.advance(Issuing)
	out.AccountKeys = lastFirst(b.AccountKeys)
	return out
}

// issueByNew makes the new CA the issuing one, too. bridge is its certificate, signed by the
// previous CA; nil if that CA may not sign CAs. The chain to a company's root comes before the
// bridge: some clients try the first chain only.
func (b Bundle) issueByNew(bridge []byte, now time.Time) Bundle {
	out := b.signByNew()
	for _, p := range Purposes() {
		if cas := out.list(p); len(*cas) > 1 {
			*cas = lastFirst(*cas)
		}
	}
	if bridge != nil {
		at := 0
		if next, err := ParseAuthority([]byte(out.CAs[0]), nil); err == nil {
			at = len(next.path(b.along()))
		}
		out.Bridges = slices.Insert(slices.Clone(b.Bridges), min(at, len(b.Bridges)), string(bridge))
	}
	out.Bridges = out.useful(now)
	return out
}

func lastFirst(all []string) []string {
	last := max(0, len(all)-1)
	return slices.Concat(all[last:], all[:last])
}

// withoutLast drops the CA of an exchange that is undone.
func withoutLast(cas []string) []string {
	last := max(1, len(cas)-1)
	return cas[:last:last]
}

// retire drops all CAs but the issuing ones. The former keys of service accounts verify for a
// limited time.
func (b Bundle) retire(now time.Time) (Bundle, error) {
	out, err := b.advance(Settled).change(func(cas []string) []string { return cas[:1:1] })
	if err != nil {
		return b, err
	}
	out.Since, out.Forced = time.Time{}, false
	out.FormerAccountKeys = b.formerAccountKeys(now)
	out.AccountKeys = slices.Clip(b.AccountKeys[:min(1, len(b.AccountKeys))])
	out.Bridges = out.useful(now)
	return out, nil
}

func (b Bundle) advance(to Step) Bundle {
	b.Generation++
	b.Step = to
	return b
}

// PEM returns the certificates of all trusted CAs, the issuing one first.
func (b Bundle) PEM() []byte {
	var out bytes.Buffer
	for _, ca := range b.CAs {
		out.WriteString(ca)
	}
	return out.Bytes()
}

var errNoCA = errors.New("the bundle holds no CA")

// authorities parses the CAs, without keys.
func (b Bundle) authorities() ([]*Authority, error) {
	if len(b.CAs) == 0 {
		return nil, errNoCA
	}
	var out []*Authority
	for _, text := range b.CAs {
		ca, err := ParseAuthority([]byte(text), nil)
		if err != nil {
			return nil, err
		}
		out = append(out, ca)
	}
	return out, nil
}

// NextAuthority makes the CA that follows the given ones. Its name has the time, so that a person
// can distinguish it from the CA before.
func NextAuthority(clusterID string, now time.Time) (*Authority, error) {
	return CAOf(Clients, clusterID, now)
}

// bridge signs the next CA's certificate with this CA, for clients that know this CA only. It has
// all constraints of the next one: a chain through the bridge must be valid without it too.
func (a *Authority) bridge(next *Authority, now time.Time) ([]byte, error) {
	if a.key == nil {
		return nil, errNoKey
	}
	serial, err := serialNumber()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		RawSubject:            next.cert.RawSubject,
		SubjectKeyId:          next.cert.SubjectKeyId,
		NotBefore:             next.since(a.since(now.Add(-clockAllowance), now), now),
		NotAfter:              earlier(a.cert.NotAfter, next.cert.NotAfter),
		KeyUsage:              next.cert.KeyUsage,
		IsCA:                  true,
		BasicConstraintsValid: true,
	}
	constrain(template, next.cert)
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, next.cert.PublicKey, a.key)
	if err != nil {
		return nil, fmt.Errorf("sign the next CA by this one: %w", err)
	}
	return encodePEM("CERTIFICATE", der), nil
}

func newSelfSigned(name string, now time.Time) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate the CA key: %w", err)
	}
	serial, err := serialNumber()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             now.Add(-clockAllowance),
		NotAfter:              now.Add(caLifetime),
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		IsCA:                  true,
		BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("sign the CA certificate: %w", err)
	}
	return newAuthority(der, key)
}

func parseCertificate(data []byte) (*x509.Certificate, error) {
	der, err := decodePEM(data, "CERTIFICATE")
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

// SplitPEM returns the DER of all certificates in the text.
func SplitPEM(data []byte) ([][]byte, error) {
	var out [][]byte
	for {
		block, rest := pem.Decode(data)
		if block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("found a PEM block %q where %q belongs", block.Type, "CERTIFICATE")
		}
		out, data = append(out, block.Bytes), rest
	}
	if len(out) == 0 {
		return nil, errors.New("no PEM block \"CERTIFICATE\" found")
	}
	return out, nil
}
