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

// newTrust returns the Trust of a new cluster's server.
func newTrust(t *testing.T) *Trust {
	t.Helper()
	ca := newCA(t)
	account, err := GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	b, err := NewBundle(ca).WithAccountKey(account.Public())
	if err != nil {
		t.Fatal(err)
	}
	trust, err := NewTrust(b, ca.key, account)
	if err != nil {
		t.Fatal(err)
	}
	return trust
}

// digests returns the digests of the keys needed for a use.
func digests(needs []KeyNeed, use KeyUse) []string {
	var out []string
	for _, n := range needs {
		if n.Use == use {
			out = append(out, n.Digest)
		}
	}
	return out
}

// begin starts the exchange for a new CA.
func begin(t *testing.T, trust *Trust, cluster string) *Authority {
	t.Helper()
	next, err := NextAuthority(cluster, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	account, err := GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	b, err := trust.Bundle().Begin(next, account.Public(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	set(t, trust, b, next.key, account)
	return next
}

// set sets the bundle, with more keys than before.
func set(t *testing.T, trust *Trust, b Bundle, more ...crypto.Signer) {
	t.Helper()
	for _, ca := range trust.EveryCA() {
		if ca.key != nil {
			more = append(more, ca.key)
		}
	}
	for _, signer := range trust.current().accounts.signers {
		if signer != nil {
			more = append(more, signer)
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

// issued returns a server's certificate and the chain sent along.
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
	ders, err := SplitPEM(certPEM)
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

// At each step, a node that has completed this step or the one before trusts the certificates
// issued in it. In the end no node trusts the retired CA's certificates. A client that knows only
// the first CA trusts servers for ever.
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
			t.Errorf("%s: believed by those of this step %v, of the last one %v, of the first CA %v", step,
				believes(trust, now), believes(lagging, now), believes(ignorant, now))
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
		if b := trust.Bundle(); b.Step != Settled || len(b.CAs) != 1 || !b.Knows(old.Digest()) ||
			b.Generation != uint64(1+3*(round+1)) {
			t.Fatalf("round %d: %+v", round, b)
		}
		check("settled", lagging)
		if believes(trust, before[:1]) {
			t.Error("a certificate of the retired CA is believed")
		}
	}
}

func TestAnExchangeCanBeUndoneUntilTheNewCAIssues(t *testing.T) {
	trust := newTrust(t)
	before := trust.Bundle()
	if _, err := before.Undo(); !errors.Is(err, ErrStep) {
		t.Errorf("nothing to undo: %v", err)
	}
	next := begin(t, trust, "c1")
	if _, err := trust.Bundle().Begin(newCA(t), newCA(t).key.Public(), time.Now()); !errors.Is(err, ErrStep) {
		t.Errorf("a second exchange began: %v", err)
	}
	begun := trust.Bundle()
	undone, err := begun.Undo()
	if err != nil || !slices.Equal(undone.CAs, before.CAs) || undone.Generation != before.Generation+2 ||
		undone.Step != Settled {
		t.Errorf("%+v, %v", undone, err)
	}
	// A node with the undone keys must drop them, also after a crash. A token signed by the undone
	// account key is invalid.
	retired, err := undone.RetiredKeys()
	if err != nil || !slices.Equal(digests(retired, CAKey), []string{next.Digest()}) || !undone.Knows(next.Digest()) {
		t.Errorf("keys of %v are retired, %v", retired, err)
	}
	accounts, err := accountDigests(begun.AccountKeys[1:])
	if err != nil || len(accounts) != 1 || !slices.Equal(digests(retired, AccountKey), accounts) {
		t.Errorf("keys of %v are retired, want those of the accounts %v, %v", retired, accounts, err)
	}
	given := newTrust(t)
	if err := given.Set(undone, given.Issuer().key); err != nil {
		t.Fatal(err)
	}
	if _, others := given.AccountKeys(time.Now()); len(others) != 0 {
		t.Errorf("%d other keys verify tokens", len(others))
	}
	advance(t, trust)
	if _, err := trust.Bundle().Undo(); !errors.Is(err, ErrStep) {
		t.Errorf("undone although the new CA issues: %v", err)
	}
}

func TestTrustNeverGoesBack(t *testing.T) {
	trust := newTrust(t)
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
	trust := newTrust(t)
	old := trust.Digest()
	next := begin(t, trust, "c1")
	if needs, err := trust.Bundle().NeedsKeys(); err != nil ||
		!slices.Equal(digests(needs, CAKey), []string{old, next.Digest()}) || len(digests(needs, AccountKey)) != 2 {
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
	if needs, err := trust.Bundle().NeedsKeys(); err != nil ||
		!slices.Equal(digests(needs, CAKey), []string{next.Digest()}) || len(digests(needs, AccountKey)) != 1 {
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

// A token that pins the old CA works until that CA is retired, also at a server with a certificate
// of the new one.
func TestTokensAndCredentialsInAnExchange(t *testing.T) {
	trust := newTrust(t)
	token, err := NewToken(trust.Digest())
	if err != nil {
		t.Fatal(err)
	}
	public, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	old, err := trust.SignCredential(
		Credential{Name: "a1", Role: "agent", Public: public, NotAfter: time.Now().Add(time.Hour)})
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

// At each step, servers one step ahead or behind verify the tokens of any server. Former keys
// verify for a bounded time, over several exchanges.
func TestKeysOfServiceAccountsInAnExchange(t *testing.T) {
	trust := newTrust(t)
	verifies := func(sign crypto.Signer, at time.Time) bool {
		own, others := trust.AccountKeys(at)
		return slices.ContainsFunc(append(others, own.Public()),
			func(k crypto.PublicKey) bool { return SamePublicKey(k, sign.Public()) })
	}
	now := time.Now()
	old, others := trust.AccountKeys(now)
	if old == nil || len(others) != 0 {
		t.Fatalf("a new cluster: %v, %d others", old, len(others))
	}
	begin(t, trust, "c1")
	if sign, others := trust.AccountKeys(now); sign != old || len(others) != 1 {
		t.Errorf("spreading: the old one signs: %v, %d others", sign == old, len(others))
	}
	_, others = trust.AccountKeys(now)
	next := others[0]
	advance(t, trust)
	if sign, _ := trust.AccountKeys(now); sign == nil || !SamePublicKey(sign.Public(), next) ||
		!verifies(old, now.AddDate(9, 0, 0)) {
		t.Error("issuing: the new one does not sign, or the old one does not verify, however long the step takes")
	}
	advance(t, trust)
	if !verifies(old, now.Add(AccountKeyGrace-time.Minute)) || verifies(old, now.Add(AccountKeyGrace+time.Minute)) {
		t.Error("settled: the old one does not verify for just its time")
	}
	between, _ := trust.AccountKeys(now)
	exchange(t, trust, "c1")
	if !verifies(old, now) || !verifies(between, now) || len(trust.Bundle().FormerAccountKeys) != 2 {
		t.Errorf("after another exchange: %+v", trust.Bundle().FormerAccountKeys)
	}
	b, err := trust.Advance(now)
	if !errors.Is(err, ErrStep) {
		t.Errorf("%+v, %v", b, err)
	}
	if left, err := trust.Bundle().retire(now.Add(3 * AccountKeyGrace)); err != nil ||
		len(left.FormerAccountKeys) != 0 {
		t.Errorf("after their time: %+v, %v", left.FormerAccountKeys, err)
	}
	agent, err := NewTrust(trust.Bundle())
	if err != nil {
		t.Fatal(err)
	}
	if sign, _ := agent.AccountKeys(now); sign != nil {
		t.Error("an agent signs")
	}
}
