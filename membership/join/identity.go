package join

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// A certificate of the cluster's CA has addresses, and an address changes hands: a machine may get
// that of a dead one. So a caller that means one node also requires its name in the certificate.
// These checks come after the verification of the chain, and say nothing of it.

// errNoCertificate is returned for a peer without a certificate.
var errNoCertificate = errors.New("the peer shows no certificate")

// IsServer returns an error unless the peer is a server of the cluster. The certificates of the API
// name no server: each of them serves the same.
func IsServer(state tls.ConnectionState) error {
	if len(state.PeerCertificates) == 0 {
		return errNoCertificate
	}
	return ofServer(state.PeerCertificates[0])
}

func ofServer(cert *x509.Certificate) error {
	if !slices.Contains(cert.Subject.Organization, ServersOrganization) {
		return fmt.Errorf("%q is a node of this cluster, but no server", cert.Subject.CommonName)
	}
	return nil
}

// IsKubelet returns an error unless the peer is the kubelet of the member. Every kubelet of Barque
// serves with a certificate of NodeServing.
func IsKubelet(member string, state tls.ConnectionState) error {
	if len(state.PeerCertificates) == 0 {
		return errNoCertificate
	}
	cert := state.PeerCertificates[0]
	if cert.Subject.CommonName != nodeUserPrefix+member {
		return fmt.Errorf("another machine answers at the address of node %q: its certificate is of %q", member, cert.Subject.CommonName)
	}
	return nil
}

// MayBeKubelet returns an error if the peer is certainly not the kubelet of the foreign node. It
// may have a certificate without the name of a node: one process may serve for many nodes, as KWOK
// does. A certificate with the identity of somebody else in this cluster is refused.
func MayBeKubelet(foreign string, state tls.ConnectionState) error {
	if len(state.PeerCertificates) == 0 {
		return errNoCertificate
	}
	subject := state.PeerCertificates[0].Subject
	names := append([]string{subject.CommonName}, subject.Organization...)
	if !slices.ContainsFunc(names, reserved) {
		return nil
	}
	return IsKubelet(foreign, state)
}

// reserved reports whether a name in a certificate is an identity of the cluster.
func reserved(name string) bool {
	return strings.HasPrefix(name, "system:") || strings.HasPrefix(name, "barque:")
}
