package pki

import (
	"crypto"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"net/netip"
	"time"
)

const (
	// caLifetime is how long a new CA certificate is valid.
	caLifetime = 10 * 365 * 24 * time.Hour
	// LeafLifetime is how long an issued certificate is valid unless the request says otherwise.
	LeafLifetime = 365 * 24 * time.Hour
	// clockAllowance is how far certificates are dated back, for machines whose clock is a little
	// behind. A certificate of a short life is dated back by at most a twelfth of it.
	clockAllowance = 5 * time.Minute
)

// Authority is a certificate authority: a certificate, and its key where this machine may sign.
type Authority struct {
	cert *x509.Certificate
	pem  []byte
	key  crypto.Signer // nil on a machine that may only verify
}

// NewAuthority makes a new CA. Its subject has the cluster's ID, so that a person can distinguish
// the CAs of two clusters.
func NewAuthority(clusterID string, now time.Time) (*Authority, error) {
	return newSelfSigned(builtInName+clusterID, now)
}

// ParseAuthority reads a CA from PEM. keyPEM may be empty: such an Authority verifies only.
func ParseAuthority(certPEM, keyPEM []byte) (*Authority, error) {
	der, err := decodePEM(certPEM, "CERTIFICATE")
	if err != nil {
		return nil, fmt.Errorf("CA certificate: %w", err)
	}
	if len(keyPEM) == 0 {
		return newAuthority(der, nil)
	}
	key, err := ParseKey(keyPEM)
	if err != nil {
		return nil, fmt.Errorf("CA key: %w", err)
	}
	return newAuthority(der, key)
}

func newAuthority(der []byte, key crypto.Signer) (*Authority, error) {
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parse the CA certificate: %w", err)
	}
	if !cert.IsCA {
		return nil, fmt.Errorf("certificate %q is not a CA's", cert.Subject.CommonName)
	}
	if key != nil && !SamePublicKey(key.Public(), cert.PublicKey) {
		return nil, errors.New("the CA key does not belong to the CA certificate")
	}
	return &Authority{cert: cert, pem: encodePEM("CERTIFICATE", der), key: key}, nil
}

// PEM returns the CA certificate.
func (a *Authority) PEM() []byte { return append([]byte(nil), a.pem...) }

// KeyPEM returns the CA key, for handing it to a server that joins.
func (a *Authority) KeyPEM() ([]byte, error) {
	if a.key == nil {
		return nil, errNoKey
	}
	return MarshalKey(a.key)
}

// Key returns the CA key, for storing it.
func (a *Authority) Key() (crypto.Signer, error) {
	if a.key == nil {
		return nil, errNoKey
	}
	return a.key, nil
}

// Pool returns a pool that holds just this CA.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// Digest is the SHA-256 of the CA's public key, in hexadecimal; join tokens pin it. It stays the
// same when the CA certificate is renewed with the same key.
func (a *Authority) Digest() string {
	sum := sha256.Sum256(a.cert.RawSubjectPublicKeyInfo)
	return hex.EncodeToString(sum[:])
}

// Certificate is the CA's own.
func (a *Authority) Certificate() *x509.Certificate { return a.cert }

var errNoKey = errors.New("this machine holds no CA key: only servers can issue certificates")

// Usage is the use of a certificate.
type Usage int

const (
	Client Usage = 1 << iota // the holder dials
	Server                   // the holder listens
)

// Request describes a certificate to be issued.
type Request struct {
	CommonName   string   // the user's name where the API server reads the certificate
	Organization []string // its groups
	Names        []string // DNS names and IP addresses
	Usage        Usage
	Lifetime     time.Duration // LeafLifetime when 0
	Holder       string        // ID of the server in the store; empty for others
	// Revision is the store's revision at the time of issue, or a later one. A dated Trust raises
	// it to its own.
	Revision uint64
	// origin is Bundle.Origin. A Trust sets its own.
	origin string
}

// Issue signs a certificate for the public key. The result is PEM.
func (a *Authority) Issue(r Request, public crypto.PublicKey, now time.Time) ([]byte, error) {
	if a.key == nil {
		return nil, errNoKey
	}
	serial, err := serialNumber()
	if err != nil {
		return nil, err
	}
	if r.Lifetime == 0 {
		r.Lifetime = LeafLifetime
	}
	template := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: r.CommonName, Organization: r.Organization},
		NotBefore:             a.since(now.Add(-min(clockAllowance, r.Lifetime/12)), now),
		NotAfter:              earlier(now.Add(r.Lifetime), a.cert.NotAfter),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
	}
	if template.ExtraExtensions, err = ownExtensions(r.Revision, r.Holder, r.origin); err != nil {
		return nil, fmt.Errorf("certificate of %q: %w", r.CommonName, err)
	}
	if r.Usage&Client != 0 {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageClientAuth)
	}
	if r.Usage&Server != 0 {
		template.ExtKeyUsage = append(template.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	for _, name := range r.Names {
		if ip, err := netip.ParseAddr(name); err == nil {
			template.IPAddresses = append(template.IPAddresses, ip.Unmap().AsSlice())
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, public, a.key)
	if err != nil {
		return nil, fmt.Errorf("sign the certificate of %q: %w", r.CommonName, err)
	}
	return encodePEM("CERTIFICATE", der), nil
}

// ParseRequest reads a signing request in PEM and verifies its signature by its own key. Only its
// public key is to be trusted: the caller decides on the subject.
func ParseRequest(csrPEM []byte) (*x509.CertificateRequest, error) {
	der, err := decodePEM(csrPEM, "CERTIFICATE REQUEST")
	if err != nil {
		return nil, fmt.Errorf("the signing request: %w", err)
	}
	csr, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return nil, fmt.Errorf("the signing request: %w", err)
	}
	if err := csr.CheckSignature(); err != nil {
		return nil, fmt.Errorf("the signing request is not signed by its own key: %w", err)
	}
	return csr, nil
}

// since returns the time, or the start of the CA if that is later, because no certificate verifies
// before it.
func (a *Authority) since(t, now time.Time) time.Time {
	if t.Before(a.cert.NotBefore) && !now.Before(a.cert.NotBefore) {
		return a.cert.NotBefore
	}
	return t
}

// Verify checks that this CA issued a certificate for the usage and that it is valid at that time.
// others are the certificates that its holder sends along.
func (a *Authority) Verify(
	cert *x509.Certificate, others []*x509.Certificate, usage x509.ExtKeyUsage, now time.Time,
) error {
	return verify(a.Pool(), cert, others, usage, now)
}

func serialNumber() (*big.Int, error) {
	// RFC 5280 section 4.1.2.2 allows 20 octets; 16 random ones are never repeated in practice.
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 128))
	if err != nil {
		return nil, fmt.Errorf("draw a serial number: %w", err)
	}
	return serial, nil
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// SamePublicKey reports whether two public keys are the same.
func SamePublicKey(a, b crypto.PublicKey) bool {
	comparable, ok := a.(interface{ Equal(crypto.PublicKey) bool })
	return ok && comparable.Equal(b)
}
