package pki

import (
	"crypto"
	"crypto/ed25519"
	"crypto/x509"
	"errors"
	"slices"
	"testing"
	"time"
)

// begin makes a new CA known to the trust.
func begin(t *testing.T, trust *Trust, cluster string) *Authority {
	t.Helper()
	next, err := NextAuthority(cluster, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	b, err := trust.Bundle().Begin(next, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	set(t, trust, b, next.key)
	return next
}

// set takes the bundle, with the keys that there are and more.
func set(t *testing.T, trust *Trust, b Bundle, more ...crypto.Signer) {
	t.Helper()
	for _, ca := range trust.CAs() {
		if ca.key != nil {
			more = append(more, ca.key)
		}
	}
	if err := trust.Set(b, more...); err != nil {
		t.Fatal(err)
	}
}

func advance(t *testing.T, trust *Trust) {
	t.Helper()
	b, err := trust.Advance(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	set(t, trust, b)
}

// exchange exchanges the CA of the trust for another one.
func exchange(t *testing.T, trust *Trust, cluster string) {
	t.Helper()
	begin(t, trust, cluster)
	advance(t, trust)
	advance(t, trust)
}

// issued returns a server's certificate with what is sent along.
func issued(t *testing.T, trust *Trust) []*x509.Certificate {
	t.Helper()
	key, err := GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	certPEM, err := trust.Issue(Request{CommonName: "s1", Usage: Server | Client}, key.Public(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	ders, err := splitPEM(certPEM)
	if err != nil {
		t.Fatal(err)
	}
	var out []*x509.Certificate
	for _, der := range ders {
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, cert)
	}
	return out
}

func believes(v interface {
	Verify(*x509.Certificate, []*x509.Certificate, x509.ExtKeyUsage, time.Time) error
}, chain []*x509.Certificate) bool {
	return v.Verify(chain[0], chain[1:], x509.ExtKeyUsageServerAuth, time.Now()) == nil
}

// At each step, who has taken over the step before, or this one, believes what is issued in it; the retired CA's
// certificates are believed by nobody in the end; and who knows the first CA only believes servers for ever.
func TestExchangeOfTheCA(t *testing.T) {
	first := newCA(t)
	trust := TrustOf(first)
	before := issued(t, trust)
	ignorant, err := ParseAuthority(first.PEM(), nil)
	if err != nil {
		t.Fatal(err)
	}
	check := func(step string, lagging *Trust) {
		t.Helper()
		now := issued(t, trust)
		if !believes(trust, now) || !believes(lagging, now) || !believes(ignorant, now) {
			t.Errorf("%s: believed by those of this step %v, of the last one %v, of the first CA %v", step, believes(trust, now), believes(lagging, now), believes(ignorant, now))
		}
	}
	for round := range 3 {
		lag := func() *Trust {
			old, err := NewTrust(trust.Bundle())
			if err != nil {
				t.Fatal(err)
			}
			return old
		}
		lagging, old := lag(), trust.Issuer()
		next := begin(t, trust, "c1")
		if trust.Digest() != old.Digest() || trust.Bundle().Step != Spreading || len(trust.CAs()) != 2 {
			t.Fatalf("round %d: %+v", round, trust.Bundle())
		}
		check("spreading", lagging)
		lagging = lag()
		advance(t, trust)
		if trust.Digest() != next.Digest() || trust.Bundle().Step != Issuing {
			t.Fatalf("round %d: the new CA does not issue: %+v", round, trust.Bundle())
		}
		check("issuing", lagging)
		if round == 0 && !believes(trust, before) {
			t.Error("a certificate of the old CA is not believed before all are renewed")
		}
		lagging = lag()
		advance(t, trust)
		if b := trust.Bundle(); b.Step != Settled || len(b.CAs) != 1 || !b.Knows(old.Digest()) || b.Generation != uint64(1+3*(round+1)) {
			t.Fatalf("round %d: %+v", round, b)
		}
		check("settled", lagging)
		if believes(trust, before[:1]) {
			t.Error("a certificate of the retired CA is believed")
		}
	}
}

func TestAnExchangeCanBeUndoneUntilTheNewCAIssues(t *testing.T) {
	trust := TrustOf(newCA(t))
	before := trust.Bundle()
	if _, err := before.Undo(); !errors.Is(err, ErrStep) {
		t.Errorf("nothing to undo: %v", err)
	}
	begin(t, trust, "c1")
	if _, err := trust.Bundle().Begin(newCA(t), time.Now()); !errors.Is(err, ErrStep) {
		t.Errorf("a second exchange began: %v", err)
	}
	undone, err := trust.Bundle().Undo()
	if err != nil || !slices.Equal(undone.CAs, before.CAs) || undone.Generation != before.Generation+2 || undone.Step != Settled {
		t.Errorf("%+v, %v", undone, err)
	}
	advance(t, trust)
	if _, err := trust.Bundle().Undo(); !errors.Is(err, ErrStep) {
		t.Errorf("undone although the new CA issues: %v", err)
	}
}

func TestTrustNeverGoesBack(t *testing.T) {
	trust := TrustOf(newCA(t))
	old := trust.Bundle()
	begin(t, trust, "c1")
	if err := trust.Set(old); err == nil {
		t.Error("older CAs were taken")
	}
	if _, err := NewTrust(Bundle{Generation: 9}); err == nil {
		t.Error("no CA at all was taken")
	}
}

func TestKeysOfAnExchange(t *testing.T) {
	trust := TrustOf(newCA(t))
	old := trust.Digest()
	next := begin(t, trust, "c1")
	if needs, err := trust.Bundle().NeedsKeys(); err != nil || !slices.Equal(needs, []string{old, next.Digest()}) {
		t.Errorf("while it spreads: %v, %v", needs, err)
	}
	text, err := MarshalKeys([]crypto.Signer{trust.Issuer().key, next.key})
	if err != nil {
		t.Fatal(err)
	}
	keys, err := ParseKeys(text)
	if err != nil || len(keys) != 2 {
		t.Fatalf("%d keys, %v", len(keys), err)
	}
	if digest, err := KeyDigest(keys[1]); err != nil || digest != next.Digest() {
		t.Errorf("digest %s, %v", digest, err)
	}
	advance(t, trust)
	if needs, err := trust.Bundle().NeedsKeys(); err != nil || !slices.Equal(needs, []string{next.Digest()}) {
		t.Errorf("while it issues: %v, %v", needs, err)
	}
	withoutKey, err := NewTrust(trust.Bundle())
	if err != nil || withoutKey.CanIssue() {
		t.Errorf("issues without a key: %v", err)
	}
	if _, err := withoutKey.Advance(time.Now()); err != nil {
		t.Errorf("retiring needs no key: %v", err)
	}
}

// A token that pins the old CA works until that is retired, also by a server with a certificate of the new one.
func TestTokensAndCredentialsInAnExchange(t *testing.T) {
	trust := TrustOf(newCA(t))
	token, err := NewToken(trust.Digest())
	if err != nil {
		t.Fatal(err)
	}
	public, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	old, err := trust.SignCredential(Credential{Name: "a1", Role: "agent", Public: public, NotAfter: time.Now().Add(time.Hour)})
	if err != nil {
		t.Fatal(err)
	}
	begin(t, trust, "c1")
	advance(t, trust)
	pinned, err := token.Pinned(trust.PEM())
	if err != nil || !believes(pinned, issued(t, trust)) {
		t.Errorf("a token of the old CA, while both are believed: %v", err)
	}
	if c, err := trust.VerifyCredential(old, time.Now()); err != nil || c.Signer == trust.Digest() {
		t.Errorf("a credential of the old CA: %+v, %v", c, err)
	}
	advance(t, trust)
	if _, err := token.Pinned(trust.PEM()); err == nil {
		t.Error("a token of the retired CA pins the new one")
	}
	if _, err := trust.VerifyCredential(old, time.Now()); err == nil {
		t.Error("a credential of the retired CA is believed")
	}
}
