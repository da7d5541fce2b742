package pki

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/x509"
	"encoding/asn1"
	"encoding/pem"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// ErrUnfit is returned, with the reason, if a CA that an operator brings cannot be a cluster's.
var ErrUnfit = errors.New("this CA cannot be the cluster's")

func unfit(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrUnfit, fmt.Sprintf(format, args...))
}

// shortestExternal is for how long an external CA has to be good. All certificates end with it.
const shortestExternal = 30 * 24 * time.Hour

// shortestRSA is in bits, of CAs above the cluster's.
const shortestRSA = 2048

var keyUsage = asn1.ObjectIdentifier{2, 5, 29, 15}

// longestChain bounds what is sent with each certificate.
const longestChain = 5

// parseChain reads the certificates of a CA and of those above it.
func parseChain(chainPEM []byte) (chain []*x509.Certificate, err error) {
	for data := chainPEM; ; {
		block, rest := pem.Decode(data)
		if block == nil {
			break
		}
		data = rest
		switch {
		case strings.HasSuffix(block.Type, "PRIVATE KEY"):
			return nil,
				unfit(
					"the file of the chain has a private key: it is for certificates, and the key belongs in the other file")
		case block.Type != "CERTIFICATE":
			return nil, unfit("the file of the chain has a PEM block %q: want certificates only", block.Type)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, unfit("certificate %d of the chain cannot be read: %v", len(chain)+1, err)
		}
		if slices.ContainsFunc(chain, cert.Equal) {
			return nil, unfit("%s is in the chain twice", nth(len(chain), cert))
		}
		chain = append(chain, cert)
	}
	switch {
	case len(chain) == 0:
		return nil,
			unfit("the file of the chain has no certificate in PEM: convert one in DER with `openssl x509 -inform der`")
	case len(chain) > longestChain:
		return nil,
			unfit(
				"the chain has %d certificates, and %d are allowed: give the cluster's CA, and those that lead to one root", len(chain), longestChain)
	}
	return chain, nil
}

// nth names a certificate of the chain.
func nth(i int, cert *x509.Certificate) string {
	return fmt.Sprintf("certificate %d of the chain (%s)", i+1, cert.Subject)
}

func checkChain(chain []*x509.Certificate, key crypto.Signer, now time.Time) error {
	if !SamePublicKey(key.Public(), chain[0].PublicKey) {
		for i, cert := range chain {
			if SamePublicKey(key.Public(), cert.PublicKey) {
				return unfit("the key belongs to %s: begin the chain with that one, then its issuer", nth(i, cert))
			}
		}
		return unfit("the key does not belong to %s", nth(0, chain[0]))
	}
	for i, cert := range chain {
		if err := checkLink(i, cert, now); err != nil {
			return err
		}
		if i > 0 {
			if err := checkOrder(chain, i); err != nil {
				return err
			}
		}
	}
	if strings.HasPrefix(chain[0].Subject.CommonName, builtInName) {
		return unfit("its common name %q begins as those of built-in CAs do: have one signed with a name of its own",
			chain[0].Subject.CommonName)
	}
	return nil
}

// checkLink checks one certificate of the chain.
func checkLink(i int, cert *x509.Certificate, now time.Time) error {
	is := nth(i, cert)
	switch {
	case !cert.BasicConstraintsValid || !cert.IsCA:
		return unfit("%s is not that of a CA: it needs the basic constraint CA:TRUE", is)
	// many a root has no key usage
	case cert.KeyUsage&x509.KeyUsageCertSign == 0 && (i == 0 || extension(cert, keyUsage) != nil):
		return unfit("%s may not sign certificates: it needs the key usage keyCertSign", is)
	case cert.MaxPathLen >= 0 && cert.MaxPathLen < i:
		return unfit(
			"%s allows %d CAs below it (its path length), and there are %d: have its issuer allow more, or the cluster's CA signed by a CA that may", is, cert.MaxPathLen, i)
	case now.Before(cert.NotBefore):
		return unfit("%s is not valid before %s: wait, or look at this machine's clock", is, date(cert.NotBefore))
	case now.After(cert.NotAfter):
		return unfit("%s has ended at %s: have a new one signed", is, date(cert.NotAfter))
	case cert.NotAfter.Sub(now) < shortestExternal:
		return unfit(
			"%s ends at %s, and all certificates of the cluster end with it: want %d days at least, better years", is,
			date(cert.NotAfter), int(shortestExternal.Hours()/24))
	case len(cert.UnhandledCriticalExtensions) > 0:
		return unfit("%s has the critical extension %s, which clients do not know: have one signed without it", is,
			cert.UnhandledCriticalExtensions[0])
	}
	if len(cert.ExtKeyUsage)+len(cert.UnknownExtKeyUsage) > 0 &&
		!slices.Contains(cert.ExtKeyUsage, x509.ExtKeyUsageAny) {
		if !slices.Contains(cert.ExtKeyUsage, x509.ExtKeyUsageServerAuth) ||
			!slices.Contains(cert.ExtKeyUsage, x509.ExtKeyUsageClientAuth) {
			return unfit(
				"%s limits the extended key usage, and lacks serverAuth or clientAuth: it needs both, or no limit", is)
		}
	}
	switch key := cert.PublicKey.(type) {
	case *rsa.PublicKey:
		if bits := key.N.BitLen(); bits < shortestRSA {
			return unfit("%s has an RSA key of %d bits: want %d at least", is, bits, shortestRSA)
		}
	case *ecdsa.PublicKey:
		if bits := key.Curve.Params().BitSize; bits < 256 {
			return unfit("%s has an ECDSA key of %d bits: want 256 at least", is, bits)
		}
	}
	return nil
}

// checkOrder checks that a certificate has signed the one before it.
func checkOrder(chain []*x509.Certificate, i int) error {
	issuer, before := chain[i], chain[i-1]
	switch {
	case selfSigned(before):
		return unfit("%s is a root, and more follows it: end the chain with it", nth(i-1, before))
	case !bytes.Equal(before.RawIssuer, issuer.RawSubject):
		return unfit("%s was signed by %s, and %s follows: order the chain so that each one's issuer comes next",
			nth(i-1, before), before.Issuer, issuer.Subject)
	}
	err := before.CheckSignatureFrom(issuer)
	var insecure x509.InsecureAlgorithmError
	if errors.As(err, &insecure) {
		return unfit("the signature of %s is %s, which nobody believes any more: have it signed with SHA-256",
			nth(i-1, before), before.SignatureAlgorithm)
	}
	if err != nil {
		return unfit(
			"%s has the name of the issuer of %s, and another key: give the certificate of the CA that has signed it (%v)", nth(i, issuer), nth(i-1, before), err)
	}
	return nil
}

func date(t time.Time) string { return t.UTC().Format(time.RFC3339) }
