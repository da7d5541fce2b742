package join

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/barque/barque/pki"
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

// IsServerOf is IsServer for the cluster of a trust: another cluster may have the same CA.
func IsServerOf(trust *pki.Trust) func(tls.ConnectionState) error {
	return func(state tls.ConnectionState) error { return cmp.Or(IsServer(state), trust.SameCluster(state)) }
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
	subject := state.PeerCertificates[0].Subject
	if subject.CommonName != pki.NodeUser+member {
		return fmt.Errorf("another machine answers at the address of node %q: its certificate is of %q", member,
			subject.CommonName)
	}
	if !slices.Contains(subject.Organization, pki.NodesGroup) {
		return fmt.Errorf("the certificate of %q at the address of node %q is not of the organization %s",
			subject.CommonName, member, pki.NodesGroup)
	}
	return nil
}

// IsForeignKubelet returns an error unless the peer is the kubelet of the foreign node. An upstream
// kubelet has the subject of a member's kubelet, which the signer kubernetes.io/kubelet-serving
// demands. A program that serves for many nodes, as KWOK does, has their names as DNS names in a
// certificate without an identity of this cluster. An address in a certificate proves nothing.
func IsForeignKubelet(foreign string, state tls.ConnectionState) error {
	if len(state.PeerCertificates) == 0 {
		return errNoCertificate
	}
	cert := state.PeerCertificates[0]
	names := append([]string{cert.Subject.CommonName}, cert.Subject.Organization...)
	if slices.ContainsFunc(names, reserved) {
		return IsKubelet(foreign, state)
	}
	if !slices.ContainsFunc(cert.DNSNames, func(name string) bool { return strings.EqualFold(name, foreign) }) {
		return fmt.Errorf(
			"the certificate of %q at the address of node %q does not name the node: it must be of %q, or have the DNS name %q",
			cert.Subject.CommonName, foreign, pki.NodeUser+foreign, foreign)
	}
	return nil
}

// reserved reports whether a name in a certificate is an identity of the cluster.
func reserved(name string) bool {
	return strings.HasPrefix(name, "system:") || strings.HasPrefix(name, "barque:")
}
