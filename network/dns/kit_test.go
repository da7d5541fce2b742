package dns

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/barque/barque/internal/await"
)

// The node's resolvers in tests, in the order of its file.
var (
	first  = netip.MustParseAddrPort("192.0.2.1:53")
	second = netip.MustParseAddrPort("192.0.2.2:53")
)

// someone is a client where it does not matter which one.
var someone = netip.MustParseAddr("10.42.0.9")

// bench is a server with a cluster and a world that are the test's.
type bench struct {
	*Server
	client *fake.Clientset
	resolv string // the node's file
	world  *world
	start  func() // the informers
}

// world plays the servers outside: what a name has, and what became of whom.
type world struct {
	mu      sync.Mutex
	records map[string][]string // by "name TYPE", as lines of a zone file
	silent  map[netip.AddrPort]bool
	plain   map[netip.AddrPort]int // what servers that do not know EDNS say to it
	bad     netip.AddrPort         // whose answers make this server panic
	tarpit  string                 // the end of names that nobody answers for
	rcodes  map[netip.AddrPort]int
	asked   []string                                      // "server name TYPE"
	loops   func(server netip.AddrPort, name string) bool // for whom loop counts; nil: for all
	loop    func(*dns.Msg) *dns.Msg                       // in a goroutine of its own, as behind a network
}

func (w *world) exchange(ctx context.Context, server netip.AddrPort, query *dns.Msg) (*dns.Msg, error) {
	asked := query.Question[0]
	key := strings.ToLower(asked.Name) + " " + dns.TypeToString[asked.Qtype]
	w.mu.Lock()
	if rcode, old := w.plain[server]; old && query.IsEdns0() != nil {
		defer w.mu.Unlock()
		w.asked = append(w.asked, server.String()+" "+key+" EDNS")
		return new(dns.Msg).SetRcode(query, rcode), nil
	}
	w.asked = append(w.asked, server.String()+" "+key)
	bad := server == w.bad
	silent, rcode, lines, loop := w.silent[server] || w.tarpit != "" && strings.HasSuffix(asked.Name, w.tarpit),
		w.rcodes[server], w.records[key], w.loop
	if w.loops != nil && !w.loops(server, asked.Name) {
		loop = nil
	}
	w.mu.Unlock()
	if bad {
		panic("an answer that nobody has thought of")
	}
	if silent {
		<-ctx.Done()
		return nil, errors.New("nobody answers")
	}
	if loop != nil {
		back := make(chan *dns.Msg, 1)
		go func() { back <- loop(query) }() // ends within answerTime
		select {
		case reply := <-back:
			return reply, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	reply := new(dns.Msg).SetReply(query)
	reply.Rcode = rcode
	if rcode != dns.RcodeSuccess {
		return reply, nil
	}
	for _, line := range lines {
		record, err := dns.NewRR(line)
		if err != nil {
			return nil, err
		}
		reply.Answer = append(reply.Answer, record)
	}
	if len(lines) == 0 {
		reply.Rcode = dns.RcodeNameError
		soa, err := dns.NewRR("example.com. 3600 IN SOA ns.example.com. root.example.com. 1 2 3 4 60")
		if err != nil {
			return nil, err
		}
		reply.Ns = []dns.RR{soa}
	}
	return reply, nil
}

// change changes the world.
func (w *world) change(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

// took returns what was asked since the last time, without probes.
func (w *world) took() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var asked []string
	for _, one := range w.asked {
		if !strings.Contains(one, probeLabel) {
			asked = append(asked, one)
		}
	}
	w.asked = nil
	return asked
}

func newBench(t testing.TB, objects ...runtime.Object) *bench {
	t.Helper()
	return newBenchIn(t, t.TempDir(), objects...)
}

// newBenchIn has the files of an earlier one.
func newBenchIn(t testing.TB, dir string, objects ...runtime.Object) *bench {
	t.Helper()
	w := &world{records: map[string][]string{
		"www.example.com. A":   {"www.example.com. 300 IN A 198.51.100.1"},
		"brief.example.com. A": {"brief.example.com. 2 IN A 198.51.100.2"},
	}, silent: map[netip.AddrPort]bool{}, rcodes: map[netip.AddrPort]int{}}
	b := &bench{client: fake.NewClientset(objects...), resolv: filepath.Join(dir, "resolv.conf"), world: w}
	b.resolvers(t, "nameserver 192.0.2.1\nnameserver 192.0.2.2\n")
	factory := informers.NewSharedInformerFactory(b.client, 0)
	var err error
	b.Server, err = newServer(Config{
		Domain: "cluster.local", Listen: netip.MustParseAddrPort("127.0.0.1:0"),
		Addresses:  []netip.Addr{netip.MustParseAddr("10.43.0.10")},
		Networks:   []netip.Prefix{netip.MustParsePrefix("10.42.0.0/16"), netip.MustParsePrefix("10.43.0.0/16")},
		ResolvConf: b.resolv, File: filepath.Join(filepath.Dir(b.resolv), "known.json"),
		Services: factory.Core().V1().Services(), EndpointSlices: factory.Discovery().V1().EndpointSlices(),
		Namespaces: factory.Core().V1().Namespaces(), Rules: factory.Core().V1().ConfigMaps(),
	}, w.exchange)
	if err != nil {
		t.Fatal(err)
	}
	b.askTCP = w.exchange
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(func() { // after Run has ended
		cancel()
		factory.Shutdown()
	})
	b.start = func() { factory.Start(ctx.Done()) }
	return b
}

func (b *bench) resolvers(t testing.TB, content string) {
	t.Helper()
	if err := os.WriteFile(b.resolv, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// know lets the server know the cluster without informers.
func (b *bench) know(objects ...any) {
	for _, o := range objects {
		switch o := o.(type) {
		case *corev1.Namespace:
			b.state.setNamespace(o.Name, true)
		case *corev1.Service:
			b.state.setService(o)
		}
	}
	b.synced.Store(true)
}

// asks returns the reply to a question that comes by UDP.
func (b *bench) asks(t *testing.T, name string, kind uint16) *dns.Msg {
	t.Helper()
	query := new(dns.Msg).SetQuestion(name, kind)
	query.SetEdns0(maxPayload, false)
	return b.reply(t.Context(), request{Msg: query, source: someone, udp: true})
}

// client is the other end of what a handler writes.
type client struct {
	dns.ResponseWriter
	addr netip.Addr
	got  *dns.Msg
}

func (c *client) RemoteAddr() net.Addr {
	return net.UDPAddrFromAddrPort(netip.AddrPortFrom(c.addr, 5300))
}

func (c *client) WriteMsg(m *dns.Msg) error {
	c.got = m
	return nil
}

// arrives hands a client's question to the server, as a packet does, and returns the reply or nil.
func (b *bench) arrives(t *testing.T, from, name string) *dns.Msg {
	t.Helper()
	c := &client{addr: netip.MustParseAddr(from)}
	b.handler(t.Context(), true)(c, new(dns.Msg).SetQuestion(name, dns.TypeA))
	return c.got
}

// answers wants exactly these records, in the model's words, and NOERROR.
func (b *bench) answers(t *testing.T, name string, kind uint16, want ...string) {
	t.Helper()
	reply := b.asks(t, name, kind)
	if got := said(reply.Answer); reply.Rcode != dns.RcodeSuccess || strings.Join(got, ",") != strings.Join(want, ",") {
		t.Errorf("%s %s: %s %q, want %q", name, dns.TypeToString[kind], dns.RcodeToString[reply.Rcode], got, want)
	}
}

// fails wants a response code and no records.
func (b *bench) fails(t *testing.T, name string, kind uint16, rcode int) {
	t.Helper()
	if reply := b.asks(t, name, kind); reply.Rcode != rcode || len(reply.Answer) > 0 {
		t.Errorf("%s %s: %s %v, want %s", name, dns.TypeToString[kind], dns.RcodeToString[reply.Rcode], reply.Answer,
			dns.RcodeToString[rcode])
	}
}

func namespace(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

func clusterIPs(name string, ips ...string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.ServiceSpec{
		ClusterIP: ips[0], ClusterIPs: ips, Ports: []corev1.ServicePort{{Name: "http", Port: 80}},
	}}
}

func external(name, target string) *corev1.Service {
	return &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: target}}
}

// samePort listens on the same port of the loopback. That of TCP is chosen first: ports of closed
// connections stay taken for a minute there.
func samePort(t *testing.T) (net.PacketConn, net.Listener) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	packets, err := net.ListenPacket("udp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return packets, listener
}

// outside is a real name server on the loopback.
func outside(t *testing.T, handle dns.HandlerFunc) netip.AddrPort {
	t.Helper()
	packets, listener := samePort(t)
	var ended sync.WaitGroup
	for _, server := range []*dns.Server{{PacketConn: packets, Handler: handle},
		{Listener: listener, Handler: handle}} {
		ended.Go(func() { _ = server.ActivateAndServe() })
	}
	t.Cleanup(func() {
		packets.Close()
		listener.Close()
		ended.Wait()
	})
	return packets.LocalAddr().(*net.UDPAddr).AddrPort()
}

// within bounds a wait of a test.
const within = await.Hang
