package pki

import (
	"bytes"
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// External is an operator's CA: an intermediate that a company's CA has signed, or a root. It signs
// as a built-in CA does.
//
//	company's root ── other intermediates ── the cluster's CA ── certificates of the cluster
//	└──────────── sent along, never trusted ────────────────┘
//
// Invariant: a cluster trusts the key of its own CA alone, never a CA above it. The company's root
// and its other intermediates can sign any name and any group. So the cluster's anchor is a
// certificate of that key, signed by the key itself. It has the limits of the company's
// certificate, and ends with the first of the chain. Clients that trust the company's root only get
// the chain from the servers, as Bundle.Bridges.
type External struct {
	ca    *Authority
	given []*x509.Certificate // as in the file: the cluster's CA, and then each one's issuer
}

// builtInName begins the common name of every CA that a cluster makes itself.
const builtInName = "barque-ca "

// External reports whether the CA was brought by an operator.
func (a *Authority) External() bool {
	return !strings.HasPrefix(a.cert.Subject.CommonName, builtInName)
}

// External reports whether an operator has brought the CA that issues.
func (b Bundle) External() bool {
	cas, err := b.authorities()
	return err == nil && cas[0].External()
}

// BundleForm is the form of bundles of this version. Earlier versions would lose unknown fields.
const (
	BundleForm   = SeparateForm
	SeparateForm = 2 // with CAs for purposes beside the clients'
	ExternalForm = 1 // with Bundle.Origin
)

// Form is the least form of versions that handle the bundle; 0 is handled by all.
func (b Bundle) Form() int {
	switch {
	case b.Separate():
		return SeparateForm
	case b.HasExternal():
		return ExternalForm
	}
	return 0
}

// HasExternal reports whether an operator has brought one of the CAs.
func (b Bundle) HasExternal() bool {
	cas, err := b.authorities()
	return err == nil && slices.ContainsFunc(cas, (*Authority).External)
}

// ReadExternal reads a CA from files, and checks it as ParseExternal does. The key's file must be
// readable by its owner only.
func ReadExternal(chainFile, keyFile string, now time.Time) (*External, error) {
	chainPEM, err := os.ReadFile(chainFile)
	if err != nil {
		return nil, err
	}
	info, err := os.Stat(keyFile)
	if err != nil {
		return nil, err
	}
	if mode := info.Mode().Perm(); mode&0o077 != 0 {
		return nil,
			unfit(
				"%s, which has the CA's key, can be used by others than its owner (mode %04o): run 'chmod 600 %[1]s', and make another CA if others may have read it", keyFile, mode)
	}
	keyPEM, err := os.ReadFile(keyFile)
	if err != nil {
		return nil, err
	}
	ca, err := ParseExternal(chainPEM, keyPEM, now)
	if err != nil {
		return nil, fmt.Errorf("%s, %s: %w", chainFile, keyFile, err)
	}
	return ca, nil
}

// ParseExternal reads the chain and the key of a CA, PEM, or returns ErrUnfit with the reason.
func ParseExternal(chainPEM, keyPEM []byte, now time.Time) (*External, error) {
	given, err := parseChain(chainPEM)
	if err != nil {
		return nil, err
	}
	key, err := parseExternalKey(keyPEM)
	if err != nil {
		return nil, err
	}
	if err := checkChain(given, key, now); err != nil {
		return nil, err
	}
	ca, err := anchor(given, key)
	if err != nil {
		return nil, err
	}
	return &External{ca, given}, nil
}

// Authority is the anchor of the cluster that has this CA, with its key.
func (e *External) Authority() *Authority { return e.ca }

// Along returns the certificates from the CA to the company's root, PEM. The root is left out: it
// has no use for a client that does not trust it already.
func (e *External) Along() []string {
	var out []string
	for _, cert := range e.given {
		if !selfSigned(cert) {
			out = append(out, string(encodePEM("CERTIFICATE", cert.Raw)))
		}
	}
	return out
}

// Issues returns ErrUnfit unless certificates of all these kinds verify by the company's root, and
// by the anchor.
func (e *External) Issues(kinds []Request, now time.Time) error {
	key, err := GenerateKey()
	if err != nil {
		return err
	}
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	for i, cert := range e.given {
		if i == len(e.given)-1 {
			roots.AddCert(cert)
		} else {
			between.AddCert(cert)
		}
	}
	for _, kind := range kinds {
		for _, name := range append([]string{""}, kind.Names...) { // each alone, so that the error has it
			if kind.Names = nil; name != "" {
				kind.Names = []string{name}
			}
			text, err := e.ca.Issue(kind, key.Public(), now)
			if err != nil {
				return err
			}
			leaf, err := parseCertificate(text)
			if err != nil {
				return err
			}
			for _, by := range []x509.VerifyOptions{{Roots: roots, Intermediates: between}, {Roots: e.ca.Pool()}} {
				by.CurrentTime = now
				if err := verifyUsages(leaf, by, leaf.ExtKeyUsage); err != nil {
					return unfitTrial(kind, err)
				}
			}
		}
	}
	return nil
}

func unfitTrial(kind Request, err error) error {
	var invalid x509.CertificateInvalidError
	if errors.As(err, &invalid) && invalid.Reason == x509.CANotAuthorizedForThisName && len(kind.Names) > 0 {
		return unfit(
			"its name constraints, or those of a CA above it, forbid %q, for which the cluster issues certificates: have a CA signed without them", kind.Names[0])
	}
	return unfit("a certificate that it issues to %q (%s) does not verify: %v", kind.CommonName,
		strings.Join(kind.Names, ", "), err)
}

func verifyUsages(leaf *x509.Certificate, by x509.VerifyOptions, usages []x509.ExtKeyUsage) error {
	if len(usages) == 0 {
		usages = []x509.ExtKeyUsage{x509.ExtKeyUsageAny}
	}
	for _, usage := range usages {
		by.KeyUsages = []x509.ExtKeyUsage{usage}
		if _, err := leaf.Verify(by); err != nil {
			return err
		}
	}
	return nil
}

// issueChecked is Issue with checkIssued.
func (a *Authority) issueChecked(r Request, public crypto.PublicKey, now time.Time) ([]byte, error) {
	out, err := a.Issue(r, public, now)
	if err == nil {
		err = a.checkIssued(out)
	}
	if err != nil {
		return nil, err
	}
	return out, nil
}

// checkIssued returns ErrUnfit for a certificate of this CA that its constraints forbid. A built-in
// CA has none.
func (a *Authority) checkIssued(text []byte) error {
	if !a.External() {
		return nil
	}
	leaf, err := parseCertificate(text)
	if err != nil {
		return err
	}
	if leaf.NotBefore.After(a.cert.NotAfter) {
		return nil // the server starts to allow a replacement, as with a built-in CA that has ended
	}
	if err := verifyUsages(leaf, x509.VerifyOptions{Roots: a.Pool(), CurrentTime: leaf.NotBefore},
		leaf.ExtKeyUsage); err != nil {
		var names []string
		for _, ip := range leaf.IPAddresses {
			names = append(names, ip.String())
		}
		return fmt.Errorf("the CA %q may not issue a certificate to %q (%s): %w", a.cert.Subject.CommonName,
			leaf.Subject.CommonName,
			strings.Join(append(names, leaf.DNSNames...), ", "), err)
	}
	return nil
}

// anchor makes the certificate by which a cluster trusts the CA. A root is its own anchor.
func anchor(given []*x509.Certificate, key crypto.Signer) (*Authority, error) {
	own := given[0]
	if selfSigned(own) {
		return newAuthority(own.Raw, key)
	}
	serial, err := serialNumber()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial, RawSubject: own.RawSubject, SubjectKeyId: own.SubjectKeyId,
		NotBefore: own.NotBefore, NotAfter: own.NotAfter,
		KeyUsage: own.KeyUsage, IsCA: true, BasicConstraintsValid: true,
	}
	constrain(template, own)
	for i, cert := range given {
		if cert.NotBefore.After(template.NotBefore) {
			template.NotBefore = cert.NotBefore
		}
		template.NotAfter = earlier(template.NotAfter, cert.NotAfter)
		if left := cert.MaxPathLen - i; cert.MaxPathLen >= 0 &&
			(template.MaxPathLen < 0 || left < template.MaxPathLen) {
			template.MaxPathLen, template.MaxPathLenZero = left, left == 0
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("sign the CA's certificate for this cluster: %w", err)
	}
	return newAuthority(der, key)
}

// constrain gives a CA's certificate the constraints of another one.
func constrain(template, of *x509.Certificate) {
	template.ExtKeyUsage, template.UnknownExtKeyUsage = of.ExtKeyUsage, of.UnknownExtKeyUsage
	template.MaxPathLen, template.MaxPathLenZero = of.MaxPathLen, of.MaxPathLenZero
	for _, e := range of.Extensions {
		if e.Id.Equal(nameConstraints) {
			template.ExtraExtensions = append(template.ExtraExtensions, e)
		}
	}
}

var nameConstraints = asn1.ObjectIdentifier{2, 5, 29, 30}

// bridges reports whether this CA signs a certificate of the next one. An operator's CA signs only
// another CA of the operator: a CA that the company does not know would be trusted wherever the
// company's root is. Its path length may forbid it.
func (a *Authority) bridges(next *Authority) bool {
	return (a.cert.MaxPathLen != 0 || !a.cert.MaxPathLenZero) && (!a.External() || next.External())
}

// NewExternalBundle is the first one of a cluster with an external CA.
func NewExternalBundle(e *External) Bundle {
	b := NewBundle(e.ca)
	b.Bridges, b.Origin = e.Along(), newOrigin()
	return b
}

// originLength is the length of an origin in characters.
const originLength = 10

func newOrigin() string { return rand.Text()[:originLength] }

// belongs returns ErrOtherCluster for a certificate that another cluster has issued. A certificate
// without an origin is older, or on request.
func (b Bundle) belongs(cert *x509.Certificate) error {
	if its := OriginOf(cert); its != "" && b.Origin != "" && its != b.Origin {
		return fmt.Errorf("%w: the certificate of %q has the origin %s, this one %s", ErrOtherCluster,
			cert.Subject.CommonName, its, b.Origin)
	}
	return nil
}

// ErrOtherCluster is returned for a certificate of another cluster that has the same CA.
var ErrOtherCluster = errors.New(
	"another cluster with the same CA has issued the certificate, such as one that a server without its data has begun")

// SameCluster is for tls.Config.VerifyConnection, after the verification of the chain: it returns
// ErrOtherCluster for a peer of another cluster with the same CA.
func (t *Trust) SameCluster(state tls.ConnectionState) error {
	if len(state.PeerCertificates) == 0 {
		return nil
	}
	return t.Bundle().belongs(state.PeerCertificates[0])
}

// BeginExternal is Begin with a CA that an operator brings.
func (b Bundle) BeginExternal(e *External, account crypto.PublicKey, now time.Time) (Bundle, error) {
	out, err := b.Begin(e.ca, account, now)
	if err != nil {
		return b, err
	}
	if b.Knows(e.ca.Digest()) {
		return b, unfit("its key is, or was, that of a CA of this cluster: have a CA with a new key signed")
	}
	cas, err := b.authorities()
	if err != nil {
		return b, err
	}
	along := e.Along()
	// A cluster that was rebuilt from an earlier backup gets the same origin again: its agents may
	// know the origin from the first time.
	out.Origin = cmp.Or(b.Origin, cas[0].Digest()[:originLength])
	out.Bridges = append(along,
		slices.DeleteFunc(slices.Clone(b.Bridges), func(text string) bool { return slices.Contains(along, text) })...)
	return out, nil
}

// path returns the certificates that lead from the CA to anchors elsewhere: to the company's root,
// and to this cluster's earlier CAs. Each one comes before its issuer.
func (a *Authority) path(along []*x509.Certificate) (out []*x509.Certificate) {
	var follow func(is func(*x509.Certificate) bool)
	follow = func(is func(*x509.Certificate) bool) {
		for _, cert := range along {
			if !is(cert) || slices.Contains(out, cert) || selfSigned(cert) {
				continue // a self-signed certificate leads to no other
			}
			out = append(out, cert)
			follow(func(other *x509.Certificate) bool {
				return bytes.Equal(other.RawSubject, cert.RawIssuer) && cert.CheckSignatureFrom(other) == nil
			})
		}
	}
	follow(func(cert *x509.Certificate) bool { return SamePublicKey(a.cert.PublicKey, cert.PublicKey) })
	return out
}

// along parses the bridges, and leaves out unreadable ones.
func (b Bundle) along() (out []*x509.Certificate) {
	for _, text := range b.Bridges {
		if cert, err := parseCertificate([]byte(text)); err == nil {
			out = append(out, cert)
		}
	}
	return out
}

// useful returns the bridges that lead from the CAs and have not ended.
func (b Bundle) useful(now time.Time) (out []string) {
	cas, err := b.authorities()
	if err != nil {
		return b.Bridges // the error is reported where the CAs are needed
	}
	along := b.along()
	for _, cert := range along {
		if !now.After(cert.NotAfter) &&
			slices.ContainsFunc(cas, func(ca *Authority) bool { return slices.Contains(ca.path(along), cert) }) {
			out = append(out, string(encodePEM("CERTIFICATE", cert.Raw)))
		}
	}
	return out
}

func selfSigned(cert *x509.Certificate) bool {
	return bytes.Equal(cert.RawSubject, cert.RawIssuer) && cert.CheckSignatureFrom(cert) == nil
}

// parseExternalKey reads a key in the forms of openssl: PKCS #8, or the older ones.
func parseExternalKey(keyPEM []byte) (crypto.Signer, error) {
	block, rest := pem.Decode(keyPEM)
	if block != nil && block.Type == "EC PARAMETERS" {
		block, rest = pem.Decode(rest)
	}
	if block == nil {
		return nil, unfit("the file of the key has no private key in PEM")
	}
	if more, _ := pem.Decode(rest); more != nil {
		return nil,
			unfit("the file of the key has more than the key, a PEM block %q: leave the key alone in it", more.Type)
	}
	var key any
	var err error
	switch {
	case block.Type == "ENCRYPTED PRIVATE KEY" || block.Headers["DEK-Info"] != "":
		return nil,
			unfit(
				"its key is encrypted with a passphrase, which nobody types at a start of a server: decrypt it with `openssl pkey -in FILE -out NEW`, in a directory of root's")
	case block.Type == "PRIVATE KEY":
		key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
	case block.Type == "EC PRIVATE KEY":
		key, err = x509.ParseECPrivateKey(block.Bytes)
	case block.Type == "RSA PRIVATE KEY":
		key, err = x509.ParsePKCS1PrivateKey(block.Bytes)
	case block.Type == "CERTIFICATE":
		return nil, unfit("the file of the key has a certificate: the two files may have been swapped")
	default:
		return nil,
			unfit("the file of the key has a PEM block %q: want \"PRIVATE KEY\" or \"EC PRIVATE KEY\"", block.Type)
	}
	if err != nil {
		return nil, unfit("its key cannot be read: %v", err)
	}
	switch key := key.(type) {
	case *ecdsa.PrivateKey:
		if size := key.Curve.Params().BitSize; size != 256 && size != 384 {
			return nil,
				unfit(
					"its key is of the curve %s: want P-256 or P-384, for which `openssl ecparam -genkey -name prime256v1` makes a key", key.Curve.Params().Name)
		}
		return key, nil
	case *rsa.PrivateKey:
		return nil,
			unfit(
				"its key is RSA, with %d bits: want ECDSA, P-256 or P-384. Members of gossip prove themselves with the CA's signature, and one of RSA is too long for that. "+
					"Make a key with `openssl ecparam -genkey -name prime256v1` and have it signed; the CAs above may be RSA",
				key.N.BitLen())
	default:
		return nil, unfit("its key is of type %T: want ECDSA, P-256 or P-384", key)
	}
}
