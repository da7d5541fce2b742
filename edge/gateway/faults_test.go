package gateway

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/edge/gateway/model"
)

var noon = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)

// pair makes a certificate that is valid on that day.
func pairFor(t *testing.T, names ...string) *tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: noon.Add(-12 * time.Hour),
		NotAfter: noon.Add(12 * time.Hour), DNSNames: names}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

func TestMisfit(t *testing.T) {
	for name, c := range map[string]struct {
		names []string
		host  string
		at    time.Time
		want  string
	}{
		"right":      {[]string{"a.example.com"}, "a.example.com", noon, ""},
		"star":       {[]string{"*.example.com"}, "a.example.com", noon, ""},
		"both stars": {[]string{"*.example.com"}, "*.example.com", noon, ""},
		"every name": {[]string{"a.example.com"}, "", noon, ""},
		"ended": {[]string{"a.example.com"}, "", noon.Add(13 * time.Hour),
			"its certificate ended at 2026-05-02T00:00:00Z"},
		"not begun": {[]string{"a.example.com"}, "", noon.Add(-13 * time.Hour),
			"its certificate begins at 2026-05-01T00:00:00Z"},
		"another name": {[]string{"b.example.com", "c.example.com"}, "a.example.com", noon,
			"its certificate is for b.example.com, c.example.com, and not for a.example.com"},
		"one for all": {[]string{"a.example.com"}, "*.example.com", noon,
			"its certificate is for a.example.com, and not for *.example.com"},
		"many names": {[]string{"a", "b", "c", "d", "e"}, "x.example.com", noon,
			"its certificate is for a, b, c, 2 more, and not for x.example.com"},
		"no name": {nil, "x.example.com", noon, "its certificate is for no name, and not for x.example.com"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := misfit(pairFor(t, c.names...), c.host, c.at); got != c.want {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

// TestFaults: routes without an endpoint and certificates that clients refuse are found, and one
// right certificate of several is enough.
func TestFaults(t *testing.T) {
	name := func(s string) types.NamespacedName { return types.NamespacedName{Namespace: "ns", Name: s} }
	s := newSources(t)
	if err := s.slices.AddIndexers(cache.Indexers{serviceIndex: func(obj any) ([]string, error) {
		slice := obj.(*discoveryv1.EndpointSlice)
		return []string{slice.Namespace + "/" + slice.Labels[discoveryv1.LabelServiceName]}, nil
	}}); err != nil {
		t.Fatal(err)
	}
	for _, service := range []string{"good", "idle"} {
		if err := s.services.GetIndexer().Add(
			&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: service}}); err != nil {
			t.Fatal(err)
		}
		if err := s.slices.GetIndexer().Add(&discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: service,
				Labels: map[string]string{discoveryv1.LabelServiceName: service}},
			Endpoints: []discoveryv1.Endpoint{
				{Conditions: discoveryv1.EndpointConditions{Ready: new(service == "good")}}},
		}); err != nil {
			t.Fatal(err)
		}
	}
	secrets := NewSecrets(nil, func() {})
	secrets.watched[name("right")] = &single[secretValue]{value: &secretValue{pair: pairFor(t, "a.example.com")}}
	secrets.watched[name("wrong")] = &single[secretValue]{value: &secretValue{pair: pairFor(t, "b.example.com")}}
	statuses := &Statuses{objects: s.Objects, secrets: secrets}
	if got := statuses.Faults(noon); got != nil {
		t.Errorf("a server that does not lead knows of %v", got)
	}
	origin := func(kind, of string) model.Origin { return model.Origin{Kind: kind, NamespacedName: name(of)} }
	needs := func(secrets ...string) (c certificate) {
		c.host = "a.example.com"
		for _, s := range secrets {
			c.secrets = append(c.secrets, name(s))
		}
		return c
	}
	statuses.routed.Store(&[]routed{
		{origin: origin("Ingress", "web"), services: []types.NamespacedName{name("good"), name("idle")},
			certificates: []certificate{needs("right")}},
		{origin: origin("HTTPRoute", "api"), services: []types.NamespacedName{name("idle"), name("gone")}},
		{origin: origin("Gateway", "one"), certificates: []certificate{needs("wrong")}},
		{origin: origin("Gateway", "two"), certificates: []certificate{needs("wrong", "right")}},
		{origin: origin("Gateway", "three"), certificates: []certificate{needs("lost")}},
		{origin: origin("Gateway", "four"), fault: "a quota"},
	})
	var got []string
	for _, f := range statuses.Faults(noon) {
		got = append(got, f.Object+": "+f.Text)
		if !strings.Contains(f.Mend, "barque kubectl -n ns ") {
			t.Errorf("no remedy for %s: %q", f.Object, f.Mend)
		}
	}
	want := []string{
		"Gateway ns/four: it has no address: a quota",
		"Gateway ns/one: the Secret ns/wrong: its certificate is for b.example.com, and not for a.example.com",
		"Gateway ns/three: the Secret ns/lost: it does not exist, or cannot be read yet",
		"HTTPRoute ns/api: there is no Service ns/gone",
		"HTTPRoute ns/api and 1 more: the Service ns/idle has no ready endpoint, so requests are answered with 503",
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	listener := func(secret string) []model.Listener {
		return []model.Listener{
			{Serve: model.HTTPS, Hostname: "a.example.com", Certificates: []types.NamespacedName{name(secret)}}}
	}
	if got := statuses.certificateEvents(listener("lost"), noon); got != nil {
		t.Errorf("an event about a Secret that is not read yet: %q", got)
	}
	if got := statuses.certificateEvents(listener("wrong"), noon); len(got) != 1 {
		t.Errorf("events %q", got)
	}
}
