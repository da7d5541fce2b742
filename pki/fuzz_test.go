package pki

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
)

// FuzzToken: an accepted token is written as it was read, has a key, and pins no CA but its own.
func FuzzToken(f *testing.F) {
	ca, err := NewAuthority("c1", time.Now())
	if err != nil {
		f.Fatal(err)
	}
	token, err := NewToken(ca.Digest())
	if err != nil {
		f.Fatal(err)
	}
	for _, text := range []string{token.String(), " " + token.String() + "\n", strings.ToUpper(token.String()),
		"b1." + ca.Digest() + ".abcdef.0123456789abcdef", "b2....", "b2.x.y.z", "", "...",
		"b2." + ca.Digest() + ".abcdef." + strings.Repeat("ä", 13)} {
		f.Add(text, ca.PEM())
	}
	f.Add(token.String(), []byte("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"))
	f.Fuzz(func(t *testing.T, text string, pem []byte) {
		token, err := ParseToken(text)
		if err != nil {
			return
		}
		if token.String() != strings.TrimSpace(text) {
			t.Errorf("%q is written as %q", text, token)
		}
		if key, err := token.Key(); err != nil || len(key) != ed25519.PrivateKeySize {
			t.Errorf("%q has no key: %v", text, err)
		}
		if pinned, err := token.Pinned(pem); err == nil && pinned.Digest() != token.CADigest {
			t.Errorf("%q pins %s", text, pinned.Digest())
		}
	})
}

// FuzzCredential: an accepted credential has the name and role that the CA has signed.
func FuzzCredential(f *testing.F) {
	now := time.Now()
	ca, err := NewAuthority("c1", now)
	if err != nil {
		f.Fatal(err)
	}
	public, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		f.Fatal(err)
	}
	of := Credential{Name: "n1", Role: RoleServer, Public: public, NotAfter: now.Add(time.Hour).Truncate(time.Second)}
	good, err := ca.SignCredential(of)
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range [][]byte{good, nil, {0}, {255}, good[:len(good)/2], append([]byte{2}, good[1:]...),
		bytes.Repeat([]byte{255}, 300)} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := ca.VerifyCredential(data, now)
		if err == nil &&
			(c.Name != of.Name || c.Role != of.Role || !bytes.Equal(c.Public, of.Public) ||
				!c.NotAfter.Equal(of.NotAfter)) {
			t.Errorf("%x counts as %+v", data, c)
		}
	})
}

// FuzzAuthority: no CA file crashes a server, and an accepted CA signs certificates that verify.
func FuzzAuthority(f *testing.F) {
	now := time.Now()
	ca, err := NewAuthority("c1", now)
	if err != nil {
		f.Fatal(err)
	}
	key, err := ca.KeyPEM()
	if err != nil {
		f.Fatal(err)
	}
	other, err := GenerateKey()
	if err != nil {
		f.Fatal(err)
	}
	otherPEM, err := MarshalKey(other)
	if err != nil {
		f.Fatal(err)
	}
	csr, err := SigningRequest(other)
	if err != nil {
		f.Fatal(err)
	}
	for _, pair := range [][2][]byte{{ca.PEM(), key}, {ca.PEM(), otherPEM}, {append(ca.PEM(), ca.PEM()...), key},
		{nil, nil}, {key, ca.PEM()}, {ca.PEM()[:100], key}, {csr, key}, {bytes.ToLower(ca.PEM()), key}} {
		f.Add(pair[0], pair[1])
	}
	f.Fuzz(func(t *testing.T, certPEM, keyPEM []byte) {
		_, _ = ParseExternal(certPEM, keyPEM, now) // an operator's files
		_, _ = ParseKeys(keyPEM)
		_, _ = ParseRequest(certPEM)
		a, err := ParseAuthority(certPEM, keyPEM)
		if err != nil || a.key == nil {
			return
		}
		if !SamePublicKey(a.key.Public(), a.cert.PublicKey) {
			t.Errorf("%q goes with %q", certPEM, keyPEM)
		}
	})
}

// FuzzBundle: no bundle from the store, a disk or another server crashes a server. All trusted CAs
// are in the bundle.
func FuzzBundle(f *testing.F) {
	now := time.Now()
	ca, err := NewAuthority("c1", now)
	if err != nil {
		f.Fatal(err)
	}
	next, err := NextAuthority("c1", now)
	if err != nil {
		f.Fatal(err)
	}
	account, err := GenerateKey()
	if err != nil {
		f.Fatal(err)
	}
	settled := NewBundle(ca)
	begun, err := settled.Begin(next, account.Public(), now)
	if err != nil {
		f.Fatal(err)
	}
	for _, b := range []any{settled, begun, Bundle{}, nil, map[string]any{"cas": []string{"x"}},
		map[string]any{"CAs": []string{string(ca.PEM())}, "step": "no such"}} {
		data, err := json.Marshal(b)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var b Bundle
		if json.Unmarshal(data, &b) != nil {
			return
		}
		_, _ = b.NeedsKeys()
		_, _ = b.RetiredKeys()
		_, _, _ = b.Form(), b.External(), b.PEM()
		trust, err := NewTrust(b)
		if err != nil {
			return
		}
		for _, a := range trust.CAs() {
			if !bytes.Contains(b.PEM(), bytes.TrimSpace(a.PEM())) {
				t.Errorf("%q believes %q", data, a.PEM())
			}
		}
		if _, err := trust.VerifyCredential(data, now); err == nil {
			t.Errorf("%q is a credential", data)
		}
		if _, err := trust.Advance(now); err != nil && errors.Is(err, errNoKey) {
			return
		}
	})
}
