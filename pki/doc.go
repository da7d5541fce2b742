// Package pki is the cluster's certificate authority and everything that is issued by it.
//
// A cluster has one CA, or two while it is exchanged for a new one. Its key lives on every server
// (mode 0600, in the data directory's pki folder) and never on an agent. The CA signs all X.509
// certificates, the compact credentials that gossip members prove themselves with, and its digest
// is what a join token pins. The key that signs the tokens of service accounts is kept beside it,
// and exchanged together with it.
//
//	Authority  one CA
//	Bundle     which CAs a cluster believes, and which one issues; public, with a generation
//	Trust      the Bundle of the moment, with the keys that this machine has
//	Identity   a key with the certificate of the moment
//	Upkeep     renews what ends, in time
//
// What always holds:
//   - a file with a private key is never readable by anybody but its owner, at no moment;
//   - certificates in use are renewed in place, before they end, without a restart: whoever serves
//     or dials asks an Identity for the certificate of the moment, and a Trust for the CAs;
//   - nothing here opens a connection; who carries a signing request to a server is the caller's.
package pki
