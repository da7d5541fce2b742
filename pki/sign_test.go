package pki

import (
	"bytes"
	"crypto"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"testing"
	"time"
)

func TestSign(t *testing.T) {
	ca, key := newCA(t), mustKey(t)
	now := time.Now()
	template := func(change func(*x509.Certificate)) *x509.Certificate {
		c := &x509.Certificate{Subject: pkix.Name{CommonName: "eve"}, NotBefore: now.Add(-time.Minute),
			NotAfter: now.Add(time.Hour),
			KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
		if change != nil {
			change(c)
		}
		return c
	}
	data, err := TrustOf(ca).Sign(template(nil), key.Public(), now)
	if err != nil {
		t.Fatal(err)
	}
	cert := parse(t, data)
	if err := ca.Verify(cert, nil, x509.ExtKeyUsageClientAuth, now); err != nil || cert.IsCA ||
		!cert.BasicConstraintsValid || cert.Subject.CommonName != "eve" {
		t.Errorf("signed is %v, a CA: %v; %v", cert.Subject, cert.IsCA, err)
	}
	if issued := ca.Certificate(); !SignedOnRequest(cert) || SignedOnRequest(issued) {
		t.Errorf("marked as signed on request: %v, and the CA itself: %v", SignedOnRequest(cert),
			SignedOnRequest(issued))
	}
	again, err := ca.Sign(template(nil), key.Public(), now)
	if err != nil || parse(t, again).SerialNumber.Cmp(cert.SerialNumber) == 0 {
		t.Errorf("the same serial number twice; %v", err)
	}
	end := ca.Certificate().NotAfter
	data, err = ca.Sign(template(func(c *x509.Certificate) { c.NotAfter = end.Add(time.Hour) }), key.Public(), now)
	if err != nil || !parse(t, data).NotAfter.Equal(end) {
		t.Errorf("a certificate ends after its CA; %v", err)
	}
	for name, err := range map[string]error{
		"a CA":               signed(ca.Sign(template(func(c *x509.Certificate) { c.IsCA = true }), key.Public(), now)),
		"one that has ended": signed(ca.Sign(template(nil), key.Public(), now.Add(time.Hour))),
		"by a CA that ended": signed(
			ca.Sign(template(func(c *x509.Certificate) { c.NotAfter = end.Add(2 * time.Hour) }), key.Public(),
				end.Add(time.Hour))),
	} {
		if err == nil {
			t.Errorf("%s was signed", name)
		}
	}
	public, err := ParseAuthority(ca.PEM(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := public.Sign(template(nil), key.Public(), now); err == nil {
		t.Error("signed without a key")
	}
}

func mustKey(t *testing.T) crypto.Signer {
	t.Helper()
	key, err := GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func signed(_ []byte, err error) error { return err }

// TestSignDuringAnExchange: a client that trusts the old CA only can verify certificates of the new
// one.
func TestSignDuringAnExchange(t *testing.T) {
	old, next := newCA(t), newCA(t)
	now := time.Now()
	account := mustKey(t)
	bundle, err := NewBundle(old).WithAccountKey(account.Public())
	if err != nil {
		t.Fatal(err)
	}
	if bundle, err = bundle.Begin(next, mustKey(t).Public(), now); err != nil {
		t.Fatal(err)
	}
	trust, err := NewTrust(bundle, old.key, next.key)
	if err != nil {
		t.Fatal(err)
	}
	if bundle, err = trust.Advance(now); err != nil {
		t.Fatal(err)
	}
	if trust, err = NewTrust(bundle, old.key, next.key); err != nil {
		t.Fatal(err)
	}
	data, err := trust.Sign(
		&x509.Certificate{NotBefore: now, NotAfter: now.Add(time.Hour),
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, account.Public(), now)
	if err != nil {
		t.Fatal(err)
	}
	var certs []*x509.Certificate
	for block, rest := pem.Decode(data); block != nil; block, rest = pem.Decode(rest) {
		certs = append(certs, parse(t, pem.EncodeToMemory(block)))
	}
	if len(certs) != 2 || !bytes.Equal(certs[0].RawIssuer, next.cert.RawSubject) {
		t.Fatalf("%d certificates", len(certs))
	}
	if err := old.Verify(certs[0], certs[1:], x509.ExtKeyUsageClientAuth, now); err != nil {
		t.Error(err)
	}
}
