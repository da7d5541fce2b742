package node

import (
	"context"
	"crypto"
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
	s := &server{joining: joiningParts{revoked: list, peers: peers}}
	key, err := pki.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	own, err := pki.TrustOf(ca).Issue(
		pki.Request{CommonName: "s1", Organization: []string{join.ServersOrganization}, Usage: pki.Client | pki.Server},
		key.Public(), now)
	if err != nil {
		t.Fatal(err)
	}
	requested, err := ca.Sign(
		&x509.Certificate{Subject: pkix.Name{CommonName: "s1", Organization: []string{join.ServersOrganization}},
			NotBefore: now, NotAfter: now.Add(time.Hour)}, key.Public(), now)
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

// TestAThiefAtTheServersOwnPort: while the CA is exchanged, who has the old one's key passes for no
// server, with an ID or without one. A server that was off does, by its recorded key.
func TestAThiefAtTheServersOwnPort(t *testing.T) {
	now, dir := time.Now(), t.TempDir()
	list, err := revocation.Load(dir, quiet())
	if err != nil {
		t.Fatal(err)
	}
	ca, err := pki.NewAuthority("c1", now)
	if err != nil {
		t.Fatal(err)
	}
	next, err := pki.NextAuthority("c1", now)
	if err != nil {
		t.Fatal(err)
	}
	account, own, stolen := newKey(t), newKey(t), newKey(t)
	b, err := pki.NewBundle(ca).Begin(next, account.Public(), now)
	if err != nil {
		t.Fatal(err)
	}
	trust := pki.TrustOf(ca)
	peers, err := admissions.LoadPeers(dir, trust, quiet())
	if err != nil {
		t.Fatal(err)
	}
	digest, err := pki.KeyDigest(own)
	if err != nil {
		t.Fatal(err)
	}
	peers.Recorded = func(context.Context) (map[string][]string, []string, error) {
		return map[string][]string{"s1.x": {digest}}, nil, nil
	}
	s := &server{joining: joiningParts{revoked: list, peers: peers}}
	shows := func(key crypto.Signer, holder string) *x509.Certificate {
		t.Helper()
		text, err := pki.TrustOf(ca).Issue(
			pki.Request{CommonName: "s1", Organization: []string{join.ServersOrganization},
				Usage: pki.Client | pki.Server, Holder: holder}, key.Public(), now)
		if err != nil {
			t.Fatal(err)
		}
		block, _ := pem.Decode(text)
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		return cert
	}
	if err := s.barred(shows(stolen, "s1.x"), nil); err != nil {
		t.Errorf("before the exchange: %v", err)
	}
	if err := errors.Join(peers.Begin(t.Context(), b), trust.Set(b)); err != nil {
		t.Fatal(err)
	}
	for _, holder := range []string{"s1.x", ""} {
		if err := s.barred(shows(stolen, holder), nil); err == nil || errors.Is(err, raftstore.ErrStranger) {
			t.Errorf("a thief, as %q: %v", holder, err)
		}
	}
	if err := s.barred(shows(own, "s1.x"), nil); err != nil {
		t.Errorf("the server that was off: %v", err)
	}
}

// TestForwardedRecords: no server has the leader write the key of another server down.
func TestForwardedRecords(t *testing.T) {
	of := func(keys ...string) *raftstore.Txn {
		txn := new(raftstore.Txn)
		for _, key := range keys {
			txn.Ops = append(txn.Ops, raftstore.Op{Kind: raftstore.Put, Key: key})
		}
		return txn
	}
	for _, c := range []struct {
		txn  *raftstore.Txn
		good bool
	}{{of("/barque/join/server/s1"), true}, {of("/barque/join/server/s2"), false},
		{of("/registry/x", "/barque/join/server/s2"), false}, {of("/barque/join/token/x", "/registry/x"), true},
		{of(), true}} {
		if err := forwarded("s1", c.txn); (err == nil) != c.good {
			t.Errorf("%+v: %v", c.txn.Ops, err)
		}
	}
}

func newKey(t *testing.T) crypto.Signer {
	t.Helper()
	key, err := pki.GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// TestNewKeysNeedTheStoresGeneration: after a restore in the middle of an exchange the store knows
// nothing of it, or an earlier step. Others may know the keys of before alone.
func TestNewKeysNeedTheStoresGeneration(t *testing.T) {
	for _, c := range []struct {
		state string
		own   uint64
		good  bool
	}{
		{"", 1, true}, {"", 2, false}, {`{"bundle":{"generation":2}}`, 2, true},
		{`{"bundle":{"generation":3}}`, 2, false}, {`{"bundle":{"generation":1}}`, 2, false}, {"{", 2, false},
		{"{", 1, false},
	} {
		if err := sameGeneration([]byte(c.state), c.own); (err == nil) != c.good {
			t.Errorf("%q at generation %d: %v", c.state, c.own, err)
		}
	}
}
