package pki

import "crypto/x509"

// NodeUser begins the common name of a node, and NodesGroup is the organization of all nodes.
const (
	NodeUser   = "system:node:"
	NodesGroup = "system:nodes"
)

// KeyOf returns the digest of a certificate's key, see DigestOfKey.
func KeyOf(cert *x509.Certificate) string { return DigestOfKey(cert.RawSubjectPublicKeyInfo) }
