package pki

import (
	"crypto"
	"crypto/x509"
	"crypto/x509/pkix"
	"slices"
	"testing"
	"time"
)

// vouched returns a server's peer certificate and the next CA's voucher.
func vouched(
	t *testing.T, trust *Trust, r Request, key crypto.Signer,
) (leaf *x509.Certificate, others []*x509.Certificate) {
	t.Helper()
	text, err := trust.IssueFor(Peers, r, key.Public(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if leaf, err = parseCertificate(text); err != nil {
		t.Fatal(err)
	}
	voucher, err := trust.Vouch(Peers, r, key.Public(), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if voucher != nil {
		other, err := parseCertificate(voucher)
		if err != nil {
			t.Fatal(err)
		}
		others = append(others, other)
	}
	return leaf, others
}

// TestTheNextCAVouches: during an exchange the next CA vouches for the key, name and groups that it
// has signed, and for no others. The exchange is of one CA for all purposes, or of three. Both
// certificates together are valid where the next CA is not known yet.
func TestTheNextCAVouches(t *testing.T) {
	for what, begin := range map[string]func(*testing.T, *Trust){
		"one": func(t *testing.T, trust *Trust) { begin(t, trust, "c1") }, "to three": beginSeparate,
		"three": func(t *testing.T, trust *Trust) {
			beginSeparate(t, trust)
			advance(t, trust)
			advance(t, trust)
			beginSeparate(t, trust)
		},
		"to one": func(t *testing.T, trust *Trust) {
			beginSeparate(t, trust)
			advance(t, trust)
			advance(t, trust)
			beginJoint(t, trust)
		},
	} {
		t.Run(what, func(t *testing.T) {
			trust, now := newTrust(t), time.Now()
			s1 := Request{CommonName: "s1", Organization: []string{"barque:servers"}, Usage: Client | Server,
				Holder: "s1.x"}
			key, thiefs := newKey(t), newKey(t)
			if _, others := vouched(t, trust, s1, key); others != nil {
				t.Error("without an exchange a CA vouches")
			}
			begin(t, trust)
			old := trust.current().circle(Peers).cas[0]
			leaf, others := vouched(t, trust, s1, key)
			check := func(what string, leaf *x509.Certificate, others []*x509.Certificate, want bool) {
				t.Helper()
				if got := trust.Vouched(Peers, leaf, others, now); got != want {
					t.Errorf("%s: %t", what, got)
				}
			}
			believed := func(trust *Trust, leaf *x509.Certificate, others []*x509.Certificate) {
				t.Helper()
				if err := trust.VerifyFor(Peers, leaf, others, x509.ExtKeyUsageClientAuth, now); err != nil {
					t.Errorf("it is not believed: %v", err)
				}
			}
			believed(trust, leaf, others)
			believed(TrustOf(old), leaf, others) // by a server that does not know the next CA
			check("a server", leaf, others, true)
			check("without what it sends along", leaf, nil, false)
			forged, _ := vouched(t, TrustOf(old), s1, thiefs)
			check("a thief of the old CA", forged, nil, false)
			check("a thief with a copy of the server's certificates", forged, others, false)
			s2, _ := vouched(t, TrustOf(old),
				Request{CommonName: "s2", Organization: s1.Organization, Usage: Client | Server}, key)
			check("a server by the name of another", s2, others, false)
			masters, _ := vouched(t, TrustOf(old),
				Request{CommonName: "s1", Organization: []string{"system:masters"}, Usage: Client}, key)
			check("a server with other groups", masters, others, false)
			next := trust.current().circle(Peers).newest(Spreading)
			requested, err := next.Sign(
				&x509.Certificate{Subject: pkix.Name{CommonName: "s1", Organization: s1.Organization}, NotBefore: now,
					NotAfter: now.Add(time.Hour)}, thiefs.Public(), now)
			if err != nil {
				t.Fatal(err)
			}
			csr, err := parseCertificate(requested)
			if err != nil {
				t.Fatal(err)
			}
			check("a certificate on request", forged, []*x509.Certificate{csr}, false)
			copies := slices.Repeat([]*x509.Certificate{leaf}, 300)
			check("behind hundreds of certificates that the old CA has signed for its key", leaf,
				append(copies, others...), false)
			check("behind hundreds of others", leaf, append(slices.Repeat([]*x509.Certificate{forged}, 300), others...),
				true)
			late := trust.Vouched(Peers, leaf, others, now.Add(2*LeafLifetime))
			if late {
				t.Error("a voucher that has ended counts")
			}
			digest, err := trust.Bundle().NewestFor(Peers)
			if err != nil || digest != next.Digest() {
				t.Errorf("the next CA is %s, %v", digest, err)
			}
			advance(t, trust)
			check("a server that is a step behind", leaf, others, true)
			check("a thief, when the new CA issues", forged, nil, false)
			is, none := vouched(t, trust, s1, key)
			check("a server by the new CA", is, none, true)
			if again, err := trust.Bundle().NewestFor(Peers); none != nil || err != nil || again != digest {
				t.Errorf("%d vouch; the newest CA is %s, %v", len(none), again, err)
			}
		})
	}
}

func newKey(t *testing.T) crypto.Signer {
	t.Helper()
	key, err := GenerateKey()
	if err != nil {
		t.Fatal(err)
	}
	return key
}
