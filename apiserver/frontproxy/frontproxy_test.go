package frontproxy

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apiserver/pkg/authentication/user"
	certutil "k8s.io/client-go/util/cert"

	"github.com/barque/barque/internal/cutoff"
)

// testCA issues certificates of clients.
type testCA struct {
	t    testing.TB
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newCA(t testing.TB) *testCA {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	ca := &testCA{t: t, key: key}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "proxies"}, IsCA: true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().Add(time.Hour)}
	ca.cert = ca.sign(template, template, key)
	return ca
}

func (ca *testCA) sign(template, parent *x509.Certificate, key *ecdsa.PrivateKey) *x509.Certificate {
	ca.t.Helper()
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), ca.key)
	if err != nil {
		ca.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		ca.t.Fatal(err)
	}
	return cert
}

func (ca *testCA) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ca.cert.Raw})
}

func (ca *testCA) issue(name string, change ...func(*x509.Certificate)) *x509.Certificate {
	ca.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		ca.t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		NotBefore:   time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour)}
	for _, f := range change {
		f(template)
	}
	return ca.sign(template, ca.cert, key)
}

var errReserved = errors.New("reserved")

// start returns a proxy of a file with the CA, and the path and the log.
func start(t testing.TB, ca *testCA, change ...func(*Options)) (p *Proxy, path string, log *bytes.Buffer) {
	t.Helper()
	path, log = filepath.Join(t.TempDir(), "proxy-ca.crt"), &bytes.Buffer{}
	if err := os.WriteFile(path, ca.pem(), 0o600); err != nil {
		t.Fatal(err)
	}
	o := &Options{CAFile: path, AllowedNames: []string{"auth"}, UserHeaders: []string{"X-My-User", "X-Remote-User"},
		UIDHeaders:   []string{"X-Remote-Uid"},
		GroupHeaders: []string{"X-My-Group", "X-Remote-Group"}, ExtraPrefixes: []string{"X-Remote-Extra-"}}
	for _, f := range change {
		f(o)
	}
	p, err := New(Config{Options: o, Logger: slog.New(slog.NewTextHandler(log, nil)), Check: func(who user.Info) error {
		if strings.HasPrefix(who.GetName(), "system:") || slices.Contains(who.GetGroups(), "system:masters") {
			return errReserved
		}
		return nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	return p, path, log
}

// request comes with a certificate, which may be nil, and headers.
func request(cert *x509.Certificate, headers ...string) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/api", nil)
	if r.TLS = (&tls.ConnectionState{}); cert != nil {
		r.TLS.PeerCertificates = []*x509.Certificate{cert}
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Add(headers[i], headers[i+1])
	}
	return r
}

// TestProxyNamesUser: all headers about the user count, and none of them goes further.
func TestProxyNamesUser(t *testing.T) {
	ca := newCA(t)
	p, _, log := start(t, ca)
	r := request(ca.issue("auth"), "X-Remote-User", "ann", "x-remote-uid", "7", "X-Remote-Group", "a", "X-My-Group",
		"b", "X-Remote-Group", "c",
		"X-Remote-Extra-Example.org%2fteam", "red", "Accept", "text/plain")
	response, ok, err := p.AuthenticateRequest(r)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	who := response.User
	if who.GetName() != "ann" || who.GetUID() != "7" || !slices.Equal(who.GetGroups(), []string{"b", "a", "c"}) ||
		!slices.Equal(who.GetExtra()["example.org/team"], []string{"red"}) {
		t.Errorf("they are %+v", who)
	}
	if len(r.Header) != 1 || r.Header.Get("Accept") == "" {
		t.Errorf("these headers go further: %v", r.Header)
	}
	if strings.Contains(log.String(), "level=WARN") {
		t.Errorf("with names there is nothing to warn of: %s", log)
	}
}

// TestStrangersNameNobody: the headers have no effect from any other client.
func TestStrangersNameNobody(t *testing.T) {
	ca, other := newCA(t), newCA(t)
	p, _, _ := start(t, ca)
	user := []string{"X-Remote-User", "ann"}
	for name, c := range map[string]struct {
		cert    *x509.Certificate
		headers []string
		fails   bool
	}{
		"no certificate":                 {nil, user, false},
		"the certificate without a user": {ca.issue("auth"), nil, false},
		"an empty user":                  {ca.issue("auth"), []string{"X-Remote-User", ""}, false},
		"groups without a user":          {ca.issue("auth"), []string{"X-Remote-Group", "admins"}, false},
		"another CA, with the name":      {other.issue("auth"), user, true},
		"the CA, with another name":      {ca.issue("auth2"), user, true},
		"the CA, with the name as a DNS name": {
			ca.issue("x", func(c *x509.Certificate) { c.DNSNames = []string{"auth"} }), user, true},
		"the certificate of a TLS server": {ca.issue("auth", func(c *x509.Certificate) {
			c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		}), user, true},
		"an expired certificate": {
			ca.issue("auth", func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }), user, true},
		"a reserved user": {ca.issue("auth"), []string{"X-Remote-User", "system:kube-scheduler"}, true},
		"a reserved group": {ca.issue("auth"),
			[]string{"X-Remote-User", "ann", "X-Remote-Group", "system:masters"}, true},
	} {
		response, ok, err := p.AuthenticateRequest(request(c.cert, c.headers...))
		if ok || response != nil || (err != nil) != c.fails {
			t.Errorf("%s: %+v, %t, %v", name, response, ok, err)
		}
	}
}

// TestWithoutNames: without names every certificate of the CA is a proxy's, with a warning.
func TestWithoutNames(t *testing.T) {
	ca := newCA(t)
	p, _, log := start(t, ca, func(o *Options) { o.AllowedNames = nil })
	if _, ok, err := p.AuthenticateRequest(request(ca.issue("whoever"), "X-Remote-User", "ann")); !ok || err != nil {
		t.Errorf("%t, %v", ok, err)
	}
	if _, ok, err := p.AuthenticateRequest(request(newCA(t).issue("whoever"), "X-Remote-User", "ann")); ok ||
		err == nil {
		t.Errorf("of another CA: %t, %v", ok, err)
	}
	if !strings.Contains(log.String(), namesFlag) || !strings.Contains(log.String(), "level=WARN") {
		t.Errorf("the log has no warning: %q", log)
	}
}

// TestReload: a changed file counts, and after a faulty one the former stays in effect.
func TestReload(t *testing.T) {
	ca, next := newCA(t), newCA(t)
	p, path, _ := start(t, ca)
	counts := func(of *testCA) bool {
		_, ok, _ := p.AuthenticateRequest(request(of.issue("auth"), "X-Remote-User", "ann"))
		return ok
	}
	state := func() (problem, hash string) {
		t.Helper()
		all := p.States()
		if len(all) != 2 || all[0].Flag != CAFlag || all[0].Path != path || all[1].Hash == "" {
			t.Fatalf("%+v", all)
		}
		return all[0].Problem, all[0].Hash
	}
	write := func(content []byte) {
		t.Helper()
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		p.file.Check(t.Context()) // a content counts when it was seen twice
		p.file.Check(t.Context())
	}
	_, first := state()
	write([]byte("no certificate"))
	if problem, hash := state(); problem == "" || hash != first || !counts(ca) {
		t.Errorf("with a wrong file: %q, %s", problem, hash)
	}
	write(append(ca.pem(), next.pem()...))
	if !counts(ca) || !counts(next) {
		t.Error("both CAs should count")
	}
	write(next.pem())
	if problem, hash := state(); problem != "" || hash == first || counts(ca) || !counts(next) {
		t.Errorf("with the next CA: %q, %s", problem, hash)
	}
	if certs, err := certutil.ParseCertsPEM(p.CAs()); err != nil || len(certs) != 1 || !certs[0].Equal(next.cert) {
		t.Errorf("the CAs are %v, %v", certs, err)
	}
}

// TestAFileWithoutCAs: an empty file logs no user out, and the state reports it. So does a
// missing one.
func TestAFileWithoutCAs(t *testing.T) {
	ca := newCA(t)
	p, path, log := start(t, ca)
	for what, change := range map[string]func() error{
		"empty": func() error { return os.Truncate(path, 0) }, "missing": func() error { return os.Remove(path) },
	} {
		if err := os.WriteFile(path, ca.pem(), 0o600); err != nil {
			t.Fatal(err)
		}
		p.file.Check(t.Context())
		log.Reset()
		if err := change(); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			p.file.Check(t.Context())
		}
		if _, ok, err := p.AuthenticateRequest(request(ca.issue("auth"), "X-Remote-User", "ann")); !ok || err != nil {
			t.Errorf("%s: %t, %v", what, ok, err)
		}
		problem := p.States()[0].Problem
		for _, says := range []string{`"CN=proxies"`, "still", "without " + CAFlag} {
			if !strings.Contains(problem, says) {
				t.Errorf("%s: the state does not say %s: %q", what, says, problem)
			}
		}
		if n := strings.Count(log.String(), "level=ERROR"); n != 1 || !strings.Contains(log.String(), "CN=proxies") {
			t.Errorf("%s: %d errors: %s", what, n, log)
		}
	}
}

// TestWhatItProvesEndsWithItsCA: the file changes while a request waits behind its authentication.
// Users with other credentials go on.
func TestWhatItProvesEndsWithItsCA(t *testing.T) {
	ca, next := newCA(t), newCA(t)
	auth := ca.issue("auth")
	for what, c := range map[string]struct {
		r    *http.Request
		ends bool
	}{
		"a user":         {request(auth, "X-Remote-User", "ann"), true},
		"a refused user": {request(auth, "X-Remote-User", "system:admin"), false}, "nobody": {request(auth), false},
	} {
		p, _, _ := start(t, ca)
		lasting := cutoff.New(cutoff.ByProxy, nil,
			func(*x509.Certificate) (x509.VerifyOptions, bool) { return p.Believed() },
			func(*http.Request) bool { return true })
		cutoff.WithProof(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, ok, _ := p.AuthenticateRequest(r); ok != c.ends {
				t.Errorf("%s: authenticated is %t", what, ok)
			}
			if err := p.replace(next.pem()); err != nil {
				t.Error(err)
			}
			lasting.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if err := context.Cause(r.Context()); (err != nil) != c.ends {
					t.Errorf("%s: ended by %v", what, err)
				}
			})).ServeHTTP(w, r)
		})).ServeHTTP(httptest.NewRecorder(), c.r)
	}
}

// TestSent: a proxy's connection is its own for all users, as long as its CA counts.
func TestSent(t *testing.T) {
	ca, next := newCA(t), newCA(t)
	p, _, _ := start(t, ca)
	auth := ca.issue("auth")
	for what, c := range map[string]struct {
		r    *http.Request
		sent bool
	}{
		"a user":         {request(auth, "X-Remote-User", "ann"), true},
		"a refused user": {request(auth, "X-Remote-User", "system:admin"), true},
		"nobody":         {request(auth), true},
		"another name":   {request(ca.issue("eve"), "X-Remote-User", "ann"), false},
		"another CA":     {request(next.issue("auth"), "X-Remote-User", "ann"), false},
		"none":           {request(nil, "X-Remote-User", "ann"), false},
	} {
		if is := p.Sent(c.r); is != c.sent {
			t.Errorf("%s: %t", what, is)
		}
	}
	changed := p.Changed()
	if err := p.replace(next.pem()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-changed:
	default:
		t.Error("other CAs count, and nobody hears of it")
	}
	if p.Sent(request(auth)) {
		t.Error("the CA before still counts")
	}
	var none *Proxy
	if none.Sent(request(auth)) {
		t.Error("no proxy has sent a request")
	}
}

// TestStatesDiffer: two servers with other flags are seen to differ.
func TestStatesDiffer(t *testing.T) {
	ca, seen := newCA(t), map[string]bool{}
	for _, names := range [][]string{nil, {"auth"}, {"auth", "other"}} {
		p, _, _ := start(t, ca, func(o *Options) { o.AllowedNames = names })
		all := p.States()
		if seen[all[1].Hash] {
			t.Errorf("%q: %+v", names, all)
		}
		seen[all[1].Hash] = true
	}
}

// TestCheck: faulty flags are named before the server starts.
func TestCheck(t *testing.T) {
	ca := newCA(t)
	_, path, _ := start(t, ca)
	garbage := filepath.Join(t.TempDir(), "garbage")
	if err := os.WriteFile(garbage, []byte("-----BEGIN RSA PRIVATE KEY-----\nAAAA\n-----END RSA PRIVATE KEY-----\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	user := []string{"X-Remote-User"}
	for name, c := range map[string]struct {
		o    Options
		says string
	}{
		"none":                   {Options{}, ""},
		"all":                    {Options{CAFile: path, AllowedNames: []string{"a"}, UserHeaders: user}, ""},
		"no name":                {Options{CAFile: path, UserHeaders: user}, ""},
		"no file":                {Options{UserHeaders: user}, userHeadersFlag},
		"names without a file":   {Options{AllowedNames: []string{"a"}}, namesFlag},
		"no header":              {Options{CAFile: path}, userHeadersFlag},
		"a file that is missing": {Options{CAFile: path + "x", UserHeaders: user}, CAFlag},
		"a file of a key":        {Options{CAFile: garbage, UserHeaders: user}, CAFlag},
		"a directory":            {Options{CAFile: filepath.Dir(path), UserHeaders: user}, CAFlag},
		"a header with a space":  {Options{CAFile: path, UserHeaders: []string{"X User"}}, userHeadersFlag},
		"an empty header":        {Options{CAFile: path, UserHeaders: user, GroupHeaders: []string{" "}}, groupsFlag},
		"an empty name": {Options{CAFile: path, UserHeaders: user, AllowedNames: []string{"a", ""}},
			namesFlag},
		"a server's name": {
			Options{CAFile: path, UserHeaders: user, AllowedNames: []string{"barque:front-proxy"}}, namesFlag},
	} {
		switch err := c.o.Check(); {
		case c.says == "" && err != nil:
			t.Errorf("%s: %v", name, err)
		case c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)):
			t.Errorf("%s: %v; want it to name %s", name, err, c.says)
		}
	}
}

// TestOwnCAIsRefused: with the cluster's CA, each node and user could pass for a proxy. It is
// recognized by its key, in any certificate.
func TestOwnCAIsRefused(t *testing.T) {
	own, proxies := newCA(t), newCA(t)
	again := *own
	again.cert = own.sign(
		&x509.Certificate{SerialNumber: big.NewInt(9), Subject: pkix.Name{CommonName: "again"}, IsCA: true,
			BasicConstraintsValid: true,
			NotBefore:             time.Now(), NotAfter: time.Now().Add(time.Minute)}, own.cert, own.key)
	for name, content := range map[string][]byte{"it": own.pem(), "its key": again.pem(),
		"it beside another": append(proxies.pem(), own.pem()...)} {
		path := filepath.Join(t.TempDir(), "ca.crt")
		if err := os.WriteFile(path, content, 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := New(
			Config{
				Options: &Options{CAFile: path, AllowedNames: []string{"auth"}, UserHeaders: []string{"X-Remote-User"}},
				OwnCAs:  own.pem,
				Check:   func(user.Info) error { return nil }, Logger: slog.New(slog.DiscardHandler)})
		if err == nil || !strings.Contains(err.Error(), CAFlag) ||
			!strings.Contains(err.Error(), "the cluster's own CA") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// BenchmarkAuthenticateRequest is a proxy's second and further requests of a connection.
func BenchmarkAuthenticateRequest(b *testing.B) {
	ca := newCA(b)
	p, _, _ := start(b, ca)
	r, headers := request(ca.issue("auth")), http.Header{"X-Remote-User": {"ann"}}
	b.ReportAllocs()
	for b.Loop() {
		r.Header = headers.Clone()
		if _, ok, err := p.AuthenticateRequest(r); !ok || err != nil {
			b.Fatal(ok, err)
		}
	}
}
