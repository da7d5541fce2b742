// Package identity keeps keys with their current certificates, and renews the certificates in time.
//
//	Identity  a key with its current certificate, which every handshake gets from it
//	Upkeep    renews certificates before they end, all together, without a restart
//
// It owns the time of a renewal, and the file of a certificate. An Issuer makes the certificate: it
// has the CA, or asks a server for the signature.
package identity
