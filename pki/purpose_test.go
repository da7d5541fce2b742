package pki

import (
	"crypto"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"
)

// beginSeparate is begin with new CAs for all purposes.
func beginSeparate(t *testing.T, trust *Trust) {
	t.Helper()
	next := begin(t, trust, "c1")
	b := trust.Bundle()
	keys := []crypto.Signer{next.key}
	for _, p := range []Purpose{Peers, FrontProxy} {
		ca, err := CAOf(p, "c1", time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if b, err = b.BeginFor(p, ca); err != nil {
			t.Fatal(err)
		}
		keys = append(keys, ca.key)
	}
	set(t, trust, b, keys...)
}

// beginJoint is begin with one new CA for all purposes.
func beginJoint(t *testing.T, trust *Trust) {
	t.Helper()
	next := begin(t, trust, "c1")
	b, err := trust.Bundle(), error(nil)
	for _, p := range []Purpose{Peers, FrontProxy} {
		if b, err = b.BeginFor(p, next); err != nil {
			t.Fatal(err)
		}
	}
	set(t, trust, b, next.key)
}

// leafFor is a certificate that the CA of a purpose issues now.
func leafFor(t *testing.T, trust *Trust, p Purpose) *x509.Certificate {
	t.Helper()
	key, err := GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	text, err := trust.IssueFor(p, Request{CommonName: "s1", Usage: Client}, key.Public(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if more, err := SplitPEM(text); err != nil || p != Clients && trust.Bundle().Step == Settled && len(more) != 1 {
		t.Errorf("%d certificates are sent for %s: %v", len(more), p, err)
	}
	leaf, err := parseCertificate(text)
	if err != nil {
		t.Fatal(err)
	}
	return leaf
}

// believedFor returns the purposes for which a certificate is valid.
func believedFor(trust *Trust, leaf *x509.Certificate) (out []Purpose) {
	for _, p := range Purposes() {
		if trust.VerifyFor(p, leaf, nil, x509.ExtKeyUsageClientAuth, time.Now()) == nil {
			out = append(out, p)
		}
	}
	return out
}

// TestSeparateCAs: a cluster with one CA goes over to one for each purpose. A certificate that was
// issued at any step counts for its purpose in the same step and the next one. In the end none
// counts for another purpose.
func TestSeparateCAs(t *testing.T) {
	trust := newTrust(t)
	if trust.Bundle().Separate() || trust.Bundle().Form() != 0 || trust.PoolFor(Peers) != trust.Pool() {
		t.Fatal("a bundle of an earlier version has CAs of their own")
	}
	old := trust.Issuer()
	earlier := map[Purpose]*x509.Certificate{}
	for _, p := range Purposes() {
		earlier[p] = leafFor(t, trust, p)
	}
	look := func(step string) {
		t.Helper()
		for _, p := range Purposes() {
			leaf := leafFor(t, trust, p)
			for what, leaf := range map[string]*x509.Certificate{"this": leaf, "the step before": earlier[p]} {
				if !slices.Contains(believedFor(trust, leaf), p) {
					t.Errorf("%s: a certificate of %s for %s does not count", step, what, p)
				}
			}
			earlier[p] = leaf
		}
	}
	beginSeparate(t, trust)
	look("spreading")
	if needs, err := trust.Bundle().NeedsKeys(); err != nil || len(digests(needs, CAKey)) != 2 ||
		len(digests(needs, PeersKey)) != 1 || len(digests(needs, FrontProxyKey)) != 1 {
		t.Errorf("spreading needs the keys %v, %v", needs, err)
	}
	advance(t, trust)
	look("issuing")
	advance(t, trust)
	for _, p := range Purposes() {
		if got := believedFor(trust, leafFor(t, trust, p)); !slices.Equal(got, []Purpose{p}) {
			t.Errorf("a certificate for %s counts for %v", p, got)
		}
	}
	b := trust.Bundle()
	if !b.Separate() || b.Form() != SeparateForm || len(b.CAs) != 1 || len(b.Peers) != 1 || len(b.FrontProxy) != 1 ||
		!slices.Equal(b.Former, []string{old.Digest()}) {
		t.Errorf("in the end: %+v", b)
	}
	for _, use := range []KeyUse{CAKey, PeersKey, FrontProxyKey} {
		if needs, err := b.NeedsKeys(); err != nil || len(digests(needs, use)) != 1 {
			t.Errorf("in the end %v are needed, %v", needs, err)
		}
	}
	if len(trust.EveryCA()) != 3 {
		t.Errorf("%d CAs", len(trust.EveryCA()))
	}

	// The next exchange has new ones for all.
	before := trust.EveryCA()
	beginSeparate(t, trust)
	look("spreading again")
	advance(t, trust)
	look("issuing again")
	advance(t, trust)
	for _, ca := range trust.EveryCA() {
		if slices.ContainsFunc(before, func(b *Authority) bool { return b.Digest() == ca.Digest() }) ||
			!trust.Bundle().Knows(ca.Digest()) {
			t.Errorf("%s stays", ca.Certificate().Subject)
		}
	}
	if got := trust.Bundle().Former; len(got) != 4 {
		t.Errorf("%d CAs are former, want 4", len(got))
	}
}

// TestARequestedCertificateIsNoPeers: a certificate by the CSR API is valid for the purpose of
// clients alone, under any name.
func TestARequestedCertificateIsNoPeers(t *testing.T) {
	trust := newTrust(t)
	beginSeparate(t, trust)
	advance(t, trust)
	advance(t, trust)
	key, err := GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	for _, subject := range []pkix.Name{{CommonName: "barque:front-proxy"},
		{CommonName: "s1", Organization: []string{"barque:servers"}}} {
		text, err := trust.Sign(
			&x509.Certificate{Subject: subject, NotBefore: time.Now(), NotAfter: time.Now().Add(time.Hour),
				ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}}, key.Public(),
			time.Now())
		if err != nil {
			t.Fatal(err)
		}
		leaf, err := parseCertificate(text)
		if err != nil {
			t.Fatal(err)
		}
		if got := believedFor(trust, leaf); !slices.Equal(got, []Purpose{Clients}) {
			t.Errorf("%s counts for %v", subject, got)
		}
	}
}

// TestSeparationIsGivenUp: an exchange is undone in its first step. An exchange for one CA, which
// earlier versions know, ends the separation for good.
func TestSeparationIsGivenUp(t *testing.T) {
	trust := newTrust(t)
	undo := func() Bundle {
		t.Helper()
		b, err := trust.Bundle().Undo()
		if err != nil {
			t.Fatal(err)
		}
		set(t, trust, b)
		return b
	}
	cas := func(b Bundle) []any { return []any{b.CAs, b.Peers, b.FrontProxy} }
	joint := cas(trust.Bundle())
	beginSeparate(t, trust)
	if b := undo(); !reflect.DeepEqual(cas(b), joint) || b.Separate() || len(b.Former) != 3 {
		t.Errorf("given up: %+v", b)
	}
	beginSeparate(t, trust)
	advance(t, trust)
	advance(t, trust)
	separate := cas(trust.Bundle())
	beginJoint(t, trust)
	if needs, err := trust.Bundle().NeedsKeys(); err != nil || len(digests(needs, CAKey)) != 2 ||
		len(digests(needs, PeersKey)) != 1 {
		t.Errorf("needed: %v, %v", needs, err)
	}
	if b := undo(); !reflect.DeepEqual(cas(b), separate) {
		t.Errorf("given up: %+v", b)
	}
	beginJoint(t, trust)
	proxy := leafFor(t, trust, FrontProxy)
	advance(t, trust)
	if !slices.Contains(believedFor(trust, proxy), FrontProxy) {
		t.Error("while the certificates are renewed, the one before counts no more")
	}
	advance(t, trust)
	b := trust.Bundle()
	if b.Separate() || b.Form() != 0 || len(b.CAs) != 1 {
		t.Errorf("with one CA: %+v", b)
	}
	retired, err := b.RetiredKeys()
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{separate[1].([]string)[0], separate[2].([]string)[0]} {
		if ca, err := ParseAuthority([]byte(text), nil); err != nil ||
			!slices.Contains(retired, KeyNeed{PeersKey, ca.Digest()}) ||
			!slices.Contains(retired, KeyNeed{FrontProxyKey, ca.Digest()}) {
			t.Errorf("the key of a CA that is gone is not retired: %v", err)
		}
	}
	if _, err := b.BeginFor(Peers, trust.Issuer()); !errors.Is(err, ErrStep) {
		t.Errorf("without an exchange: %v", err)
	}
}

// TestADamagedListIsSeen: of each purpose.
func TestADamagedListIsSeen(t *testing.T) {
	for _, p := range []Purpose{Peers, FrontProxy} {
		t.Run(fmt.Sprint(p), func(t *testing.T) {
			b := newTrust(t).Bundle()
			*b.list(p) = []string{"x"}
			if _, err := b.NeedsKeys(); err == nil {
				t.Error("the keys that it needs are known")
			}
			if _, err := NewTrust(b); err == nil {
				t.Error("it is believed")
			}
		})
	}
}
