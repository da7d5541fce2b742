package pki

import (
	"crypto/ed25519"
	"crypto/x509"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
)

func newCA(t *testing.T) *Authority {
	t.Helper()
	ca, err := NewAuthority("test", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return ca
}

func TestAuthoritySurvivesItsText(t *testing.T) {
	ca := newCA(t)
	keyPEM, err := ca.KeyPEM()
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := ParseAuthority(ca.PEM(), keyPEM)
	if err != nil {
		t.Fatal(err)
	}
	if loaded.Digest() != ca.Digest() {
		t.Fatal("digest changed on the way through the text")
	}
	key, err := GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	certPEM, err := loaded.Issue(Request{CommonName: "x", Usage: Client}, key.Public(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if err := ca.Verify(parse(t, certPEM), nil, x509.ExtKeyUsageClientAuth, time.Now()); err != nil {
		t.Fatal(err)
	}
	if err := ca.Verify(parse(t, certPEM), nil, x509.ExtKeyUsageServerAuth, time.Now()); err == nil {
		t.Fatal("a client certificate was accepted as a server's")
	}
	if err := newCA(t).Verify(parse(t, certPEM), nil, x509.ExtKeyUsageClientAuth, time.Now()); err == nil {
		t.Fatal("another cluster's CA accepted the certificate")
	}
}

func TestAuthorityWithoutKeyIssuesNothing(t *testing.T) {
	ca := newCA(t)
	verifier, err := ParseAuthority(ca.PEM(), nil)
	if err != nil {
		t.Fatal(err)
	}
	key, err := GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := verifier.Issue(Request{CommonName: "x"}, key.Public(), time.Now()); err == nil {
		t.Fatal("issued a certificate without a key")
	}
}

func TestParseAuthorityRefusesAForeignKey(t *testing.T) {
	a, b := newCA(t), newCA(t)
	keyPEM, err := b.KeyPEM()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ParseAuthority(a.PEM(), keyPEM); err == nil {
		t.Fatal("a CA certificate was paired with another CA's key")
	}
}

// TestRequestsAreSignedByTheirKey: a request with another key's signature is refused.
func TestRequestsAreSignedByTheirKey(t *testing.T) {
	ca := newCA(t)
	key, err := GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	csr, err := SigningRequest(key)
	if err != nil {
		t.Fatal(err)
	}
	request, err := ParseRequest(csr)
	if err != nil {
		t.Fatal(err)
	}
	certPEM, err := ca.Issue(
		Request{CommonName: "system:node:a", Organization: []string{"system:nodes"}, Usage: Client}, request.PublicKey,
		time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if cert := parse(t, certPEM); cert.Subject.CommonName != "system:node:a" ||
		!SamePublicKey(cert.PublicKey, key.Public()) {
		t.Fatalf("certificate is of %v", cert.Subject)
	}
	forged := slices.Clone(request.Raw)
	forged[len(forged)-1] ^= 1 // within the signature
	for _, bad := range [][]byte{[]byte("garbage"), encodePEM("CERTIFICATE", request.Raw),
		encodePEM("CERTIFICATE REQUEST", forged)} {
		if _, err := ParseRequest(bad); err == nil {
			t.Errorf("a bad request was read:\n%s", bad)
		}
	}
}

func TestToken(t *testing.T) {
	ca := newCA(t)
	token, err := NewToken(ca.Digest())
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := ParseToken(" " + token.String() + "\n")
	if err != nil || parsed != token {
		t.Fatalf("ParseToken(%q) = %v, %v", token, parsed, err)
	}
	if _, err := parsed.Pinned(ca.PEM()); err != nil {
		t.Fatal(err)
	}
	if _, err := parsed.Pinned(newCA(t).PEM()); err == nil {
		t.Fatal("the token accepted another cluster's CA")
	}
	for _, bad := range []string{"", "b1", "abcdef.0123456789abcdef", token.String()[:80],
		strings.ToUpper(token.String()), strings.Replace(token.String(), "b2", "b1", 1),
		strings.Replace(token.String(), "b2", "b3", 1)} {
		if _, err := ParseToken(bad); err == nil {
			t.Errorf("ParseToken(%q) succeeded", bad)
		}
	}
	former, err := ParseToken("b1." + ca.Digest() + ".abcdef.0123456789abcdef")
	if err != nil || !former.Former() || token.Former() || !strings.HasPrefix(former.String(), "b1.") {
		t.Errorf("of an earlier version: %v, %v", former, err)
	}
}

// TestTokenKey: a token's key follows from its ID and its secret, which has at least 128 random
// bits.
func TestTokenKey(t *testing.T) {
	token, err := NewToken(newCA(t).Digest())
	if err != nil {
		t.Fatal(err)
	}
	if bits := float64(len(token.Secret)) * math.Log2(36); bits < 128 {
		t.Errorf("its secret has %.0f bits", bits)
	}
	key := func(token Token) string {
		k, err := token.Key()
		if err != nil {
			t.Fatal(err)
		}
		return string(k)
	}
	first, other, renamed := key(token), token, token
	other.Secret, renamed.ID = strings.Repeat("0", secretLength), "aaaaaa"
	if first != key(token) || first == key(other) || first == key(renamed) {
		t.Error("keys of tokens are not theirs alone")
	}
}

func TestCredential(t *testing.T) {
	ca, now := newCA(t), time.Now()
	public, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	want := Credential{Name: "s1", Role: "server", Public: public, NotAfter: now.Add(time.Hour).Truncate(time.Second)}
	data, err := ca.SignCredential(want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ca.VerifyCredential(data, now)
	if err != nil || got.Name != want.Name || got.Role != want.Role || !got.Public.Equal(want.Public) ||
		!got.NotAfter.Equal(want.NotAfter) {
		t.Fatalf("VerifyCredential = %+v, %v; want %+v", got, err, want)
	}
	if _, err := ca.VerifyCredential(data, now.Add(2*time.Hour)); err == nil {
		t.Fatal("a credential that has ended was accepted")
	}
	if _, err := newCA(t).VerifyCredential(data, now); err == nil {
		t.Fatal("another cluster's CA accepted the credential")
	}
	for i := range data {
		bad := append([]byte(nil), data...)
		bad[i] ^= 1
		if _, err := ca.VerifyCredential(bad, now); err == nil {
			t.Fatalf("a credential with byte %d changed was accepted", i)
		}
		if _, err := ca.VerifyCredential(data[:i], now); err == nil {
			t.Fatalf("a credential cut off at byte %d was accepted", i)
		}
	}
}

func parse(t *testing.T, certPEM []byte) *x509.Certificate {
	t.Helper()
	der, err := decodePEM(certPEM, "CERTIFICATE")
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return cert
}
