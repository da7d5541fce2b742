// Package pki is the cluster's certificate authority and everything that it issues.
//
// A cluster has one CA, or two while it is exchanged for a new one. Its key lives on every server
// (mode 0600, in the data directory's pki folder) and never on an agent. The CA signs all X.509
// certificates and the compact credentials of gossip members. A join token pins its digest. The key
// that signs the tokens of service accounts is kept beside it, and exchanged together with it.
//
//	Authority  one CA
//	Bundle     the CAs that a cluster trusts, and the issuing one; public, with a generation
//	Trust      the current Bundle, with the keys that this machine has
//	Identity   a key with its current certificate
//	Upkeep     renews certificates before they expire
//
// Invariants:
//   - a file with a private key is never readable by any user but its owner, at no moment;
//   - certificates in use are renewed in place, before they expire, without a restart: servers and
//     clients ask an Identity for the current certificate, and a Trust for the CAs;
//   - nothing here opens a connection; the caller carries a signing request to a server.
package pki
