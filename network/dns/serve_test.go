package dns

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/internal/await"
)

// running runs a bench's server until the test ends.
func running(t *testing.T, b *bench) string {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	b.start()
	await.Value(t, "the server to be ready", b.Ready())
	return b.at.Load().String()
}

func query(t *testing.T, network, at string, m *dns.Msg) *dns.Msg {
	t.Helper()
	client := &dns.Client{Net: network, Timeout: within}
	reply, _, err := client.Exchange(m, at)
	if err != nil {
		t.Fatalf("%s %v: %v", network, m.Question, err)
	}
	return reply
}

// TestServe asks by UDP and TCP on the loopback.
func TestServe(t *testing.T) {
	const many = 200
	headless := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "many"},
		Spec: corev1.ServiceSpec{ClusterIP: corev1.ClusterIPNone}}
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{
		Namespace: "default", Name: "many-1", Labels: map[string]string{discoveryv1.LabelServiceName: "many"}}}
	for i := range many {
		slice.Endpoints = append(slice.Endpoints,
			discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.42.1.%d", i+1)}})
	}
	b := newBench(t, namespace("default"), clusterIPs("web", "10.43.0.20", "fd00:43::20"),
		clusterIPs("four", "10.43.0.21"), headless, slice,
		external("long", strings.Repeat("x", 64)+".example.com"))
	at := running(t, b)
	ask := func(network, name string, kind uint16, edns uint16) *dns.Msg {
		t.Helper()
		m := new(dns.Msg).SetQuestion(name, kind)
		if edns > 0 {
			m.SetEdns0(edns, false)
		}
		return query(t, network, at, m)
	}

	for _, network := range []string{"udp", "tcp"} {
		reply := ask(network, "WeB.deFault.SVC.Cluster.LOCAL.", dns.TypeA, 0)
		if got := said(reply.Answer); len(got) != 1 || got[0] != "A 10.43.0.20" ||
			reply.Answer[0].Header().Name != "WeB.deFault.SVC.Cluster.LOCAL." ||
			!reply.Authoritative || !reply.RecursionAvailable || reply.Answer[0].Header().Ttl != clusterTTL {
			t.Errorf("%s: %v", network, reply)
		}
		if got := said(ask(network, "web.default.svc.cluster.local.", dns.TypeAAAA, 0).Answer); len(got) != 1 ||
			got[0] != "AAAA fd00:43::20" {
			t.Errorf("%s: the second family: %v", network, got)
		}
		for name, rcode := range map[string]int{"four.default.svc.cluster.local.": dns.RcodeSuccess,
			"none.default.svc.cluster.local.": dns.RcodeNameError} {
			reply := ask(network, name, dns.TypeAAAA, 0)
			if reply.Rcode != rcode || len(reply.Answer) != 0 || len(reply.Ns) != 1 {
				t.Fatalf("%s: %v", network, reply)
			}
			if soa, ok := reply.Ns[0].(*dns.SOA); !ok || soa.Hdr.Name != testZone || soa.Hdr.Ttl != clusterTTL ||
				soa.Minttl != clusterTTL {
				t.Errorf("%s: a denial without the zone's SOA: %v", network, reply.Ns)
			}
		}
	}
	for _, size := range []uint16{0, 1232, 4096} {
		limit := max(int(min(size, maxPayload)), dns.MinMsgSize)
		reply := ask("udp", "many.default.svc.cluster.local.", dns.TypeA, size)
		reply.Compress = true
		if !reply.Truncated || reply.Len() > limit || (reply.IsEdns0() != nil) != (size > 0) {
			t.Errorf("with room for %d: %d bytes, truncated %v, EDNS %v", size, reply.Len(), reply.Truncated,
				reply.IsEdns0())
		}
		if reply = ask("tcp", "many.default.svc.cluster.local.", dns.TypeA, size); reply.Truncated ||
			len(reply.Answer) != many {
			t.Errorf("by TCP: %d answers, truncated %v", len(reply.Answer), reply.Truncated)
		}
	}
	if reply := ask("udp", "long.default.svc.cluster.local.", dns.TypeCNAME, 0); reply.Rcode != dns.RcodeServerFailure {
		t.Errorf("an answer that cannot be written: %v", reply)
	}
	// A header that promises a question, and nothing behind it.
	for _, network := range []string{"udp", "tcp"} {
		conn, err := dns.DialTimeout(network, at, within)
		if err != nil {
			t.Fatal(err)
		}
		if err := conn.SetDeadline(time.Now().Add(within)); err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write([]byte{0, 7, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0}); err != nil {
			t.Fatal(err)
		}
		if reply, err := conn.ReadMsg(); err != nil || reply.Id != 7 || reply.Rcode != dns.RcodeFormatError {
			t.Errorf("%s: no question: %v, %v", network, reply, err)
		}
		_ = conn.Close()
	}
	odd := new(dns.Msg).SetQuestion("web.default.svc.cluster.local.", dns.TypeA)
	odd.Question[0].Qclass = dns.ClassCHAOS
	if reply := query(t, "udp", at, odd); reply.Rcode != dns.RcodeRefused {
		t.Errorf("another class: %v", reply)
	}
	odd = new(dns.Msg).SetQuestion("web.default.svc.cluster.local.", dns.TypeA)
	odd.SetEdns0(1232, false).IsEdns0().SetVersion(1)
	if reply := query(t, "udp", at, odd); reply.Rcode != dns.RcodeBadVers || len(reply.Answer) > 0 {
		t.Errorf("another version of EDNS: %v", reply)
	}
	if reply := ask("udp", testZone, dns.TypeAXFR, 0); reply.Rcode != dns.RcodeRefused {
		t.Errorf("a transfer: %v", reply)
	}
	if got := said(ask("udp", "20.0.43.10.in-addr.arpa.", dns.TypePTR, 0).Answer); len(got) != 1 ||
		got[0] != "PTR web.default.svc.cluster.local." {
		t.Errorf("the reverse name: %v", got)
	}
	if reply := ask("udp", "9.9.43.10.in-addr.arpa.", dns.TypePTR, 0); reply.Rcode != dns.RcodeNameError ||
		len(b.world.took()) != 0 {
		t.Errorf("a reverse name of nobody in the cluster's networks: %v", reply)
	}

	changed := clusterIPs("web", "10.43.0.99")
	if _, err := b.client.CoreV1().Services("default").Update(t.Context(), changed,
		metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	await.NoError(t, "a changed service to be answered with its new address", func(context.Context) error {
		if got := said(ask("udp", "web.default.svc.cluster.local.", dns.TypeA, 0).Answer); len(got) != 1 ||
			got[0] != "A 10.43.0.99" {
			return fmt.Errorf("%v", got)
		}
		return nil
	})
}

// TestServeAgain: what takes the address away for a while does not end the server.
func TestServeAgain(t *testing.T) {
	taken, listener := samePort(t)
	b := newBench(t, clusterIPs("web", "10.43.0.20"))
	b.config.Listen = taken.LocalAddr().(*net.UDPAddr).AddrPort()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		select {
		case <-b.Ready():
			t.Error("ready at an address that is taken")
		case <-time.After(100 * time.Millisecond): // brief: the server must not be ready in it, however long it is
		}
		taken.Close()
		listener.Close()
	}()
	at := running(t, b)
	<-ended
	if got := said(
		query(t, "udp", at, new(dns.Msg).SetQuestion("web.default.svc.cluster.local.", dns.TypeA)).Answer); len(
		got) != 1 {
		t.Errorf("no answer: %v", got)
	}
}

// TestOverNetwork asks real servers outside.
func TestOverNetwork(t *testing.T) {
	long := outside(t, func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		for i := range 100 {
			m.Answer = append(m.Answer,
				addressRecords(q.Question[0].Name, dns.TypeA,
					[]netip.Addr{netip.AddrFrom4([4]byte{198, 51, 100, byte(i)})})...)
		}
		if w.RemoteAddr().Network() == "udp" {
			m.Truncate(dns.MinMsgSize)
		}
		_ = w.WriteMsg(m)
	})
	other := outside(t, func(w dns.ResponseWriter, q *dns.Msg) {
		m := new(dns.Msg).SetReply(q)
		m.Question[0].Name = "other." + m.Question[0].Name
		_ = w.WriteMsg(m)
	})
	old := outside(t, func(w dns.ResponseWriter, q *dns.Msg) {
		_ = w.WriteMsg(new(dns.Msg).SetRcodeFormatError(q))
	})
	q := new(dns.Msg).SetQuestion("www.example.com.", dns.TypeA)
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	if reply, err := overNetwork(ctx, long, q); err != nil || len(reply.Answer) != 100 || reply.Truncated {
		t.Errorf("a long answer: %v %v", reply, err)
	}
	if reply, err := overNetwork(ctx, old, q); err != nil || reply.Rcode != dns.RcodeFormatError {
		t.Errorf("an answer without the question: %v %v", reply, err)
	}
	if reply, err := overNetwork(ctx, other, q); err == nil || !strings.Contains(err.Error(), "another question") {
		t.Errorf("an answer to another question: %v %v", reply, err)
	}
}

func TestBeforeTheClusterIsKnown(t *testing.T) {
	b := newBench(t)
	b.fails(t, "web.default.svc.cluster.local.", dns.TypeA, dns.RcodeServerFailure)
	b.fails(t, "20.0.43.10.in-addr.arpa.", dns.TypePTR, dns.RcodeServerFailure)
	b.answers(t, "www.example.com.", dns.TypeA, "A 198.51.100.1")
	b.know(clusterIPs("web", "10.43.0.20"))
	b.answers(t, "web.default.svc.cluster.local.", dns.TypeA, "A 10.43.0.20")
}

func TestExternalName(t *testing.T) {
	b := newBench(t)
	b.know(external("out", "www.example.com"), external("in", "web.default.svc.cluster.local."),
		clusterIPs("web", "10.43.0.20"),
		external("ping", "pong.default.svc.cluster.local"), external("pong", "ping.default.svc.cluster.local"),
		external("gone", "gone.example.com"))
	b.answers(t, "out.default.svc.cluster.local.", dns.TypeCNAME, "CNAME www.example.com.")
	b.answers(t, "out.default.svc.cluster.local.", dns.TypeA, "A 198.51.100.1", "CNAME www.example.com.")
	b.answers(t, "in.default.svc.cluster.local.", dns.TypeA, "A 10.43.0.20", "CNAME web.default.svc.cluster.local.")
	b.fails(t, "ping.default.svc.cluster.local.", dns.TypeA, dns.RcodeServerFailure)
	reply := b.asks(t, "gone.default.svc.cluster.local.", dns.TypeA)
	if got := said(reply.Answer); reply.Rcode != dns.RcodeNameError || len(got) != 1 ||
		got[0] != "CNAME gone.example.com." {
		t.Errorf("a target that does not exist: %v", reply)
	}
}
