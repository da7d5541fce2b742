package node

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"testing"
	"time"

	"github.com/barque/barque/membership/admissions"
	"github.com/barque/barque/membership/join"
	"github.com/barque/barque/membership/revocation"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/raftstore"
)

// TestACertificateOnRequestIsNoServers: where one CA is for all purposes, an approver may let a
// request with a server's names pass. Its holder may not even say hello between servers.
func TestACertificateOnRequestIsNoServers(t *testing.T) {
	now := time.Now()
	list, err := revocation.Load(t.TempDir(), quiet())
	if err != nil {
		t.Fatal(err)
	}
	ca, err := pki.NewAuthority("c1", now)
	if err != nil {
		t.Fatal(err)
	}
	peers, err := admissions.LoadPeers(t.TempDir(), pki.TrustOf(ca), quiet())
	if err != nil {
		t.Fatal(err)
	}
	s := &server{revoked: list, peers: peers}
	key, err := pki.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	own, err := pki.TrustOf(ca).Issue(pki.Request{CommonName: "s1", Organization: []string{join.ServersOrganization}, Usage: pki.Client | pki.Server}, key.Public(), now)
	if err != nil {
		t.Fatal(err)
	}
	requested, err := ca.Sign(&x509.Certificate{Subject: pkix.Name{CommonName: "s1", Organization: []string{join.ServersOrganization}}, NotBefore: now, NotAfter: now.Add(time.Hour)}, key.Public(), now)
	if err != nil {
		t.Fatal(err)
	}
	leaf := func(text []byte) *x509.Certificate {
		block, _ := pem.Decode(text)
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		return cert
	}
	if err := s.barred(leaf(own), nil); err != nil {
		t.Errorf("a server: %v", err)
	}
	if err := s.barred(leaf(requested), nil); err == nil || errors.Is(err, raftstore.ErrStranger) {
		t.Errorf("on request: %v", err)
	}
}
