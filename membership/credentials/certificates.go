package credentials

import (
	"crypto/x509"
	"errors"
	"slices"
	"time"

	"github.com/barque/barque/pki"
	"github.com/barque/barque/pki/identity"
)

// CertificateInfo is one certificate, or a credential for gossip.
type CertificateInfo struct {
	Name        string    `json:"name"` // what it is for
	Subject     string    `json:"subject"`
	Issuer      string    `json:"issuer"`
	Serial      string    `json:"serial,omitempty"`
	Names       []string  `json:"names,omitempty"` // DNS names and addresses
	NotBefore   time.Time `json:"notBefore,omitzero"`
	NotAfter    time.Time `json:"notAfter"`
	SecondsLeft int64     `json:"secondsLeft"` // negative: it has ended
	RenewAt     time.Time `json:"renewAt,omitzero"`
	File        string    `json:"file,omitempty"` // empty: in memory only
	Warning     string    `json:"warning,omitempty"`
}

// NodeCertificates are the certificates of one node. For an agent that does not answer this is its
// gossip credential, which is public. The credential is issued with its certificates and has the
// same lifetime.
type NodeCertificates struct {
	Node         string            `json:"node"`
	Role         string            `json:"role"`
	Generation   uint64            `json:"generation"` // of the CAs that it has taken over
	Certificates []CertificateInfo `json:"certificates"`
	Problem      string            `json:"problem,omitempty"` // why some or all are unknown
	// KeptKey is the reason why the last renewal has kept the key for other servers. Servers of
	// earlier versions give none.
	KeptKey string `json:"keptKey,omitempty"`
}

// InfoOf describes a certificate. keptUp means that it is renewed automatically.
func InfoOf(name string, cert *x509.Certificate, keptUp bool, now time.Time) CertificateInfo {
	c := CertificateInfo{Name: name, Subject: cert.Subject.String(), Issuer: cert.Issuer.String(),
		Serial: cert.SerialNumber.Text(16),
		Names:  cert.DNSNames, NotBefore: cert.NotBefore, NotAfter: cert.NotAfter,
		SecondsLeft: int64(cert.NotAfter.Sub(now).Seconds())}
	for _, ip := range cert.IPAddresses {
		c.Names = append(c.Names, ip.String())
	}
	if keptUp {
		c.RenewAt = identity.TermOf(cert).Due()
	}
	return c
}

// Certificates describes this server's certificates.
func (ids *Server) Certificates() NodeCertificates {
	now := time.Now()
	proof := ids.proof.proof()
	n := NodeCertificates{Node: ids.config.Name, Role: pki.RoleServer, Generation: proof.Trust}
	if why := ids.keptKey.Load(); why != nil {
		n.KeptKey = *why
	}
	for _, i := range ids.identities() {
		info := InfoOf(i.Name(), i.Certificate().Leaf, true, now)
		if i == ids.admin {
			info.File = KubeconfigPath(ids.config.DataDir)
		}
		if Overdue(info.RenewAt, info.NotAfter, now) {
			info.Warning = "it should have been renewed: see the log of this server, and renew it with `barque cert rotate --server " + ids.config.Name + "`"
		}
		n.Certificates = append(n.Certificates, info)
	}
	if c, err := ids.Trust.VerifyCredential(proof.Credential, now); err == nil ||
		errors.Is(err, pki.ErrCredentialEnded) {
		n.Certificates = append(n.Certificates, CredentialInfo(ids.Trust, c.Name, c.NotAfter, c.Signer, now))
	}
	return n
}

// Overdue reports whether a certificate's renewal is late by a tenth of its remaining time at
// renewAt.
func Overdue(renewAt, notAfter, now time.Time) bool {
	return now.After(renewAt.Add(notAfter.Sub(renewAt) / 10))
}

// AdminName is the name of the certificate in a server's admin.kubeconfig in lists of certificates.
const AdminName = "admin"

// CAName is the name of the CA for clients in lists of certificates. That of another purpose begins
// with the purpose.
const CAName = "ca"

// NameOf returns the name of a CA in lists of certificates, after its purpose. A CA of several
// purposes is that of the clients.
func NameOf(trust *pki.Trust, ca *pki.Authority) string {
	for _, purpose := range pki.Purposes() {
		switch is := slices.ContainsFunc(trust.CAsFor(purpose),
			func(of *pki.Authority) bool { return of.Digest() == ca.Digest() }); {
		case is && purpose == pki.Clients:
			return CAName
		case is:
			return string(purpose) + "-" + CAName
		}
	}
	return CAName
}

// CredentialInfo describes a node's gossip credential.
func CredentialInfo(trust *pki.Trust, node string, notAfter time.Time, signer string, now time.Time) CertificateInfo {
	return CertificateInfo{Name: "gossip", Subject: "CN=" + node, Issuer: nameOfCA(trust, signer), NotAfter: notAfter,
		SecondsLeft: int64(notAfter.Sub(now).Seconds())}
}

// nameOfCA is the subject of the CA with the digest.
func nameOfCA(trust *pki.Trust, digest string) string {
	for _, ca := range trust.CAs() {
		if ca.Digest() == digest {
			return ca.Certificate().Subject.String()
		}
	}
	return "another CA"
}

// caEndsSoon is the time before the end of a CA from which there is a warning in any case.
const caEndsSoon = 30 * 24 * time.Hour

// CAWarning returns the remedy for a CA that ends soon; empty if there is time. Certificates end
// with the CA, so they are shorter in its last year. A third of the CA's own life is soon enough.
// CAs of all purposes are exchanged together: brought is set if an operator's is that for clients.
func CAWarning(ca *pki.Authority, brought bool, lifetime time.Duration, now time.Time) string {
	cert := ca.Certificate()
	if cert.NotAfter.Sub(now) >= max(min(2*lifetime, cert.NotAfter.Sub(cert.NotBefore)/3), caEndsSoon) {
		return ""
	}
	switch {
	case ca.External():
		return "it ends soon, or one of the CAs above it does: have a CA with a new key signed, and exchange it with `barque cert rotate --ca --ca-file CHAIN --ca-key-file KEY`"
	case brought:
		return "it ends soon, and is exchanged together with the CA for clients, which an operator has brought: have a CA with a new key signed, and exchange both with `barque cert rotate --ca --ca-file CHAIN --ca-key-file KEY`"
	}
	return "it ends soon: exchange it with `barque cert rotate --ca`"
}
