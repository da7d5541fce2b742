package pki

import (
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/hex"
	"fmt"
	"math"
	"slices"
)

// Extensions of certificates that the cluster's CA issues, below the arc of onRequest. Programs
// that do not know them ignore them.
var (
	// issuedAt has the revision of the store at which the certificate was issued. It orders
	// certificates and revocations without a clock.
	issuedAt = append(slices.Clone(onRequest), 1)
	// holder has the ID of the server whose certificate it is, as the store knows it. A server that
	// joins again has another ID.
	holder = append(slices.Clone(onRequest), 2)
	// origin has Bundle.Origin. Another cluster that has the same CA has another one.
	origin = append(slices.Clone(onRequest), 3)
)

// Dated makes later certificates of t have the store's revision.
func (t *Trust) Dated(revision func() uint64) { t.revision.Store(&revision) }

// dating returns the revision for a certificate that is issued now; 0 without a store.
func (t *Trust) dating() uint64 {
	if revision := t.revision.Load(); revision != nil {
		return (*revision)()
	}
	return 0
}

// RevisionOf returns the revision of the store at which a certificate was issued. It is 0 for a
// certificate of a version before 29 November 2026, or from before the store was open.
func RevisionOf(cert *x509.Certificate) uint64 {
	var revision int64
	if value := extension(cert, issuedAt); value != nil {
		if rest, err := asn1.Unmarshal(value, &revision); err != nil || len(rest) > 0 || revision < 0 {
			return 0
		}
	}
	return uint64(revision)
}

// HolderOf returns the ID of the server whose certificate it is; empty for other certificates.
func HolderOf(cert *x509.Certificate) string {
	return textOf(cert, holder)
}

// OriginOf returns the Bundle.Origin of the cluster that has issued the certificate; empty without
// one.
func OriginOf(cert *x509.Certificate) string { return textOf(cert, origin) }

func textOf(cert *x509.Certificate, id asn1.ObjectIdentifier) (text string) {
	if value := extension(cert, id); value != nil {
		if rest, err := asn1.Unmarshal(value, &text); err != nil || len(rest) > 0 {
			return ""
		}
	}
	return text
}

// DigestOfKey returns the digest of a public key in its encoding of PKIX, in hexadecimal.
func DigestOfKey(key []byte) string {
	sum := sha256.Sum256(key)
	return hex.EncodeToString(sum[:])
}

func extension(cert *x509.Certificate, id asn1.ObjectIdentifier) []byte {
	for _, e := range cert.Extensions {
		if e.Id.Equal(id) {
			return e.Value
		}
	}
	return nil
}

// ownExtensions are the extensions for a revision, a holder and an origin.
func ownExtensions(revision uint64, id, from string) (out []pkix.Extension, err error) {
	if revision > 0 {
		value, err := asn1.Marshal(int64(min(revision, math.MaxInt64)))
		if err != nil {
			return nil, fmt.Errorf("the revision %d: %w", revision, err)
		}
		out = append(out, pkix.Extension{Id: issuedAt, Value: value})
	}
	for _, text := range []struct {
		id    asn1.ObjectIdentifier
		value string
	}{{holder, id}, {origin, from}} {
		if text.value == "" {
			continue
		}
		value, err := asn1.MarshalWithParams(text.value, "utf8")
		if err != nil {
			return nil, fmt.Errorf("%q in an extension: %w", text.value, err)
		}
		out = append(out, pkix.Extension{Id: text.id, Value: value})
	}
	return out, nil
}

// OfNewest reports whether the newest CA of a purpose, the issuing or the next one, has signed the
// certificate.
func (t *Trust) OfNewest(cert *x509.Certificate) bool {
	is := t.current()
	return slices.ContainsFunc(Purposes(), func(p Purpose) bool {
		return cert.CheckSignatureFrom(is.circle(p).newest(is.bundle.Step).cert) == nil
	})
}
