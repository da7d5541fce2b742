package dns

import (
	"math/rand"
	"os"
	"slices"
	"testing"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/barque/barque/internal/await"
)

// TestMemory: what was written down answers as what it was written from.
func TestMemory(t *testing.T) {
	for seed := range 20 {
		c := &cluster{Rand: rand.New(rand.NewSource(int64(seed))), state: newState(),
			model: &model{map[string]bool{}, map[types.NamespacedName]*corev1.Service{},
				map[types.NamespacedName]*discoveryv1.EndpointSlice{}}}
		for range 60 {
			c.step()
		}
		before := &zone{state: c.state, origin: testZone}
		after := &zone{state: c.state.save().restore(), origin: testZone}
		for _, name := range c.names() {
			for _, kind := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypePTR, dns.TypeCNAME} {
				want, got := c.answer(before, name, kind), c.answer(after, name, kind)
				if want.rcode != got.rcode || !slices.Equal(said(want.answer), said(got.answer)) {
					t.Fatalf("seed %d: %s %s: %v, want %v", seed, name, dns.TypeToString[kind], got, want)
				}
			}
		}
		if got, want := len(after.holders), len(before.holders); got != want {
			t.Fatalf("seed %d: %d addresses, want %d", seed, got, want)
		}
	}
}

// TestStartWithoutServers: a node that starts in an outage answers as before it.
func TestStartWithoutServers(t *testing.T) {
	dir := t.TempDir()
	t.Run("before", func(t *testing.T) {
		b := newBenchIn(t, dir, namespace("default"), clusterIPs("web", "10.43.0.20"))
		running(t, b)
		rules := map[string]string{"a.override": "hosts {\n 192.0.2.50 a.example.com\n fallthrough\n}"}
		parsed, err := ParseRules(rules, "cluster.local", b.config.own)
		if err != nil {
			t.Fatal(err)
		}
		b.accept(parsed, rules)
	}) // the server ends
	b := newBenchIn(t, dir)
	b.answers(t, "web.default.svc.cluster.local.", dns.TypeA, "A 10.43.0.20")
	b.answers(t, "20.0.43.10.in-addr.arpa.", dns.TypePTR, "PTR web.default.svc.cluster.local.")
	b.fails(t, "none.default.svc.cluster.local.", dns.TypeA, dns.RcodeNameError)
	b.answers(t, "a.example.com.", dns.TypeA, "A 192.0.2.50")
	// What the servers say counts from then on.
	b.know(namespace("default"), clusterIPs("web", "10.43.0.21"))
	b.answers(t, "web.default.svc.cluster.local.", dns.TypeA, "A 10.43.0.21")
	b.fails(t, "20.0.43.10.in-addr.arpa.", dns.TypePTR, dns.RcodeNameError)

	t.Run("the rules were deleted meanwhile", func(t *testing.T) {
		b := newBenchIn(t, dir, namespace("default"))
		running(t, b)
		await.True(t, "they are forgotten",
			func() bool { return len(b.asks(t, "a.example.com.", dns.TypeA).Answer) == 0 })
	})

	for _, content := range []string{"", "{", `{"format":99,"domain":"cluster.local"}`,
		`{"format":1,"domain":"other.example"}`} {
		if err := os.WriteFile(b.config.File, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		newBenchIn(t, dir).fails(t, "web.default.svc.cluster.local.", dns.TypeA, dns.RcodeServerFailure)
	}
}
