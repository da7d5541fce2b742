// Package pki is the cluster's certificate authority, with all keys and certificates that it
// issues. Package identity, below it, holds issued certificates and renews them.
//
// A cluster has a CA for each purpose, or two during an exchange. Their keys are on every server
// (mode 0600, in the data directory's pki folder) and never on an agent. The CA for clients signs
// X.509 certificates and the compact credentials of gossip members. A join token pins its digest.
// The CAs of the other purposes sign one certificate of each server. A cluster that began with an
// earlier version has the CA for clients alone, until it exchanges it. The key that signs the
// tokens of service accounts is kept beside them, and exchanged with them.
//
//	Authority  one CA
//	Purpose    the use of a CA's certificates, and the servers that accept these
//	Bundle     the CAs that a cluster trusts, and the issuing one; public, with a generation
//	Trust      the current Bundle, with this machine's keys
//
// Invariants:
//   - a file with a private key is at every moment unreadable for other users than its owner;
//   - certificates in use are renewed in place, before they expire, without a restart. Servers and
//     clients ask an identity.Identity for the current certificate, and a Trust for the CAs;
//   - nothing here opens a connection; the caller carries a signing request to a server.
package pki
