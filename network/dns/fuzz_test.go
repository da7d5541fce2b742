package dns

import (
	"context"
	"net/netip"
	"testing"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// FuzzPackets: whatever a pod sends, and whatever a server outside says to that, the answer has the
// question's ID, is an answer, and fits. None of them ends the goroutine.
func FuzzPackets(f *testing.F) {
	// The servers outside are the fuzzer as well.
	var said []byte
	exchange := func(context.Context, netip.AddrPort, *dns.Msg) (*dns.Msg, error) {
		m := new(dns.Msg)
		return m, m.Unpack(said)
	}
	server, err := newServer(newBench(f).config, exchange)
	if err != nil {
		f.Fatal(err)
	}
	server.askTCP = exchange
	(&bench{Server: server}).know(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"},
		Spec: corev1.ServiceSpec{ClusterIP: "10.43.0.20", ClusterIPs: []string{"10.43.0.20"},
			Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: "TCP"}}}})
	answer := new(dns.Msg)
	packed := func(m *dns.Msg) []byte {
		data, err := m.Pack()
		if err != nil {
			f.Fatal(err)
		}
		return data
	}
	for _, name := range []string{"web.shop.svc.cluster.local.", "_http._tcp.web.shop.svc.cluster.local.",
		"20.0.43.10.in-addr.arpa.", "www.example.com.", "cluster.local.", ".", "dns-version.cluster.local."} {
		for _, kind := range []uint16{dns.TypeA, dns.TypeAAAA, dns.TypeSRV, dns.TypePTR, dns.TypeANY, dns.TypeAXFR,
			dns.TypeOPT, 65535} {
			query := new(dns.Msg).SetQuestion(name, kind)
			if kind == dns.TypeAAAA {
				query.SetEdns0(4096, true)
			}
			answer.SetReply(query)
			record, err := dns.NewRR("www.example.com. 300 IN CNAME www.example.com.")
			if err != nil {
				f.Fatal(err)
			}
			answer.Answer = []dns.RR{record}
			f.Add(packed(query), packed(answer), kind%2 == 0)
		}
	}
	f.Add([]byte{}, []byte{}, true)
	f.Add([]byte("\x00\x01\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\xc0\x0c\x00\x01\x00\x01"), []byte("\xff"), true)
	f.Fuzz(func(t *testing.T, packet, upstream []byte, udp bool) {
		said = upstream
		query := new(dns.Msg)
		if query.Unpack(packet) != nil || query.Response {
			return // the library answers, or drops it
		}
		m := server.reply(t.Context(), request{Msg: query, source: someone, udp: udp})
		if m.Id != query.Id || !m.Response {
			t.Errorf("%x: the answer is %v", packet, m)
		}
		data, err := m.Pack()
		if err == nil && udp && len(data) > maxPayload && len(query.Question) == 1 {
			t.Errorf("%x: the answer has %d bytes", packet, len(data))
		}
	})
}
