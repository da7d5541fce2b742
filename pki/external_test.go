package pki

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// company is a company's root and the CAs that it signs.
type company struct {
	t    *testing.T
	root *x509.Certificate
	key  crypto.Signer
}

func newCompany(t *testing.T) *company {
	c := &company{t: t, key: ecdsaKey(t, elliptic.P256())}
	c.root = c.sign(template("Example Root"), nil, c.key, c.key)
	return c
}

func ecdsaKey(t *testing.T, curve elliptic.Curve) crypto.Signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func rsaKey(t *testing.T, bits int) crypto.Signer {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, bits)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// template returns the template of a CA for five years.
func template(name string) *x509.Certificate {
	now := time.Now()
	return &x509.Certificate{
		Subject: pkix.Name{Organization: []string{"Example"}, CommonName: name}, NotBefore: now.Add(-time.Hour),
		NotAfter: now.AddDate(5, 0, 0),
		IsCA:     true, BasicConstraintsValid: true, MaxPathLen: -1,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
	}
}

// sign signs a certificate; without a parent it signs itself.
func (c *company) sign(cert, parent *x509.Certificate, key, by crypto.Signer) *x509.Certificate {
	c.t.Helper()
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		c.t.Fatal(err)
	}
	cert.SerialNumber = serial
	if parent == nil {
		parent = cert
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, parent, key.Public(), by)
	if err != nil {
		c.t.Fatal(err)
	}
	out, err := x509.ParseCertificate(der)
	if err != nil {
		c.t.Fatal(err)
	}
	return out
}

// intermediate is one that the root has signed.
func (c *company) intermediate(name string, change func(*x509.Certificate)) (*x509.Certificate, crypto.Signer) {
	c.t.Helper()
	key, cert := ecdsaKey(c.t, elliptic.P256()), template(name)
	if change != nil {
		change(cert)
	}
	return c.sign(cert, c.root, key, c.key), key
}

// external is such an intermediate as the CA of a cluster.
func (c *company) external(name string, change func(*x509.Certificate)) *External {
	c.t.Helper()
	cert, key := c.intermediate(name, change)
	e, err := ParseExternal(chainText(cert, c.root), keyText(c.t, key), time.Now())
	if err != nil {
		c.t.Fatal(err)
	}
	return e
}

func chainText(certs ...*x509.Certificate) (out []byte) {
	for _, cert := range certs {
		out = append(out, encodePEM("CERTIFICATE", cert.Raw)...)
	}
	return out
}

func keyText(t *testing.T, key crypto.Signer) []byte {
	t.Helper()
	text, err := MarshalKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// byRoot reports whether a client that knows only the company's root trusts the chain.
func (c *company) byRoot(chain []*x509.Certificate) error {
	roots := x509.NewCertPool()
	roots.AddCert(c.root)
	return verify(roots, chain[0], chain[1:], x509.ExtKeyUsageServerAuth, time.Now())
}

// serving returns a certificate for the names, and one for a client.
func serving(names ...string) []Request {
	return []Request{{CommonName: "barque:apiserver", Usage: Server, Names: names},
		{CommonName: "barque:admin", Usage: Client}}
}

// TestExternalRefusals: each kind of unfit CA is refused with the reason and the remedy.
func TestExternalRefusals(t *testing.T) {
	c := newCompany(t)
	good, goodKey := c.intermediate("Cluster CA", nil)
	text, key := chainText(good, c.root), keyText(t, goodKey)
	now := time.Now()
	changed := func(change func(*x509.Certificate)) func() ([]byte, []byte) {
		return func() ([]byte, []byte) {
			cert, key := c.intermediate("Cluster CA", change)
			return chainText(cert, c.root), keyText(t, key)
		}
	}
	signedBy := func(own crypto.Signer) func() ([]byte, []byte) {
		return func() ([]byte, []byte) {
			return chainText(c.sign(template("Cluster CA"), c.root, own, c.key), c.root), keyText(t, own)
		}
	}
	under := func(change func(*x509.Certificate), key crypto.Signer) func() ([]byte, []byte) {
		return func() ([]byte, []byte) {
			upper := template("Example Issuing")
			change(upper)
			middle := c.sign(upper, c.root, key, c.key)
			own := ecdsaKey(t, elliptic.P256())
			return chainText(c.sign(template("Cluster CA"), middle, own, key), middle, c.root), keyText(t, own)
		}
	}
	ec, err := x509.MarshalECPrivateKey(goodKey.(*ecdsa.PrivateKey))
	if err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string]struct {
		given func() (chain, key []byte)
		want  string
	}{
		"no certificate": {func() ([]byte, []byte) { return []byte("x"), key }, "no certificate in PEM"},
		"a key in the chain": {func() ([]byte, []byte) { return slices.Concat(text, key), key },
			"has a private key"},
		"something else": {func() ([]byte, []byte) { return append(text, encodePEM("X509 CRL", nil)...), key },
			`PEM block "X509 CRL"`},
		"a damaged certificate": {func() ([]byte, []byte) { return encodePEM("CERTIFICATE", good.Raw[:99]), key },
			"cannot be read"},
		"a certificate twice": {func() ([]byte, []byte) { return chainText(good, good), key }, "twice"},
		"no key":              {func() ([]byte, []byte) { return text, nil }, "no private key"},
		"swapped files":       {func() ([]byte, []byte) { return text, chainText(good) }, "swapped"},
		"two keys": {func() ([]byte, []byte) { return text, slices.Concat(key, key) },
			"more than the key"},
		"an encrypted key": {
			func() ([]byte, []byte) { return text, encodePEM("ENCRYPTED PRIVATE KEY", []byte("x")) }, "openssl pkey"},
		"a damaged key": {func() ([]byte, []byte) { return text, encodePEM("EC PRIVATE KEY", ec[:20]) },
			"cannot be read"},
		"a public key": {func() ([]byte, []byte) { return text, encodePEM("PUBLIC KEY", nil) },
			`PEM block "PUBLIC KEY"`},
		"an RSA key": {signedBy(rsaKey(t, 2048)), "want ECDSA"},
		"P-521":      {signedBy(ecdsaKey(t, elliptic.P521())), "P-521"},
		"P-224":      {signedBy(ecdsaKey(t, elliptic.P224())), "P-224"},
		"another key": {func() ([]byte, []byte) { return text, keyText(t, ecdsaKey(t, elliptic.P256())) },
			"does not belong"},
		"the root's key": {func() ([]byte, []byte) { return text, keyText(t, c.key) },
			"certificate 2 of the chain (CN=Example Root"},
		"no CA": {changed(func(x *x509.Certificate) { x.IsCA, x.MaxPathLen = false, 0 }), "CA:TRUE"},
		"may not sign": {changed(func(x *x509.Certificate) { x.KeyUsage = x509.KeyUsageDigitalSignature }),
			"keyCertSign"},
		"no key usage": {changed(func(x *x509.Certificate) { x.KeyUsage = 0 }), "keyCertSign"},
		"servers only": {
			changed(func(x *x509.Certificate) { x.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }),
			"lacks serverAuth or clientAuth"},
		"has ended": {changed(func(x *x509.Certificate) { x.NotAfter = now.Add(-time.Minute) }),
			"has ended"},
		"ends soon": {changed(func(x *x509.Certificate) { x.NotAfter = now.Add(29 * 24 * time.Hour) }),
			"want 30 days"},
		"begins later": {changed(func(x *x509.Certificate) { x.NotBefore = now.Add(time.Hour) }),
			"not valid before"},
		"an unknown extension": {changed(func(x *x509.Certificate) {
			x.ExtraExtensions = []pkix.Extension{{Id: onRequest, Critical: true, Value: []byte{5, 0}}}
		}), "critical extension"},
		"a built-in CA's name": {changed(func(x *x509.Certificate) { x.Subject.CommonName = "barque-ca x" }),
			"name of its own"},
		"names of the company": {changed(func(x *x509.Certificate) {
			x.PermittedDNSDomains, x.PermittedDNSDomainsCritical = []string{"example.com"}, true
		}), `forbid "kubernetes"`},
		"addresses are forbidden": {changed(func(x *x509.Certificate) {
			x.ExcludedIPRanges = []*net.IPNet{{IP: net.IP{10, 0, 0, 0}, Mask: net.IPMask{255, 0, 0, 0}}}
		}), `forbid "10.43.0.1"`},
		"above: constraints": {
			under(func(x *x509.Certificate) { x.ExcludedDNSDomains = []string{"kubernetes"} },
				ecdsaKey(t, elliptic.P256())), `forbid "kubernetes"`},
		"above: path length": {
			under(func(x *x509.Certificate) { x.MaxPathLen, x.MaxPathLenZero = 0, true }, ecdsaKey(t, elliptic.P256())),
			"path length"},
		"above: ends soon": {
			under(func(x *x509.Certificate) { x.NotAfter = now.Add(24 * time.Hour) }, ecdsaKey(t, elliptic.P256())),
			"certificate 2 of the chain (CN=Example Issuing"},
		"above: clients only": {
			under(func(x *x509.Certificate) { x.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth} },
				ecdsaKey(t, elliptic.P256())), "lacks serverAuth or clientAuth"},
		"above: P-224": {under(func(x *x509.Certificate) {}, ecdsaKey(t, elliptic.P224())), "224 bits"},
		"the wrong order": {func() ([]byte, []byte) {
			other, _ := c.intermediate("Other", nil)
			return chainText(good, other, c.root), key
		}, "order the chain"},
		"more after the root": {func() ([]byte, []byte) { return chainText(good, c.root, newCompany(t).root), key },
			"is a root, and more follows"},
		"another root": {func() ([]byte, []byte) { return chainText(good, newCompany(t).root), key },
			"and another key"},
		"too long": {func() ([]byte, []byte) {
			return append(text,
				chainText(newCompany(t).root, newCompany(t).root, newCompany(t).root, newCompany(t).root)...), key
		}, "5 are allowed"},
	} {
		t.Run(name, func(t *testing.T) {
			chain, key := bad.given()
			e, err := ParseExternal(chain, key, now)
			if err == nil {
				err = e.Issues(
					serving("kubernetes", "kubernetes.default.svc.cluster.local", "localhost", "127.0.0.1",
						"10.43.0.1"), now)
			}
			if !errors.Is(err, ErrUnfit) || !strings.Contains(err.Error(), bad.want) {
				t.Errorf("got %v; want %q", err, bad.want)
			}
		})
	}
	// Go makes no 1024-bit keys any more. This one is from a root of 2009.
	short := &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign, MaxPathLen: -1,
		NotAfter:  now.AddDate(1, 0, 0),
		PublicKey: &rsa.PublicKey{N: new(big.Int).Lsh(big.NewInt(1), 1023), E: 65537}}
	if err := checkLink(1, short, now); !errors.Is(err, ErrUnfit) || !strings.Contains(err.Error(), "1024 bits") {
		t.Errorf("a short RSA key: %v", err)
	}
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parseExternalKey(keyText(t, edKey)); !errors.Is(err, ErrUnfit) {
		t.Errorf("Ed25519: %v", err)
	}
}

// TestExternalFiles: openssl's forms of keys are read; a key that others may read is refused.
func TestExternalFiles(t *testing.T) {
	c := newCompany(t)
	cert, key := c.intermediate("Cluster CA", nil)
	ec, err := x509.MarshalECPrivateKey(key.(*ecdsa.PrivateKey))
	if err != nil {
		t.Fatal(err)
	}
	chainFile, keyFile := filepath.Join(t.TempDir(), "chain.pem"), filepath.Join(t.TempDir(), "ca.key")
	if err := os.WriteFile(chainFile, append([]byte("subject=CN = Cluster CA\n"), chainText(cert)...),
		0o644); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{
		"PKCS #8": keyText(t, key), "SEC 1": encodePEM("EC PRIVATE KEY", ec),
		"openssl ecparam": append(encodePEM("EC PARAMETERS", []byte{6, 0}), encodePEM("EC PRIVATE KEY", ec)...),
	} {
		if err := os.WriteFile(keyFile, text, 0o600); err != nil {
			t.Fatal(err)
		}
		e, err := ReadExternal(chainFile, keyFile, time.Now())
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if kept, err := e.Authority().KeyPEM(); err != nil || !bytes.Equal(kept, keyText(t, key)) {
			t.Errorf("%s: another key is kept, or in another form: %v", name, err)
		}
	}
	for _, mode := range []os.FileMode{0o640, 0o604, 0o620} {
		if err := os.Chmod(keyFile, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadExternal(chainFile, keyFile, time.Now()); !errors.Is(err, ErrUnfit) ||
			!strings.Contains(err.Error(), "chmod 600") {
			t.Errorf("mode %v: %v", mode, err)
		}
	}
	if _, err := ReadExternal(chainFile, keyFile+"x", time.Now()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

// TestExternalAnchor: the cluster trusts only its own CA's key, within the company's limits. Its
// certificates verify by the company's root, with the chain.
func TestExternalAnchor(t *testing.T) {
	c := newCompany(t)
	middleKey, ends := ecdsaKey(t, elliptic.P384()), time.Now().AddDate(1, 0, 0).UTC().Truncate(time.Second)
	middleCert := template("Example Issuing")
	middleCert.NotAfter, middleCert.MaxPathLen = ends, 1
	middle := c.sign(middleCert, c.root, middleKey, c.key)
	key, own := ecdsaKey(t, elliptic.P384()), template("Cluster CA")
	own.ExcludedDNSDomains = []string{"example.com"}
	cert := c.sign(own, middle, key, middleKey)
	for name, chain := range map[string][]byte{"with the root": chainText(cert, middle, c.root),
		"without it": chainText(cert, middle)} {
		t.Run(name, func(t *testing.T) {
			e, err := ParseExternal(chain, keyText(t, key), time.Now())
			if err != nil {
				t.Fatal(err)
			}
			if err := e.Issues(serving("kubernetes", "127.0.0.1"), time.Now()); err != nil {
				t.Fatal(err)
			}
			b := NewExternalBundle(e)
			trust, err := NewTrust(b, key)
			if err != nil {
				t.Fatal(err)
			}
			anchor := trust.Issuer().Certificate()
			if !selfSigned(anchor) || !bytes.Equal(anchor.RawSubject, cert.RawSubject) ||
				!bytes.Equal(anchor.SubjectKeyId, cert.SubjectKeyId) ||
				!SamePublicKey(anchor.PublicKey, cert.PublicKey) {
				t.Errorf("the anchor is %v of %v", anchor.Subject, anchor.Issuer)
			}
			if !anchor.NotAfter.Equal(ends) || anchor.MaxPathLen != 0 || !anchor.MaxPathLenZero ||
				!slices.Equal(anchor.ExcludedDNSDomains, own.ExcludedDNSDomains) || !b.External() {
				t.Errorf("the anchor ends at %v, path length %d, excludes %q", anchor.NotAfter, anchor.MaxPathLen,
					anchor.ExcludedDNSDomains)
			}
			leaf := issued(t, trust)
			if !believes(trust, leaf) || len(leaf) != 3 {
				t.Fatalf("the cluster does not believe its own certificate, or %d are sent", len(leaf))
			}
			if err := c.byRoot(leaf); err != nil {
				t.Errorf("by the company's root: %v", err)
			}
			if err := c.byRoot(leaf[:1]); err == nil {
				t.Error("the root has signed the certificate itself")
			}
			if leaf[0].NotAfter.After(ends) {
				t.Errorf("a certificate lasts until %v, beyond the CAs above", leaf[0].NotAfter)
			}
			credential, err := trust.SignCredential(
				Credential{Name: "s1", Role: RoleServer, Public: make([]byte, 32), NotAfter: ends})
			if err != nil {
				t.Fatal(err)
			}
			if got, err := trust.VerifyCredential(credential, time.Now()); err != nil || got.Name != "s1" {
				t.Errorf("credential: %v", err)
			}
		})
	}
}

// TestTheCompanyIsNotTheCluster: the cluster trusts only its own CA for system:masters. It rejects
// such certificates by the company's root, a sibling of the CA, and a CA of the same name. The
// chain does not matter.
func TestTheCompanyIsNotTheCluster(t *testing.T) {
	c := newCompany(t)
	e := c.external("Cluster CA", nil)
	trust, err := NewTrust(NewExternalBundle(e))
	if err != nil {
		t.Fatal(err)
	}
	sibling, siblingKey := c.intermediate("Sibling", nil)
	twin, twinKey := c.intermediate("Cluster CA",
		func(x *x509.Certificate) { x.SubjectKeyId = e.given[0].SubjectKeyId })
	all := []*x509.Certificate{e.given[0], e.ca.cert, sibling, twin, c.root}
	for name, by := range map[string]struct {
		cert *x509.Certificate
		key  crypto.Signer
	}{"the root": {c.root, c.key}, "a sibling": {sibling, siblingKey},
		"a CA of the same name and key ID": {twin, twinKey}} {
		leaf := c.sign(
			&x509.Certificate{Subject: pkix.Name{CommonName: "mallory", Organization: []string{"system:masters"}},
				NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(1, 0, 0),
				KeyUsage:    x509.KeyUsageDigitalSignature,
				ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}}, by.cert,
			ecdsaKey(t, elliptic.P256()), by.key)
		if err := c.byRoot(append([]*x509.Certificate{leaf}, all...)); err != nil {
			t.Fatalf("%s: the company itself does not believe it, which tests nothing: %v", name, err)
		}
		for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth} {
			if trust.Verify(leaf, all, usage, time.Now()) == nil {
				t.Errorf("%s makes a user of the cluster", name)
			}
		}
		if trust.Issued(leaf) || trust.OfNewest(leaf) {
			t.Errorf("%s passes for the cluster's CA", name)
		}
	}
	// The cluster trusts no CA above its own.
	if pem := trust.PEM(); !bytes.Equal(pem, e.ca.pem) {
		t.Errorf("the cluster believes\n%s", pem)
	}
}

// TestExchangeWithExternalCAs goes from a built-in CA to an intermediate, to a second one, and
// back. Each step is checked with clients of the company's root and of the first CA.
func TestExchangeWithExternalCAs(t *testing.T) {
	c := newCompany(t)
	trust := newTrust(t)
	first, err := ParseAuthority(trust.Issuer().PEM(), nil)
	if err != nil {
		t.Fatal(err)
	}
	beginWith := func(e *External) error {
		t.Helper()
		account := mustKey(t)
		b, err := trust.Bundle().BeginExternal(e, account.Public(), time.Now())
		if err == nil {
			set(t, trust, b, e.ca.key, account)
		}
		return err
	}
	check := func(step string, root, ofFirst bool, along int) {
		t.Helper()
		leaf := issued(t, trust)
		if err := c.byRoot(leaf); (err == nil) != root {
			t.Errorf("%s: by the company's root: %v", step, err)
		}
		if is := believes(first, leaf); is != ofFirst {
			t.Errorf("%s: by the first CA: %v", step, is)
		}
		if !believes(trust, leaf) || len(leaf) != 1+along {
			t.Errorf("%s: the cluster believes it: %v; %d are sent", step, believes(trust, leaf), len(leaf))
		}
	}
	one := c.external("Cluster CA", nil)
	if err := beginWith(one); err != nil {
		t.Fatal(err)
	}
	check("made known", false, true, 0)
	undone, err := trust.Bundle().Undo()
	if err != nil || len(undone.Bridges) != 0 {
		t.Errorf("an exchange that was undone leaves %d certificates: %v", len(undone.Bridges), err)
	}
	advance(t, trust)
	check("the intermediate issues", true, true, 2)
	if leaf := issued(t, trust); !leaf[1].Equal(one.given[0]) {
		t.Errorf("after the certificate comes that of %v by %v; some clients try the first way only", leaf[1].Subject,
			leaf[1].Issuer)
	}
	advance(t, trust)
	check("settled", true, true, 2)

	if err := beginWith(one); !errors.Is(err, ErrUnfit) {
		t.Errorf("the same CA again: %v", err)
	}
	// the same name, another key
	two := c.external("Cluster CA", func(x *x509.Certificate) { x.MaxPathLen, x.MaxPathLenZero = 0, true })
	if err := beginWith(two); err != nil {
		t.Fatal(err)
	}
	advance(t, trust)
	check("the second one issues", true, true, 4)
	advance(t, trust)
	check("settled", true, true, 4)
	if err := beginWith(one); !errors.Is(err, ErrUnfit) {
		t.Errorf("a CA from before: %v", err)
	}

	// The second CA may sign no CAs. So no bridge leads from it to the next, and none of its own
	// stay.
	begin(t, trust, "c1")
	advance(t, trust)
	check("a built-in one issues", false, false, 0)
	advance(t, trust)
	check("settled", false, false, 0)
	if b := trust.Bundle(); len(b.Bridges) != 0 || b.External() {
		t.Errorf("%d bridges stay; external: %v", len(b.Bridges), b.External())
	}
}

// TestARootWithoutKeyUsage: openssl makes such roots by default.
func TestARootWithoutKeyUsage(t *testing.T) {
	c := &company{t: t, key: rsaKey(t, 2048)}
	plain := template("Example Root")
	plain.KeyUsage = 0
	c.root = c.sign(plain, nil, c.key, c.key)
	e := c.external("Cluster CA", nil)
	if err := e.Issues(serving("kubernetes"), time.Now()); err != nil {
		t.Error(err)
	}
	silent := template("Example Root")
	silent.KeyUsage = x509.KeyUsageCRLSign
	c.root = c.sign(silent, nil, c.key, c.key)
	cert, key := c.intermediate("Cluster CA", nil)
	if _, err := ParseExternal(chainText(cert, c.root), keyText(t, key), time.Now()); !errors.Is(err, ErrUnfit) {
		t.Errorf("a root that may not sign: %v", err)
	}
}

// TestExternalRoot: an operator's own root is used as the anchor unchanged.
func TestExternalRoot(t *testing.T) {
	c := newCompany(t)
	e, err := ParseExternal(chainText(c.root), keyText(t, c.key), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if !e.ca.cert.Equal(c.root) || len(e.Along()) != 0 || !NewExternalBundle(e).External() {
		t.Errorf("the anchor is %v, and %d are sent along", e.ca.cert.Subject, len(e.Along()))
	}
}
