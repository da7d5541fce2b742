package certificates

import (
	"crypto"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

var begin = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

// asked returns a request for a certificate in PEM.
func asked(t testing.TB, template x509.CertificateRequest) []byte {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &template, key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
}

func of(name string, organizations ...string) pkix.Name {
	return pkix.Name{CommonName: name, Organization: organizations}
}

// ownUser is a part of the control plane.
const ownUser = "system:serviceaccount:kube-system:job-controller"

func isOwnUser(name string) bool { return name == ownUser }

var (
	clientUsages  = []certificatesv1.KeyUsage{"client auth", "digital signature"}
	servingUsages = []certificatesv1.KeyUsage{"server auth", "key encipherment", "digital signature"}
)

func request(
	t testing.TB, signer string, template x509.CertificateRequest, usages []certificatesv1.KeyUsage,
	conditions ...certificatesv1.RequestConditionType,
) *certificatesv1.CertificateSigningRequest {
	r := &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "r"},
		Spec: certificatesv1.CertificateSigningRequestSpec{SignerName: signer, Request: asked(t, template),
			Usages: usages},
	}
	for _, c := range conditions {
		r.Status.Conditions = append(r.Status.Conditions,
			certificatesv1.CertificateSigningRequestCondition{Type: c, Status: corev1.ConditionTrue})
	}
	return r
}

func TestWhatIsSigned(t *testing.T) {
	const (
		client  = certificatesv1.KubeAPIServerClientSignerName
		kubelet = certificatesv1.KubeAPIServerClientKubeletSignerName
		serving = certificatesv1.KubeletServingSignerName
		legacy  = "kubernetes.io/legacy-unknown"
	)
	node := of("system:node:n", "system:nodes")
	uri := []*url.URL{{Scheme: "spiffe", Host: "x"}}
	ip := []net.IP{net.IPv4(10, 0, 0, 1)}
	for name, c := range map[string]struct {
		signer   string
		template x509.CertificateRequest
		usages   []certificatesv1.KeyUsage
		refusal  string // "" is signed
	}{
		"client": {client,
			x509.CertificateRequest{Subject: of("eve", "devs"), DNSNames: []string{"a"}}, clientUsages, ""},
		"client without its usage": {client, x509.CertificateRequest{Subject: of("eve")}, clientUsages[1:],
			"missing required usage"},
		"client as a server": {client, x509.CertificateRequest{Subject: of("eve")},
			[]certificatesv1.KeyUsage{"client auth", "server auth"},
			"invalid usage for client certificate: server auth"},
		"kubelet": {kubelet, x509.CertificateRequest{Subject: node}, clientUsages, ""},
		"kubelet with an RSA key": {kubelet, x509.CertificateRequest{Subject: node},
			append(slices.Clone(clientUsages), "key encipherment"), ""},
		"kubelet of no node": {kubelet, x509.CertificateRequest{Subject: of("n", "system:nodes")},
			clientUsages, "common name"},
		"kubelet outside": {kubelet,
			x509.CertificateRequest{Subject: of("system:node:n", "system:nodes", "system:masters")}, clientUsages,
			"organization"},
		"kubelet with a name": {kubelet, x509.CertificateRequest{Subject: node, DNSNames: []string{"n"}},
			clientUsages, "DNS"},
		"kubelet with an address": {kubelet, x509.CertificateRequest{Subject: node, IPAddresses: ip}, clientUsages,
			"IP"},
		"kubelet with an URI": {kubelet, x509.CertificateRequest{Subject: node, URIs: uri}, clientUsages,
			"URI"},
		"kubelet with mail": {kubelet,
			x509.CertificateRequest{Subject: node, EmailAddresses: []string{"a@b.c"}}, clientUsages, "Email"},
		"kubelet as a server": {kubelet, x509.CertificateRequest{Subject: node}, servingUsages,
			"usages did not match [client auth digital signature key encipherment]"},
		"serving": {serving, x509.CertificateRequest{Subject: node, IPAddresses: ip}, servingUsages,
			""},
		"serving without RSA": {serving, x509.CertificateRequest{Subject: node, DNSNames: []string{"n"}},
			[]certificatesv1.KeyUsage{"server auth", "digital signature"}, ""},
		"serving without a name": {serving, x509.CertificateRequest{Subject: node}, servingUsages, "DNS or IP"},
		"serving with mail": {serving,
			x509.CertificateRequest{Subject: node, IPAddresses: ip, EmailAddresses: []string{"a@b.c"}}, servingUsages,
			"Email"},
		"serving with an URI": {serving, x509.CertificateRequest{Subject: node, IPAddresses: ip, URIs: uri},
			servingUsages, "URI"},
		"serving of nobody": {serving, x509.CertificateRequest{Subject: of("n"), IPAddresses: ip},
			servingUsages, "organization"},
		"serving of no node": {serving,
			x509.CertificateRequest{Subject: of("n", "system:nodes"), IPAddresses: ip}, servingUsages, "common name"},
		"serving as a client": {serving, x509.CertificateRequest{Subject: node, IPAddresses: ip},
			append(slices.Clone(servingUsages), "client auth"), "usages did not match"},
		"legacy": {legacy, x509.CertificateRequest{Subject: of("x")},
			[]certificatesv1.KeyUsage{"any", "code signing"}, ""},
		"a usage that nobody knows": {legacy, x509.CertificateRequest{Subject: of("x")},
			[]certificatesv1.KeyUsage{"sing"}, "unrecognized usage"},
		"a server of the cluster": {client, x509.CertificateRequest{Subject: of("x", "barque:servers")},
			clientUsages, "barque:"},
		"the front proxy": {client, x509.CertificateRequest{Subject: of("barque:front-proxy")},
			clientUsages, "barque:"},
		"a controller": {client, x509.CertificateRequest{Subject: of(ownUser)}, clientUsages,
			"part of the control plane"},
		"a controller as a group": {client, x509.CertificateRequest{Subject: of("x", ownUser)}, clientUsages,
			"part of the control plane"},
		"a server, by another signer": {legacy, x509.CertificateRequest{Subject: of("barque:apiserver")}, servingUsages,
			"barque:"},
	} {
		t.Run(name, func(t *testing.T) {
			r := request(t, c.signer, c.template, c.usages, certificatesv1.CertificateApproved)
			plan := decideSigning(r, isOwnUser, begin)
			if c.refusal != "" {
				if plan.refusal == nil || !strings.Contains(plan.refusal.Error(), c.refusal) || plan.template != nil {
					t.Errorf("refused with %v, signed %v; want a refusal with %q", plan.refusal, plan.template,
						c.refusal)
				}
				return
			}
			if plan.refusal != nil || plan.template == nil {
				t.Fatalf("not signed: %v", plan.refusal)
			}
			if got := plan.template; got.Subject.String() != c.template.Subject.String() || got.IsCA ||
				!slices.Equal(got.DNSNames, c.template.DNSNames) ||
				len(got.IPAddresses) != len(c.template.IPAddresses) {
				t.Errorf("signed is %+v", got)
			}
		})
	}
	for name, r := range map[string]*certificatesv1.CertificateSigningRequest{
		"not approved": request(t, client, x509.CertificateRequest{Subject: of("eve")}, clientUsages),
		"denied": request(t, client, x509.CertificateRequest{Subject: of("eve")}, clientUsages,
			certificatesv1.CertificateDenied),
		"failed": request(t, client, x509.CertificateRequest{Subject: of("eve")}, clientUsages,
			certificatesv1.CertificateApproved, certificatesv1.CertificateFailed),
		"another signer": request(t, "example.com/s", x509.CertificateRequest{Subject: of("eve")}, clientUsages,
			certificatesv1.CertificateApproved),
		"not ours": request(t, "kubernetes.io/kube-apiserver-client-pod",
			x509.CertificateRequest{Subject: of("eve")}, clientUsages, certificatesv1.CertificateApproved),
	} {
		if plan := decideSigning(r, isOwnUser, begin); plan.template != nil || plan.refusal != nil {
			t.Errorf("%s: %+v", name, plan)
		}
	}
}

// TestASigningIsDoneOnce: the result of a decision needs no second decision, for any request.
func TestASigningIsDoneOnce(t *testing.T) {
	rng := mathrand.New(mathrand.NewPCG(1, 2))
	ca := newAuthority(t, begin)
	pick := func(from ...string) string { return from[rng.IntN(len(from))] }
	for range 300 {
		var usages []certificatesv1.KeyUsage
		for _, u := range []certificatesv1.KeyUsage{"client auth", "server auth", "digital signature",
			"key encipherment"} {
			if rng.IntN(2) == 0 {
				usages = append(usages, u)
			}
		}
		var conditions []certificatesv1.RequestConditionType
		for _, c := range []certificatesv1.RequestConditionType{certificatesv1.CertificateApproved,
			certificatesv1.CertificateDenied, certificatesv1.CertificateFailed} {
			if rng.IntN(3) == 0 {
				conditions = append(conditions, c)
			}
		}
		r := request(t,
			pick("example.com/s", certificatesv1.KubeAPIServerClientSignerName,
				certificatesv1.KubeAPIServerClientKubeletSignerName, certificatesv1.KubeletServingSignerName),
			x509.CertificateRequest{Subject: of(pick("eve", "system:node:n", "barque:x"), pick("system:nodes", "o"))},
			usages, conditions...)
		plan := decideSigning(r, isOwnUser, begin)
		if (plan.template != nil || plan.refusal != nil) &&
			!slices.Equal(conditions, []certificatesv1.RequestConditionType{certificatesv1.CertificateApproved}) {
			t.Fatalf("with %v: %+v", conditions, plan)
		}
		switch {
		case plan.template != nil:
			cert, err := ca.Sign(plan.template, plan.public, begin)
			if err != nil {
				t.Fatal(err)
			}
			r.Status.Certificate = cert
		case plan.refusal != nil:
			r.Status.Conditions = append(r.Status.Conditions,
				certificatesv1.CertificateSigningRequestCondition{Type: certificatesv1.CertificateFailed})
		}
		if again := decideSigning(r, isOwnUser, begin.Add(time.Second)); again.template != nil || again.refusal != nil {
			t.Fatalf("after %+v: %+v", plan, again)
		}
	}
}

func TestValidity(t *testing.T) {
	for name, c := range map[string]struct {
		seconds *int32
		to      time.Duration // from now
	}{
		"nothing asked": {nil, 365*24*time.Hour - 5*time.Minute},
		"ten minutes":   {ptr.To[int32](600), 10 * time.Minute},
		"less":          {ptr.To[int32](1), 10 * time.Minute},
		"negative":      {ptr.To[int32](-1), 10 * time.Minute},
		"short":         {ptr.To[int32](8*3600 - 1), 8*time.Hour - time.Second},
		"long":          {ptr.To[int32](8 * 3600), 8*time.Hour - 5*time.Minute},
		"too long":      {ptr.To[int32](1<<31 - 1), 365*24*time.Hour - 5*time.Minute},
	} {
		from, to := validity(c.seconds, begin)
		if !from.Equal(begin.Add(-5*time.Minute)) || to.Sub(begin) != c.to {
			t.Errorf("%s: from %v to %v", name, from.Sub(begin), to.Sub(begin))
		}
	}
}

func TestWhichKubeletsAreApproved(t *testing.T) {
	node := x509.CertificateRequest{Subject: of("system:node:n", "system:nodes")}
	kubelet := func(change func(*certificatesv1.CertificateSigningRequest)) *certificatesv1.CertificateSigningRequest {
		r := request(t, certificatesv1.KubeAPIServerClientKubeletSignerName, node, clientUsages)
		change(r)
		return r
	}
	for name, c := range map[string]struct {
		r    *certificatesv1.CertificateSigningRequest
		want string
	}{
		"another user": {kubelet(func(r *certificatesv1.CertificateSigningRequest) { r.Spec.Username = "bootstrap" }),
			"nodeclient"},
		"itself": {
			kubelet(func(r *certificatesv1.CertificateSigningRequest) { r.Spec.Username = "system:node:n" }),
			"selfnodeclient nodeclient"},
		"serving": {kubelet(func(r *certificatesv1.CertificateSigningRequest) {
			r.Spec.SignerName = certificatesv1.KubeletServingSignerName
		}), ""},
		"usages": {kubelet(func(r *certificatesv1.CertificateSigningRequest) { r.Spec.Usages = servingUsages }), ""},
		"issued": {kubelet(func(r *certificatesv1.CertificateSigningRequest) { r.Status.Certificate = []byte("x") }),
			""},
		"approved": {
			request(t, certificatesv1.KubeAPIServerClientKubeletSignerName, node, clientUsages,
				certificatesv1.CertificateApproved), ""},
		"denied": {
			request(t, certificatesv1.KubeAPIServerClientKubeletSignerName, node, clientUsages,
				certificatesv1.CertificateDenied), ""},
		"a user's": {
			request(t, certificatesv1.KubeAPIServerClientSignerName, x509.CertificateRequest{Subject: of("eve")},
				clientUsages), ""},
		"no node's": {
			request(t, certificatesv1.KubeAPIServerClientKubeletSignerName,
				x509.CertificateRequest{Subject: of("eve", "system:nodes")}, clientUsages), ""},
	} {
		var got []string
		for _, way := range decideApproval(c.r, isOwnUser) {
			got = append(got, way.subresource)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %v, want %s", name, got, c.want)
		}
	}
}

func TestHowLongRequestsAreKept(t *testing.T) {
	ca := newAuthority(t, begin)
	cert := func(life time.Duration) []byte {
		data, err := ca.Sign(&x509.Certificate{NotBefore: begin, NotAfter: begin.Add(life)}, ca.cert.PublicKey, begin)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	with := func(
		kind certificatesv1.RequestConditionType, certificate []byte,
	) *certificatesv1.CertificateSigningRequest {
		r := &certificatesv1.CertificateSigningRequest{
			ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(begin.Add(-time.Minute))}}
		r.Status.Certificate = certificate
		if kind != "" {
			r.Status.Conditions = []certificatesv1.CertificateSigningRequestCondition{
				{Type: kind, LastUpdateTime: metav1.NewTime(begin)}}
		}
		return r
	}
	for name, c := range map[string]struct {
		r    *certificatesv1.CertificateSigningRequest
		want time.Duration
	}{
		"pending":                  {with("", nil), 24*time.Hour - time.Minute},
		"denied":                   {with(certificatesv1.CertificateDenied, nil), time.Hour},
		"failed":                   {with(certificatesv1.CertificateFailed, nil), time.Hour},
		"approved, not issued":     {with(certificatesv1.CertificateApproved, nil), 24 * time.Hour},
		"issued":                   {with(certificatesv1.CertificateApproved, cert(24*time.Hour)), time.Hour},
		"issued for ten minutes":   {with(certificatesv1.CertificateApproved, cert(10*time.Minute)), 10 * time.Minute},
		"issued, and not readable": {with(certificatesv1.CertificateApproved, []byte("x")), time.Hour},
	} {
		if got := expires(c.r).Sub(begin); got != c.want {
			t.Errorf("%s: kept for %v, want %v", name, got, c.want)
		}
	}
	if got := expires(with("Waiting", nil)); !got.IsZero() {
		t.Errorf("a condition of others: %v", got)
	}
}

// TestOneBundle: one plan leads from any bundles to the CA's bundle, and then nothing is left to
// do.
func TestOneBundle(t *testing.T) {
	rng := mathrand.New(mathrand.NewPCG(3, 4))
	const ca, other = "the CA", "another CA"
	for range 200 {
		var known []*certificatesv1.ClusterTrustBundle
		for _, b := range []*certificatesv1.ClusterTrustBundle{
			{ObjectMeta: metav1.ObjectMeta{Name: bundleName(ca)},
				Spec: certificatesv1.ClusterTrustBundleSpec{SignerName: ServingSigner,
					TrustBundle: []string{ca, other}[rng.IntN(2)]}},
			{ObjectMeta: metav1.ObjectMeta{Name: bundleName(other)},
				Spec: certificatesv1.ClusterTrustBundleSpec{SignerName: ServingSigner, TrustBundle: other}},
			{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes.io:kube-apiserver-serving:mine"},
				Spec: certificatesv1.ClusterTrustBundleSpec{SignerName: ServingSigner, TrustBundle: ca}},
			{ObjectMeta: metav1.ObjectMeta{Name: "example.com:s:b"},
				Spec: certificatesv1.ClusterTrustBundleSpec{SignerName: "example.com/s", TrustBundle: other}},
			{ObjectMeta: metav1.ObjectMeta{Name: "unsigned"},
				Spec: certificatesv1.ClusterTrustBundleSpec{TrustBundle: other}},
		} {
			if rng.IntN(2) == 0 {
				known = append(known, b)
			}
		}
		foreign := 0
		for _, b := range known {
			if b.Spec.SignerName != ServingSigner {
				foreign++
			}
		}
		plan := decideBundles(known, ca)
		if plan.create != nil && plan.update != nil {
			t.Fatal("both made and changed")
		}
		after := slices.DeleteFunc(known, func(b *certificatesv1.ClusterTrustBundle) bool {
			return slices.Contains(plan.delete, b) || plan.update != nil && b.Name == plan.update.Name
		})
		for _, b := range []*certificatesv1.ClusterTrustBundle{plan.create, plan.update} {
			if b != nil {
				after = append(after, b)
			}
		}
		if again := decideBundles(after, ca); again.create != nil || again.update != nil || len(again.delete) > 0 {
			t.Fatalf("still to do: %+v", again)
		}
		if len(after) != foreign+1 {
			t.Fatalf("%d bundles are left, with %d of others", len(after), foreign)
		}
	}
}

// authority signs with a CA of its own.
type authority struct {
	cert *x509.Certificate
	key  crypto.Signer
}

func newAuthority(t testing.TB, now time.Time) *authority {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: of("ca"), IsCA: true,
		BasicConstraintsValid: true,
		NotBefore:             now.Add(-time.Hour), NotAfter: now.Add(10 * 365 * 24 * time.Hour),
		KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &authority{cert, key}
}

func (a *authority) Sign(template *x509.Certificate, public crypto.PublicKey, _ time.Time) ([]byte, error) {
	cert := *template
	cert.SerialNumber = big.NewInt(2)
	der, err := x509.CreateCertificate(rand.Reader, &cert, a.cert, public, a.key)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), err
}
