package dns

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/miekg/dns"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// inBubble runs a test in virtual time, with a server that nobody serves.
func inBubble(t *testing.T, f func(t *testing.T, b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		b.know()
		f(t, b)
	})
}

func (b *bench) wantAsked(t *testing.T, want ...string) {
	t.Helper()
	if got := b.world.took(); !slices.Equal(got, want) {
		t.Errorf("asked %q, want %q", got, want)
	}
}

func TestCache(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		const www, brief, none = "192.0.2.1:53 www.example.com. A", "192.0.2.1:53 brief.example.com. A",
			"192.0.2.1:53 none.example.com. A"
		ttl := func(name string) uint32 {
			t.Helper()
			return b.asks(t, name, dns.TypeA).Answer[0].Header().Ttl
		}
		if got := ttl("www.example.com."); got != 300 {
			t.Errorf("TTL %d", got)
		}
		b.wantAsked(t, www)
		time.Sleep(7 * time.Second)
		if got := ttl("WWW.example.com."); got != 293 {
			t.Errorf("TTL %d after 7 s", got)
		}
		b.wantAsked(t)
		time.Sleep(longestKept - 7*time.Second)
		ttl("www.example.com.")
		b.wantAsked(t, www)

		ttl("brief.example.com.")
		time.Sleep(time.Second)
		ttl("brief.example.com.")
		b.wantAsked(t, brief)
		time.Sleep(time.Second)
		ttl("brief.example.com.")
		b.wantAsked(t, brief)

		b.fails(t, "none.example.com.", dns.TypeA, dns.RcodeNameError)
		time.Sleep(longestDenied - time.Second)
		b.fails(t, "none.example.com.", dns.TypeA, dns.RcodeNameError)
		b.wantAsked(t, none)
		time.Sleep(time.Second)
		b.fails(t, "none.example.com.", dns.TypeA, dns.RcodeNameError)
		b.wantAsked(t, none)
	})
}

func TestCacheIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newAnswers(3)
		message := new(dns.Msg).SetQuestion("x.", dns.TypeA)
		message.Answer = addressRecords("x.", dns.TypeA, []netip.Addr{netip.MustParseAddr("192.0.2.9")})
		for i := range 5 {
			c.put(question{name: fmt.Sprint(i)}, message, 0)
			c.get(question{name: "0"}) // it is asked for all the time
		}
		for i, want := range []bool{true, false, false, true, true} {
			if _, got := c.get(question{name: fmt.Sprint(i)}); got != want {
				t.Errorf("%d: %v", i, got)
			}
		}
		if len(c.entries) != 3 || c.order.Len() != 3 {
			t.Errorf("%d entries", len(c.entries))
		}
	})
}

// TestServersFail: the next server is asked, and the one that fell silent comes last for a while.
func TestServersFail(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.world.change(func() { b.world.silent[first] = true })
		began := time.Now()
		b.answers(t, "www.example.com.", dns.TypeA, "A 198.51.100.1")
		if took := time.Since(began); took != attemptTime {
			t.Errorf("the second server was asked after %v", took)
		}
		b.world.took()
		began = time.Now()
		b.answers(t, "brief.example.com.", dns.TypeA, "A 198.51.100.2")
		if took := time.Since(began); took != 0 {
			t.Errorf("the first server was waited for, %v", took)
		}
		b.wantAsked(t, second.String()+" brief.example.com. A")
		b.world.change(func() { b.world.silent[first] = false })
		time.Sleep(avoidFor)
		b.fails(t, "none.example.com.", dns.TypeA, dns.RcodeNameError)
		b.wantAsked(t, first.String()+" none.example.com. A")

		b.world.change(func() { b.world.silent[first], b.world.silent[second] = true, true })
		began = time.Now()
		reply := b.asks(t, "gone.example.com.", dns.TypeA)
		if took := time.Since(began); reply.Rcode != dns.RcodeServerFailure || took > answerTime {
			t.Errorf("%v after %v", reply, took)
		}
		if opt := reply.IsEdns0(); len(opt.Option) != 1 ||
			!strings.Contains(opt.Option[0].String(), "nobody answers") &&
				!strings.Contains(opt.Option[0].String(), "in time") {
			t.Errorf("the failure has no reason: %v", opt)
		}
		// Who asks again at once is told at once.
		b.world.took()
		b.fails(t, "gone.example.com.", dns.TypeA, dns.RcodeServerFailure)
		b.wantAsked(t)
		b.world.change(func() { b.world.silent[first] = false })
		time.Sleep(failureKept)
		b.fails(t, "gone.example.com.", dns.TypeA, dns.RcodeNameError)
	})
}

func TestServersRefuse(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.world.change(func() { b.world.rcodes[first] = dns.RcodeRefused })
		b.answers(t, "www.example.com.", dns.TypeA, "A 198.51.100.1")
		b.world.change(func() { b.world.rcodes[second] = dns.RcodeServerFailure })
		b.world.took()
		b.fails(t, "brief.example.com.", dns.TypeA, dns.RcodeServerFailure)
		if got := len(b.world.took()); got != 2 {
			t.Errorf("%d questions to two servers that have no answer", got)
		}
	})
}

// TestServersWithoutEDNS are asked again without it, and from then on.
func TestServersWithoutEDNS(t *testing.T) {
	for _, rcode := range []int{dns.RcodeFormatError, dns.RcodeNotImplemented} {
		inBubble(t, func(t *testing.T, b *bench) {
			const www, brief = "192.0.2.1:53 www.example.com. A", "192.0.2.1:53 brief.example.com. A"
			b.world.change(func() { b.world.plain = map[netip.AddrPort]int{first: rcode} })
			b.answers(t, "www.example.com.", dns.TypeA, "A 198.51.100.1")
			b.wantAsked(t, www+" EDNS", www)
			b.answers(t, "brief.example.com.", dns.TypeA, "A 198.51.100.2")
			b.wantAsked(t, brief)
			time.Sleep(plainFor)
			b.answers(t, "www.example.com.", dns.TypeA, "A 198.51.100.1")
			b.wantAsked(t, www+" EDNS", www)

			// One that cannot read the question without it either tells nothing of EDNS.
			time.Sleep(plainFor)
			b.world.change(func() { b.world.rcodes[first] = rcode })
			b.answers(t, "www.example.com.", dns.TypeA, "A 198.51.100.1")
			b.wantAsked(t, www+" EDNS", www, second.String()+" www.example.com. A")
			b.world.change(func() { delete(b.world.rcodes, first) })
			b.answers(t, "brief.example.com.", dns.TypeA, "A 198.51.100.2")
			b.wantAsked(t, brief+" EDNS", brief)
		})
	}
}

// TestResolversChange: the node's file is read again; this server itself is not among those it
// asks.
func TestResolversChange(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.answers(t, "www.example.com.", dns.TypeA, "A 198.51.100.1")
		b.world.took()
		b.resolvers(t, "nameserver 10.43.0.10\nnameserver 127.0.0.1\nnameserver 192.0.2.2\n")
		time.Sleep(readEvery)
		b.answers(t, "brief.example.com.", dns.TypeA, "A 198.51.100.2")
		b.wantAsked(t, second.String()+" brief.example.com. A")
		b.resolvers(t, "")
		time.Sleep(readEvery)
		b.fails(t, "other.example.com.", dns.TypeA, dns.RcodeServerFailure)
		b.wantAsked(t)
	})
}

// TestOneQuestionAtATime: clients that ask the same wait for one answer.
func TestOneQuestionAtATime(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.world.change(func() { b.world.silent[first] = true })
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() { b.answers(t, "www.example.com.", dns.TypeA, "A 198.51.100.1") })
		}
		all.Wait()
		b.wantAsked(t, first.String()+" www.example.com. A", second.String()+" www.example.com. A")
	})
}

// TestPanic: what nobody has thought of is a failure for those who ask, and no more.
func TestPanic(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.world.change(func() {
			b.world.silent[first] = true
			b.world.bad = second
		})
		var all sync.WaitGroup
		for i := range 5 {
			all.Go(func() {
				reply := b.arrives(t, fmt.Sprintf("10.42.0.%d", i), "www.example.com.")
				if reply == nil || reply.Rcode != dns.RcodeServerFailure {
					t.Errorf("%v", reply)
				}
			})
		}
		all.Wait()
		b.world.change(func() { b.world.bad = netip.AddrPort{} })
		if reply := b.arrives(t, "10.42.0.9", "www.example.com."); reply == nil || reply.Rcode != dns.RcodeSuccess {
			t.Errorf("afterwards: %v", reply)
		}
	})
}

// TestTooManyQuestions: clients that wait for other servers leave room for the cluster's names and
// for each other, also when all of them wait for the same answer.
func TestTooManyQuestions(t *testing.T) {
	for name, tarpits := range map[string]int{"one name": 1, "names": maxQueries + 1} {
		t.Run(name,
			func(t *testing.T) { inBubble(t, func(t *testing.T, b *bench) { testTooManyQuestions(t, b, tarpits) }) })
	}
}

func testTooManyQuestions(t *testing.T, b *bench, names int) {
	const web, www = "web.default.svc.cluster.local.", "www.example.com."
	b.know(clusterIPs("web", "10.43.0.20"))
	b.world.change(func() { b.world.tarpit = ".tarpit.example.com." })
	var all sync.WaitGroup
	flood := func(from string, questions int) {
		for i := range questions {
			all.Go(func() { b.arrives(t, from, fmt.Sprintf("a%d.tarpit.example.com.", i%names)) })
		}
		synctest.Wait()
	}
	wants := func(from, name string, rcode int) {
		t.Helper()
		began := time.Now()
		if reply := b.arrives(t, from, name); reply == nil || reply.Rcode != rcode || time.Since(began) != 0 {
			t.Errorf("%s from %s after %v: %v", name, from, time.Since(began), reply)
		}
	}
	flood("10.42.0.1", maxQueries+1)
	wants("10.42.0.1", www, dns.RcodeServerFailure)
	wants("10.42.0.1", web, dns.RcodeSuccess)
	wants("10.42.0.2", www, dns.RcodeSuccess)
	for i := range maxForwarded / maxForwardedOfOne {
		flood(fmt.Sprintf("10.42.1.%d", i), maxForwardedOfOne+1)
	}
	wants("10.42.0.2", "brief.example.com.", dns.RcodeServerFailure)
	wants("10.42.0.2", web, dns.RcodeSuccess)
	all.Wait()
	wants("10.42.0.1", "brief.example.com.", dns.RcodeSuccess)
	if b.resolver.waiting.used != 0 || len(b.resolver.waiting.by) != 0 {
		t.Errorf("places of nobody: %v", b.resolver.waiting)
	}
}

// TestLoop: resolvers that ask this server are found out, left alone, and found again when they
// have been put right. Until then one question is one question, not a storm.
func TestLoop(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.world.change(func() {
			b.world.loop = func(
				q *dns.Msg,
			) *dns.Msg {
				return b.reply(t.Context(), request{Msg: q, source: someone, udp: true})
			}
		})
		b.fails(t, "www.example.com.", dns.TypeA, dns.RcodeServerFailure)
		if got := len(b.world.took()); got > attempts {
			t.Errorf("one question made %d", got)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			b.guard.run(t.Context())
		}()
		synctest.Wait()
		if !b.guard.looping(b.resolver.node) {
			t.Fatal("the loop is not found")
		}
		began := time.Now()
		reply := b.asks(t, "www.example.com.", dns.TypeA)
		if reply.Rcode != dns.RcodeServerFailure || time.Since(began) != 0 ||
			!strings.Contains(reply.String(), errLoop.Error()) {
			t.Errorf("%v", reply)
		}
		b.know(clusterIPs("web", "10.43.0.20"))
		b.answers(t, "web.default.svc.cluster.local.", dns.TypeA, "A 10.43.0.20")
		b.world.change(func() { b.world.loop = nil })
		time.Sleep(probeEvery + lookEvery)
		synctest.Wait()
		b.answers(t, "www.example.com.", dns.TypeA, "A 198.51.100.1")

		// One that comes later is found when answers stay out.
		b.world.change(func() {
			b.world.loop = func(
				q *dns.Msg,
			) *dns.Msg {
				return b.reply(t.Context(), request{Msg: q, source: someone, udp: true})
			}
		})
		b.fails(t, "late.example.com.", dns.TypeA, dns.RcodeServerFailure)
		time.Sleep(probeEvery + lookEvery)
		synctest.Wait()
		if !b.guard.looping(b.resolver.node) {
			t.Error("the later loop is not found")
		}
	})
}

// TestLoopOfARule: the servers of a rule may ask cluster DNS, but not for the zones of the rule.
func TestLoopOfARule(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		const ruled = "192.0.2.9:53"
		use := func(text string) {
			t.Helper()
			rules, err := ParseRules(map[string]string{"a.server": text}, "cluster.local", b.config.own)
			if err != nil {
				t.Fatal(err)
			}
			b.setRules(rules)
			time.Sleep(lookEvery)
			synctest.Wait()
		}
		fails := func(name string) {
			t.Helper()
			began := time.Now()
			reply := b.asks(t, name, dns.TypeA)
			if reply.Rcode != dns.RcodeServerFailure || time.Since(began) != 0 ||
				!strings.Contains(reply.String(), errRuled.Error()) {
				t.Errorf("after %v: %v", time.Since(began), reply)
			}
		}
		circle := ".corp.example." // the names for which the rule's server asks cluster DNS
		b.world.change(func() {
			b.world.loop = func(
				q *dns.Msg,
			) *dns.Msg {
				return b.reply(t.Context(), request{Msg: q, source: someone, udp: true})
			}
			b.world.loops = func(server netip.AddrPort, name string) bool {
				return server.String() == ruled && strings.HasSuffix(name, circle)
			}
		})
		go b.guard.run(t.Context())
		synctest.Wait()
		use("example.com, corp.example {\nforward . 192.0.2.9\n}")
		fails("www.corp.example.")
		fails("www.example.com.") // it is the same rule
		b.fails(t, "elsewhere.example.", dns.TypeA, dns.RcodeNameError)
		if got := testutil.ToFloat64(b.metrics.loops); got != 1 {
			t.Errorf("the metric says %v", got)
		}
		use("example.com {\nforward . 192.0.2.9\n}")
		b.answers(t, "www.example.com.", dns.TypeA, "A 198.51.100.1")
		if got := testutil.ToFloat64(b.metrics.loops); got != 0 {
			t.Errorf("the metric says %v without a loop", got)
		}
		if got := len(b.guard.checks); got != 2 {
			t.Errorf("%d upstreams are looked at, want the node's and the rule's", got)
		}
	})
}

// TestMetrics: questions are counted by where their answers came from.
func TestMetrics(t *testing.T) {
	inBubble(t, func(t *testing.T, b *bench) {
		b.know(clusterIPs("web", "10.43.0.20"))
		rules, err := ParseRules(map[string]string{"a.override": "hosts {\n 192.0.2.50 a.example.com\n fallthrough\n}"},
			"cluster.local", b.config.own)
		if err != nil {
			t.Fatal(err)
		}
		b.setRules(rules)
		for _, name := range []string{"web.default.svc.cluster.local.", "none.default.svc.cluster.local.",
			"a.example.com.", "www.example.com.", "www.example.com."} {
			b.asks(t, name, dns.TypeA)
		}
		b.world.change(func() { b.world.silent[first], b.world.silent[second] = true, true })
		b.asks(t, "gone.example.com.", dns.TypeA)
		synctest.Wait() // the question outlives its client's patience
		for labels, want := range map[[2]string]float64{
			{fromCluster, "NOERROR"}: 1, {fromCluster, "NXDOMAIN"}: 1, {fromRules, "NOERROR"}: 1,
			{fromForwarded, "NOERROR"}: 1,
			{fromCache, "NOERROR"}:     1, {fromForwarded, "SERVFAIL"}: 1,
		} {
			if got := testutil.ToFloat64(b.metrics.queries.WithLabelValues(labels[0], labels[1])); got != want {
				t.Errorf("%v: %v, want %v", labels, got, want)
			}
		}
		if got := testutil.ToFloat64(b.metrics.silent); got != 1 {
			t.Errorf("%v failures", got)
		}
	})
}
