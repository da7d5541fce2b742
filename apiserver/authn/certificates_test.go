package authn

import (
	"crypto"
	"crypto/rand"
	"crypto/tls"
	cryptox509 "crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/component-base/metrics/legacyregistry"
)

// signer is an authority of client certificates.
type signer struct {
	cert *cryptox509.Certificate
	key  crypto.Signer
}

// certificate makes a certificate, signed by a signer, or by itself when that is nil.
func certificate(t testing.TB, by *signer, name string, notAfter time.Time) *signer {
	t.Helper()
	key := newKey(t)
	template := &cryptox509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: name, Organization: []string{"group"}},
		NotBefore:    time.Now().Add(-time.Hour), NotAfter: notAfter, BasicConstraintsValid: true,
		IsCA:        !strings.HasPrefix(name, "client"),
		KeyUsage:    cryptox509.KeyUsageDigitalSignature | cryptox509.KeyUsageCertSign,
		ExtKeyUsage: []cryptox509.ExtKeyUsage{cryptox509.ExtKeyUsageClientAuth},
	}
	if by == nil {
		by = &signer{template, key}
	}
	der, err := cryptox509.CreateCertificate(rand.Reader, template, by.cert, key.Public(), by.key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := cryptox509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &signer{cert, key}
}

// with is a request with client certificates.
func with(certs ...*cryptox509.Certificate) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.TLS = &tls.ConnectionState{PeerCertificates: certs}
	return r
}

// trusted are authorities that a test exchanges, and its time.
type trusted struct {
	pool *cryptox509.CertPool
	now  time.Time
}

func (c *trusted) set(authorities ...*signer) {
	c.pool = cryptox509.NewCertPool()
	for _, a := range authorities {
		c.pool.AddCert(a.cert)
	}
}

func (c *trusted) options() (cryptox509.VerifyOptions, bool) {
	return cryptox509.VerifyOptions{Roots: c.pool, CurrentTime: c.now,
		KeyUsages: []cryptox509.ExtKeyUsage{cryptox509.ExtKeyUsageClientAuth}}, c.pool != nil
}

// want authenticates a request, which must be refused when there is no name.
func want(t *testing.T, what string, a authenticator.Request, r *http.Request, name string) {
	t.Helper()
	answer, ok, err := a.AuthenticateRequest(r)
	switch {
	case name == "" && (ok || err == nil):
		t.Errorf("%s: authenticated: %v, %v", what, ok, err)
	case name != "" && (!ok || err != nil):
		t.Errorf("%s: authenticated: %v, %v", what, ok, err)
	case name != "" &&
		(answer.User.GetName() != name || answer.User.GetGroups()[0] != "group" || len(answer.User.GetExtra()) != 1):
		t.Errorf("%s: %+v", what, answer.User)
	}
}

// expirations is how often the end of a client certificate was noted.
func expirations(t *testing.T) uint64 {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "apiserver_client_certificate_expiration_seconds" {
			return f.Metric[0].GetHistogram().GetSampleCount()
		}
	}
	return 0
}

func TestCertificatesAreRemembered(t *testing.T) {
	now := time.Now()
	authority, other := certificate(t, nil, "CA", now.Add(2*time.Hour)), certificate(t, nil, "CA", now.Add(2*time.Hour))
	short := certificate(t, nil, "short", now.Add(time.Hour))
	client, brief := certificate(t, authority, "client", now.Add(time.Hour)),
		certificate(t, short, "client-of-short", now.Add(9*time.Hour))
	between := certificate(t, authority, "between", now.Add(time.Hour))
	far := certificate(t, between, "client-far", now.Add(time.Hour))
	trust := &trusted{now: now}
	trust.set(authority, short)
	c := newCertificates(trust.options, nil)
	remembers := func(what string, n int) {
		t.Helper()
		if c.verified.Len() != n {
			t.Errorf("%s: %d certificates are remembered", what, c.verified.Len())
		}
	}

	before := expirations(t)
	want(t, "the first request", c, with(client.cert), "client")
	remembers("the first request", 1)
	entry, _ := c.verified.Get(client.cert)
	want(t, "the second request", c, with(client.cert), "client")
	if again, _ := c.verified.Get(client.cert); again != entry {
		t.Error("the second request has verified the signature")
	}
	if n := expirations(t) - before; n != 2 {
		t.Errorf("the end of a certificate was noted %d times for two requests", n)
	}

	want(t, "of another authority", c, with(certificate(t, other, "client", now.Add(time.Hour)).cert), "")
	want(t, "with the one that vouches for it", c, with(far.cert, between.cert), "client-far")
	want(t, "without the one that vouches for it", c, with(far.cert), "")
	remembers("whoever else has come", 1)

	trust.set(other)
	want(t, "after its authority has gone", c, with(client.cert), "")
	trust.set(authority, short, other)
	want(t, "after its authority has come back", c, with(client.cert), "client")
	want(t, "of an authority that ends", c, with(brief.cert), "client-of-short")
	trust.now = now.Add(time.Hour + time.Minute)
	want(t, "after its end", c, with(client.cert), "")
	want(t, "after the end of its authority", c, with(brief.cert), "")
	trust.now = now.Add(-2 * time.Hour)
	want(t, "before its time", c, with(client.cert), "")

	trust.pool = nil
	if _, ok, err := c.AuthenticateRequest(with(client.cert)); ok || err != nil {
		t.Errorf("without any authority: %v, %v", ok, err)
	}
	if _, ok, err := c.AuthenticateRequest(with()); ok || err != nil {
		t.Errorf("without a certificate: %v, %v", ok, err)
	}
}

// TestCertificatesOfControllers: a certificate with the name of a controller's account, which an
// earlier version may have signed, counts as little as a token.
func TestCertificatesOfControllers(t *testing.T) {
	authority := certificate(t, nil, "CA", time.Now().Add(time.Hour))
	trust := &trusted{now: time.Now()}
	trust.set(authority)
	c := newCertificates(trust.options,
		func(namespace, name string) bool { return namespace == "kube-system" && name == "job-controller" })
	const controller = "system:serviceaccount:kube-system:job-controller"
	stolen := certificate(t, authority, controller, time.Now().Add(time.Hour))
	for range 2 { // the second result is cached
		if answer, ok, err := c.AuthenticateRequest(with(stolen.cert)); ok || err == nil ||
			!strings.Contains(err.Error(), "none counts for it") {
			t.Errorf("%+v, %v", answer, err)
		}
	}
	// With an intermediate, which is verified each time.
	between := certificate(t, authority, "between", time.Now().Add(time.Hour))
	far := certificate(t, between, controller, time.Now().Add(time.Hour))
	if answer, ok, err := c.AuthenticateRequest(with(far.cert, between.cert)); ok || err == nil {
		t.Errorf("%+v, %v", answer, err)
	}
	for _, name := range []string{"system:serviceaccount:shop:job-controller",
		"system:serviceaccount:kube-system:robot"} {
		want(t, name, c, with(certificate(t, authority, name, time.Now().Add(time.Hour)).cert), name)
	}
}

// TestCertificatesOfOtherNames: only certificates of the names are checked further, and the errors
// of the others are the API machinery's.
func TestCertificatesOfOtherNames(t *testing.T) {
	authority := certificate(t, nil, "CA", time.Now().Add(time.Hour))
	trust := &trusted{now: time.Now()}
	trust.set(authority)
	asked := 0
	next := authenticator.RequestFunc(func(*http.Request) (*authenticator.Response, bool, error) {
		asked++
		return nil, false, errors.New("asked")
	})
	c := &namedCertificates{trust.options, []string{"client-proxy"}, next}
	_, _, err := c.AuthenticateRequest(with(certificate(t, authority, "client-mary", time.Now().Add(time.Hour)).cert))
	if err == nil || err.Error() != "x509: subject with cn=client-mary is not in the allowed list" || asked != 0 {
		t.Errorf("%v, asked %d times", err, asked)
	}
	if _, _, err := c.AuthenticateRequest(
		with(certificate(t, authority, "client-proxy", time.Now().Add(time.Hour)).cert)); asked != 1 || err == nil {
		t.Errorf("%v, asked %d times", err, asked)
	}
	if _, ok, err := c.AuthenticateRequest(with()); ok || err != nil {
		t.Errorf("without a certificate: %v, %v", ok, err)
	}
}

// BenchmarkCertificates authenticates a client that comes again and again.
func BenchmarkCertificates(b *testing.B) {
	authority := certificate(b, nil, "CA", time.Now().Add(time.Hour))
	trust := &trusted{}
	trust.set(authority)
	r := with(certificate(b, authority, "client", time.Now().Add(time.Hour)).cert)
	c := newCertificates(trust.options, nil)
	for name, a := range map[string]authenticator.Request{"remembered": c, "verified": c.first} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, ok, err := a.AuthenticateRequest(r); !ok || err != nil {
					b.Fatal(ok, err)
				}
			}
		})
	}
}
