package pki

import (
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"net"
	"strings"
	"testing"
	"time"
)

// TestNoCertificateIsOlderThanItsCA: certificates are dated back for clocks that are behind, but
// not before the start of a young CA: there they do not verify.
func TestNoCertificateIsOlderThanItsCA(t *testing.T) {
	c, now := newCompany(t), time.Now()
	e := c.external("Cluster CA", func(x *x509.Certificate) { x.NotBefore = now.Add(-time.Second) })
	trust, err := NewTrust(NewExternalBundle(e), e.ca.key)
	if err != nil {
		t.Fatal(err)
	}
	key := mustKey(t)
	issued, err := trust.Issue(Request{CommonName: "s1", Usage: Server}, key.Public(), now)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := trust.Sign(
		&x509.Certificate{NotBefore: now.Add(-5 * time.Minute), NotAfter: now.Add(time.Hour),
			ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, key.Public(), now)
	if err != nil {
		t.Fatal(err)
	}
	young, err := NextAuthority("c1", now)
	if err != nil {
		t.Fatal(err)
	}
	bridge, err := young.bridge(e.ca, now)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{"issued": issued, "on request": signed, "a bridge": bridge} {
		cert, err := parseCertificate(text)
		if err != nil {
			t.Fatal(err)
		}
		if begins := e.ca.cert.NotBefore; cert.NotBefore.Before(begins) {
			t.Errorf("%s: it begins %s before its CA", name, begins.Sub(cert.NotBefore))
		}
	}
	// A machine whose clock is before the CA's start gets a certificate valid by that clock, as
	// with a built-in CA.
	past := now.AddDate(-1, 0, 0)
	if text, err := e.ca.Issue(Request{CommonName: "s1", Usage: Server}, key.Public(), past); err != nil {
		t.Error(err)
	} else if cert, err := parseCertificate(text); err != nil || cert.NotBefore.After(past) {
		t.Errorf("a year ago: from %v (%v)", cert.NotBefore, err)
	}
}

// narrow gives a CA each kind of constraint that allows the cluster's names.
func narrow(x *x509.Certificate) {
	x.MaxPathLen, x.MaxPathLenZero = 0, true
	x.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	x.ExcludedDNSDomains, x.PermittedDNSDomainsCritical = []string{"forbidden"}, true
	x.ExcludedIPRanges = []*net.IPNet{{IP: net.IP{192, 0, 2, 0}, Mask: net.IPMask{255, 255, 255, 0}}}
}

// TestAnExchangeHidesNoConstraints: a certificate that the next CA may not issue is refused from
// the first step on, when the exchange can be undone. The bridge has the next CA's constraints.
func TestAnExchangeHidesNoConstraints(t *testing.T) {
	c := newCompany(t)
	trust := newTrust(t)
	first, err := ParseAuthority(trust.Issuer().PEM(), nil)
	if err != nil {
		t.Fatal(err)
	}
	key := mustKey(t)
	try := func(name string) error {
		_, err := trust.Issue(Request{CommonName: "s1", Usage: Client | Server, Names: []string{name}}, key.Public(),
			time.Now())
		return err
	}
	check := func(step string, refused string) {
		t.Helper()
		for _, bad := range []string{"forbidden", "x.forbidden", "192.0.2.1"} {
			switch err := try(bad); {
			case refused == "" && err != nil:
				t.Errorf("%s: %q: %v", step, bad, err)
			case refused != "" && (err == nil || !strings.Contains(err.Error(), refused)):
				t.Errorf("%s: %q: %v, want %q", step, bad, err, refused)
			}
		}
		for _, good := range []string{"kubernetes", "10.43.0.1"} {
			if err := try(good); err != nil {
				t.Errorf("%s: %q: %v", step, good, err)
			}
		}
	}
	check("before", "")
	e, account := c.external("Cluster CA", narrow), mustKey(t)
	b, err := trust.Bundle().BeginExternal(e, account.Public(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	set(t, trust, b, e.ca.key, account)
	check("made known", "--undo")
	advance(t, trust)
	check("issuing", "may not issue")

	// A limit of the issuing CA also holds on the chain over the first CA.
	between := trust.current().bundle.along()
	server := func(name string, by *x509.Certificate, byKey crypto.Signer) *x509.Certificate {
		return c.sign(
			&x509.Certificate{NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
				DNSNames:    []string{name},
				ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}, by, key, byKey)
	}
	bad := server("x.forbidden", e.ca.cert, e.ca.key)
	if err := first.Verify(bad, between, x509.ExtKeyUsageServerAuth, time.Now()); err == nil {
		t.Error("who knows the first CA believes a certificate that the next one may not issue")
	}
	below := c.sign(template("Below"), e.ca.cert, key, e.ca.key)
	if err := first.Verify(server("x", below, key), append(between, below), x509.ExtKeyUsageServerAuth,
		time.Now()); err == nil {
		t.Error("who knows the first CA believes a CA below one with the path length 0")
	}
	good, err := trust.Issue(Request{CommonName: "s1", Usage: Server, Names: []string{"kubernetes"}}, key.Public(),
		time.Now())
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := parseCertificate(good)
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Verify(leaf, between, x509.ExtKeyUsageServerAuth, time.Now()); err != nil {
		t.Errorf("who knows the first CA: %v", err)
	}
	advance(t, trust)
	check("settled", "may not issue")
}

// TestATwinIsAnotherCluster: two clusters may begin with one CA, such as when a server loses its
// data and has the flags of its first start. Nodes of one do not trust the other. A cluster that
// continues one from a backup is trusted.
func TestATwinIsAnotherCluster(t *testing.T) {
	e := newCompany(t).external("Cluster CA", nil)
	make := func(b Bundle) *Trust {
		text, err := json.Marshal(b) // as in records, joins and backups
		if err != nil {
			t.Fatal(err)
		}
		var is Bundle
		if err := json.Unmarshal(text, &is); err != nil {
			t.Fatal(err)
		}
		trust, err := NewTrust(is, e.ca.key)
		if err != nil {
			t.Fatal(err)
		}
		return trust
	}
	first := NewExternalBundle(e)
	own, twin, successor := make(first), make(NewExternalBundle(e)), make(first)
	for name, c := range map[string]struct {
		by   *Trust
		good bool
	}{"itself": {own, true}, "a successor": {successor, true}, "a twin": {twin, false}} {
		chain := issued(t, c.by)
		err := own.Verify(chain[0], chain[1:], x509.ExtKeyUsageServerAuth, time.Now())
		if c.good && err != nil || !c.good && !errors.Is(err, ErrOtherCluster) {
			t.Errorf("%s: %v", name, err)
		}
		if same := own.SameCluster(tls.ConnectionState{PeerCertificates: chain}); (same == nil) != c.good {
			t.Errorf("%s: the connection: %v", name, same)
		}
	}
	if err := own.SameCluster(tls.ConnectionState{}); err != nil {
		t.Errorf("a client without a certificate: %v", err)
	}
	// A cluster keeps its origin with another CA, and gets one with its first External CA.
	built := newTrust(t)
	if built.Bundle().Origin != "" {
		t.Error("a cluster with a built-in CA has an origin, which earlier versions drop")
	}
	began, err := built.Bundle().BeginExternal(e, mustKey(t).Public(), time.Now())
	if err != nil || began.Origin == "" || began.Origin == first.Origin {
		t.Errorf("origin %q: %v", began.Origin, err)
	}
	again, err := built.Bundle().BeginExternal(newCompany(t).external("Another CA", nil), mustKey(t).Public(),
		time.Now())
	if err != nil || again.Origin != began.Origin { // agents may have seen it before a backup was restored
		t.Errorf("the same cluster begins again with the origin %q after %q: %v", again.Origin, began.Origin, err)
	}
	next, err := first.BeginExternal(newCompany(t).external("Next CA", nil), mustKey(t).Public(), time.Now())
	if err != nil || next.Origin != first.Origin {
		t.Errorf("origin %q after %q: %v", next.Origin, first.Origin, err)
	}
}

// TestTheCompanyVouchesForNoBuiltInCA: an operator's CA never signs another CA of the cluster,
// whatever its path length. Clients that trust the company's root would trust that CA.
func TestTheCompanyVouchesForNoBuiltInCA(t *testing.T) {
	c := newCompany(t)
	e, account := c.external("Cluster CA", nil), mustKey(t)
	b, err := NewExternalBundle(e).WithAccountKey(account.Public())
	if err != nil {
		t.Fatal(err)
	}
	trust, err := NewTrust(b, e.ca.key, account)
	if err != nil {
		t.Fatal(err)
	}
	begin(t, trust, "c1")
	for _, step := range []string{"a built-in one issues", "settled"} {
		advance(t, trust)
		for _, cert := range trust.Bundle().along() {
			if SamePublicKey(cert.PublicKey, trust.Issuer().cert.PublicKey) {
				t.Errorf("%s: %v has signed the CA %v", step, cert.Issuer, cert.Subject)
			}
		}
		if chain := issued(t, trust); c.byRoot(chain) == nil {
			t.Errorf("%s: the company's root believes the built-in CA", step)
		}
	}
}
