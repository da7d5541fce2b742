package dns

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/internal/await"
)

func ownAddress(addr netip.Addr) bool { return addr == netip.MustParseAddr("10.43.0.10") }

func TestRulesThatAreWrong(t *testing.T) {
	for text, want := range map[string]string{
		"a.server: forward . 192.0.2.1":                 "line 1: a block for a zone is missing",
		"a.server: example.com {\n}":                    "line 1: nothing answers for the zone",
		"a.server: example.com {\n forward . 192.0.2.1": "line 1: { without }",
		"a.server: }": "line 1: } without {",
		"a.server: example.com {\n forward . 192.0.2.1 }":                        "line 2: { belongs to the end of a line",
		"a.server: . {\n forward . 192.0.2.1\n}":                                 "for all names belong in a key that ends with .override",
		"a.server: svc.cluster.local {\n forward . 192.0.2.1\n}":                 "are the cluster's",
		"a.server: local {\n forward . 192.0.2.1\n}":                             "are the cluster's",
		"a.server: example.com:54 {\n forward . 192.0.2.1\n}":                    "port 53 only",
		"a.server: ex..com {\n forward . 192.0.2.1\n}":                           "no domain name",
		"a.server: example.com example.com {\n forward . 192.0.2.1\n}":           "has a block already",
		"a.server: example.com {\n forward . ns.example.com\n}":                  "line 2: forward: \"ns.example.com\" is no address",
		"a.server: example.com {\n forward . tls://192.0.2.1\n}":                 "is no address",
		"a.server: example.com {\n forward example.com 192.0.2.1\n}":             "want forward . SERVER",
		"a.server: example.com {\n forward .\n}":                                 "want forward . SERVER",
		"a.server: example.com {\n forward . /etc/hosts\n}":                      "the node's resolvers are /etc/resolv.conf",
		"a.server: example.com {\n forward . 192.0.2.1 {\n policy random\n }\n}": "policy sequential",
		"a.server: example.com {\n forward . 192.0.2.1 {\n tls\n }\n}":           "the option tls is not among",
		"a.server: example.com {\n forward . 192.0.2.1\n forward . 192.0.2.2\n}": "there is one already",
		"a.server: example.com {\n file /etc/shadow\n}":                          "line 2: file is not among the directives",
		"a.server: import /etc/passwd":                                           "a block for a zone is missing",
		"a.override: import /etc/passwd":                                         "line 1: import is not among the directives",
		"a.override: hosts {\n 192.0.2.1 a.example.com\n}":                       "line 1: hosts without fallthrough would deny",
		"a.override: hosts {\n a.example.com 192.0.2.1\n fallthrough\n}":         "line 2: \"a.example.com 192.0.2.1\": want an IP address",
		"a.override: hosts /etc/hosts {\n fallthrough\n}":                        "files of the node are not read",
		"a.override: hosts {\n ttl 0\n fallthrough\n}":                           "ttl: \"0\" is no number",
		"a.override: rewrite name a":                                             "want rewrite",
		"a.override: rewrite class IN CH":                                        "want rewrite",
		"a.override: rewrite name regex ( b":                                     "missing closing )",
		"a.override: rewrite name wild a b":                                      "is none of exact",
		"a.override: cache 0":                                                    "no number of seconds",
		"a.override: cache {\n}":                                                 "nothing but a number",
		"a.override: rewrite name \"a b":                                         "a quotation mark is missing",
		"a.server: example.com {\n forward . 192.0.2.1 10.43.0.10\n}":            "line 2: forward: 10.43.0.10 is cluster DNS itself",
		"a.override: forward . [::ffff:10.43.0.10]:53":                           "is cluster DNS itself",
		"Corefile: log": "ends with .server or .override",
	} {
		key, content, _ := strings.Cut(text, ": ")
		rules, err := ParseRules(map[string]string{key: content, "good.override": "log"}, "cluster.local", ownAddress)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), key+": ") {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
		if rules != nil {
			t.Errorf("%q: there are rules beside the error", text)
		}
	}
}

func TestRules(t *testing.T) {
	for name, c := range map[string]struct {
		rules map[string]string
		check func(t *testing.T, b *bench)
	}{
		"a zone has servers of its own": {
			map[string]string{
				"a.server": "# the old network\nexample.com:53, corp.example {\n  errors\n  cache 10\n  forward . 192.0.2.9:5353 192.0.2.8\n}\n"},
			func(t *testing.T, b *bench) {
				b.answers(t, "www.example.com.", dns.TypeA, "A 198.51.100.1")
				b.wantAsked(t, "192.0.2.9:5353 www.example.com. A")
				b.fails(t, "www.corp.example.", dns.TypeA, dns.RcodeNameError)
				b.wantAsked(t, "192.0.2.9:5353 www.corp.example. A")
				b.fails(t, "notexample.com.", dns.TypeA, dns.RcodeNameError)
				b.wantAsked(t, "192.0.2.1:53 notexample.com. A")
			}},
		"the longest zone counts": {
			map[string]string{
				"a.server": "example.com {\nforward . 192.0.2.9\n}\nwww.example.com {\nforward . 192.0.2.8\n}\n"},
			func(t *testing.T, b *bench) {
				b.answers(t, "www.example.com.", dns.TypeA, "A 198.51.100.1")
				b.wantAsked(t, "192.0.2.8:53 www.example.com. A")
			}},
		"all names outside have another server": {
			map[string]string{"a.override": "forward . 192.0.2.9 {\n except brief.example.com\n}"},
			func(t *testing.T, b *bench) {
				b.answers(t, "www.example.com.", dns.TypeA, "A 198.51.100.1")
				b.answers(t, "brief.example.com.", dns.TypeA, "A 198.51.100.2")
				b.wantAsked(t, "192.0.2.9:53 www.example.com. A", "192.0.2.1:53 brief.example.com. A")
				b.answers(t, "web.default.svc.cluster.local.", dns.TypeA, "A 10.43.0.20")
			}},
		"hosts": {
			map[string]string{
				"a.override": "hosts {\n 192.0.2.77 db.corp.example DB2.corp.example\n fd00::77 db.corp.example\n ttl 60\n fallthrough\n}",
				"b.server":   "only.example {\n hosts {\n 192.0.2.78 a.only.example\n }\n}"},
			func(t *testing.T, b *bench) {
				b.answers(t, "DB.corp.example.", dns.TypeA, "A 192.0.2.77")
				b.answers(t, "db.corp.example.", dns.TypeAAAA, "AAAA fd00::77")
				b.answers(t, "db2.corp.example.", dns.TypeA, "A 192.0.2.77")
				b.answers(t, "db2.corp.example.", dns.TypeAAAA)
				b.answers(t, "77.2.0.192.in-addr.arpa.", dns.TypePTR, "PTR db.corp.example.", "PTR db2.corp.example.")
				b.answers(t, "a.only.example.", dns.TypeA, "A 192.0.2.78")
				b.fails(t, "b.only.example.", dns.TypeA, dns.RcodeNameError)
				b.wantAsked(t)
				b.answers(t, "www.example.com.", dns.TypeA, "A 198.51.100.1")
			}},
		"another name is asked for": {
			map[string]string{"a.override": "rewrite name shop.example.com web.default.svc.cluster.local\n" +
				"rewrite continue name suffix .old.example .example.com\nrewrite name prefix w3. www.\n" +
				"rewrite {\n name regex (\\S*)\\.in\\.example\\.com {1}.default.svc.cluster.local\n answer auto\n}\n"},
			func(t *testing.T, b *bench) {
				b.answers(t, "Shop.example.com.", dns.TypeA, "A 10.43.0.20")
				if reply := b.asks(t, "Shop.example.com.",
					dns.TypeA); reply.Answer[0].Header().Name != "Shop.example.com." {
					t.Errorf("another owner than the name that was asked for: %v", reply.Answer)
				}
				b.answers(t, "w3.old.example.", dns.TypeA, "A 198.51.100.1")
				b.answers(t, "web.in.example.com.", dns.TypeA, "A 10.43.0.20")
				b.answers(t, "www.example.com.", dns.TypeA, "A 198.51.100.1")
			}},
		"by TCP": {
			map[string]string{"a.server": "example.com {\n forward . 192.0.2.9 {\n force_tcp\n }\n}"},
			func(t *testing.T, b *bench) { b.answers(t, "www.example.com.", dns.TypeA, "A 198.51.100.1") }},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.know(clusterIPs("web", "10.43.0.20"))
			rules, err := ParseRules(c.rules, "cluster.local", ownAddress)
			if err != nil {
				t.Fatal(err)
			}
			b.setRules(rules)
			c.check(t, b)
		})
	}
}

// TestRulesComeAndGo: wrong rules leave the ones before in place, and are told.
func TestRulesComeAndGo(t *testing.T) {
	rules := func(text string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ServiceNamespace, Name: RulesName},
			Data: map[string]string{"a.override": text}}
	}
	other := rules("hosts {\n 192.0.2.66 a.example.com\n fallthrough\n}")
	other.Namespace = "default"
	b := newBench(t, rules("hosts {\n 192.0.2.50 a.example.com\n fallthrough\n}"), other)
	refused := make(chan error, 10)
	b.config.Refused = func(_ *corev1.ConfigMap, err error) { refused <- err }
	running(t, b)
	until := func(want string) {
		t.Helper()
		await.NoError(t, "the name to be answered as the rules have it", func(context.Context) error {
			if got := strings.Join(said(b.asks(t, "a.example.com.", dns.TypeA).Answer), ","); got != want {
				return fmt.Errorf("%q, want %q", got, want)
			}
			return nil
		})
	}
	maps := b.client.CoreV1().ConfigMaps(ServiceNamespace)
	update := func(text string) {
		t.Helper()
		if _, err := maps.Update(t.Context(), rules(text), metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	until("A 192.0.2.50")
	update("hosts {\n 192.0.2.51 a.example.com\n fallthrough\n}")
	until("A 192.0.2.51")
	update("nonsense")
	if err := await.Value(t, "somebody to be told of wrong rules", refused); !strings.Contains(err.Error(),
		"a.override: line 1: nonsense") {
		t.Error(err)
	}
	until("A 192.0.2.51")
	update("hosts {\n 192.0.2.52 a.example.com\n fallthrough\n}")
	until("A 192.0.2.52")
	if err := maps.Delete(t.Context(), RulesName, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	until("")
}
