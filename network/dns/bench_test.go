package dns

import (
	"context"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// A large cluster: services, and endpoints of each.
const (
	benchServices  = 10000
	benchEndpoints = 5
)

func largeCluster(s *state) {
	s.setNamespace("default", true)
	for i := range benchServices {
		name := fmt.Sprintf("s%d", i)
		s.setService(
			&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.ServiceSpec{
				ClusterIP: fmt.Sprintf("10.43.%d.%d", i/250, i%250),
				Ports:     []corev1.ServicePort{{Name: "http", Port: 80}}}})
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name,
				Labels: map[string]string{discoveryv1.LabelServiceName: name}}}
		for e := range benchEndpoints {
			n := i*benchEndpoints + e
			slice.Endpoints = append(slice.Endpoints,
				discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.%d.%d.%d", 44+n/62500, n/250%250, n%250)}})
		}
		s.setSlice(slice)
	}
}

// BenchmarkQueries asks over the loopback at 1,000 questions a second, among 10,000 services with
// 50,000 endpoints, and tells the times that clients wait. b.N is the number of questions.
func BenchmarkQueries(b *testing.B) {
	var before, after runtime.MemStats
	s := newState()
	runtime.GC()
	runtime.ReadMemStats(&before)
	largeCluster(s)
	runtime.GC()
	runtime.ReadMemStats(&after)
	server := &Server{config: Config{Listen: netip.MustParseAddrPort("127.0.0.1:0")}, state: s, metrics: newMetrics(),
		places: make(chan struct{}, maxQueries)}
	node := newUpstream(func() []netip.AddrPort { return nil }, overNetwork)
	server.guard = &loopGuard{}
	server.resolver = &resolver{zone: &zone{state: s, origin: testZone}, cache: newAnswers(cacheSize), node: node,
		loops:  server.guard.looping,
		failed: server.guard.failed, rules: server.rules.Load, waiting: newLimiter(maxForwarded, maxForwardedOfOne),
		ready: func() bool { return true }}
	server.setRules(&Rules{})
	ctx, cancel := context.WithCancel(context.Background())
	listening, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- server.serve(ctx, func() { close(listening) }) }()
	<-listening
	defer func() {
		cancel()
		<-ended
	}()
	conn, err := dns.Dial("udp", server.at.Load().String())
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	took := make([]time.Duration, 0, b.N)
	ticks := time.NewTicker(time.Millisecond)
	defer ticks.Stop()
	b.ResetTimer()
	for i := range b.N {
		<-ticks.C
		began := time.Now()
		if err := conn.WriteMsg(
			new(dns.Msg).SetQuestion(fmt.Sprintf("s%d.default.svc.cluster.local.", i*7919%benchServices),
				dns.TypeA)); err != nil {
			b.Fatal(err)
		}
		reply, err := conn.ReadMsg()
		if err != nil || len(reply.Answer) != 1 {
			b.Fatalf("%v %v", reply, err)
		}
		took = append(took, time.Since(began))
	}
	b.StopTimer()
	slices.Sort(took)
	b.ReportMetric(float64(took[len(took)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(took[len(took)*99/100].Microseconds()), "p99-µs")
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/(1<<20), "zone-MiB")
}

func BenchmarkLookup(b *testing.B) {
	s := newState()
	largeCluster(s)
	z := &zone{state: s, origin: testZone}
	for i := 0; b.Loop(); i++ {
		if got := z.lookup(fmt.Sprintf("s%d.default.svc.cluster.local.", i%benchServices),
			dns.TypeA); len(got.answer) != 1 {
			b.Fatal(got)
		}
	}
}
