package certs

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

// issuer makes certificates.
type issuer struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// issue makes a certificate by this issuer, or by itself.
func (i *issuer) issue(t *testing.T, name string, change func(*x509.Certificate)) *issuer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Unix(0, 0), NotAfter: time.Unix(1<<33, 0), BasicConstraintsValid: true}
	change(template)
	parent, by := template, key
	if i != nil {
		parent, by = i.cert, i.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, by)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &issuer{t, cert, key}
}

func (i *issuer) authority() *Authority { return &Authority{Certificates: []*x509.Certificate{i.cert}} }

func TestVouch(t *testing.T) {
	isCA := func(c *x509.Certificate) { c.IsCA, c.KeyUsage = true, x509.KeyUsageCertSign }
	usage := func(usages ...x509.ExtKeyUsage) func(*x509.Certificate) {
		return func(c *x509.Certificate) { c.ExtKeyUsage = usages }
	}
	var none *issuer
	root, other := none.issue(t, "root", isCA), none.issue(t, "other", isCA)
	between := root.issue(t, "between", isCA)
	client := between.issue(t, "client", usage(x509.ExtKeyUsageClientAuth))
	server := root.issue(t, "server", usage(x509.ExtKeyUsageServerAuth))
	ended := root.issue(t, "ended", func(c *x509.Certificate) { c.NotAfter = time.Unix(1, 0) })
	for _, c := range []struct {
		name  string
		chain []*issuer
		by    []*Authority
		want  bool
	}{
		{"with the one between", []*issuer{client, between}, []*Authority{root.authority()}, true},
		{"without it", []*issuer{client}, []*Authority{root.authority()}, false},
		{"by the one between", []*issuer{client}, []*Authority{between.authority()}, true},
		{"by one of two", []*issuer{client, between}, []*Authority{other.authority(), root.authority()}, true},
		{"by another CA", []*issuer{client, between}, []*Authority{other.authority()}, false},
		{"by nobody", []*issuer{client, between}, nil, false},
		{"a server's", []*issuer{server}, []*Authority{root.authority()}, false},
		{"one that has ended", []*issuer{ended}, []*Authority{root.authority()}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			var chain []*x509.Certificate
			for _, i := range c.chain {
				chain = append(chain, i.cert)
			}
			if got := Vouch(chain, c.by); got != c.want {
				t.Errorf("got %v", got)
			}
		})
	}
}
