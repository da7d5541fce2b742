package clientcert

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"math/big"
	"testing"
	"time"
)

// pair is a certificate and its key.
type pair struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// issue signs a certificate that ends then; a nil parent signs itself.
func issue(t *testing.T, parent *pair, ca bool, end time.Time) *pair {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: serial.String()},
		NotBefore: end.Add(-24 * time.Hour), NotAfter: end,
		IsCA: ca, BasicConstraintsValid: true, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	if parent == nil {
		parent = &pair{template, key}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent.cert, key.Public(), parent.key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &pair{cert, key}
}

// TestMemory: the signatures of a chain are verified once, and no judgement outlives its reason.
func TestMemory(t *testing.T) {
	now := time.Now()
	root, other := issue(t, nil, true, now.Add(3*time.Hour)), issue(t, nil, true, now.Add(3*time.Hour))
	between := issue(t, root, true, now.Add(time.Hour))
	near, far := issue(t, root, false, now.Add(2*time.Hour)), issue(t, between, false, now.Add(2*time.Hour))
	trust := func(cas ...*pair) *x509.CertPool {
		pool := x509.NewCertPool()
		for _, ca := range cas {
			pool.AddCert(ca.cert)
		}
		return pool
	}
	good, bad, both := trust(root), trust(other), trust(root, other)
	nearAlone, farBetween := []*x509.Certificate{near.cert}, []*x509.Certificate{far.cert, between.cert}
	m := NewMemory(8)
	for _, step := range []struct {
		what    string
		sent    []*x509.Certificate
		by      *x509.CertPool
		at      time.Time
		valid   bool
		renewed bool // verified anew, and remembered
	}{
		{"first", nearAlone, good, now, true, true},
		{"again", nearAlone, good, now, true, false},
		{"its end", nearAlone, good, now.Add(2*time.Hour + time.Second), false, false},
		{"by another CA", nearAlone, bad, now, false, false},
		{"by another pool with its CA", nearAlone, both, now, true, true},
		{"none", nil, good, now, false, false},
		{"through an intermediate", farBetween, good, now, true, true},
		{"through it again", farBetween, good, now, true, false},
		{"without it", farBetween[:1], good, now, false, false},
		{"the end of the intermediate", farBetween, good, now.Add(time.Hour + time.Second), false, false},
	} {
		entry := func() (c any) {
			if len(step.sent) > 0 {
				c, _ = m.chains.Get(step.sent[0])
			}
			return c
		}
		before := entry()
		err := m.Verify(step.sent,
			x509.VerifyOptions{Roots: step.by, CurrentTime: step.at,
				KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
		if (err == nil) != step.valid || (entry() != before) != step.renewed {
			t.Errorf("%s: %v; verified anew and remembered: %t", step.what, err, entry() != before)
		}
	}
}
