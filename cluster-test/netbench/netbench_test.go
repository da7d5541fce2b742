package main

import (
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"
	corev1 "k8s.io/api/core/v1"

	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/internal/needs"
)

func TestPercentile(t *testing.T) {
	var hundred []time.Duration
	for i := range 100 {
		hundred = append(hundred, time.Duration(100-i))
	}
	for _, c := range []struct {
		of   []time.Duration
		p    int
		want time.Duration
	}{{nil, 50, 0}, {[]time.Duration{7}, 50, 7}, {[]time.Duration{7}, 99, 7}, {[]time.Duration{3, 1, 2}, 50, 2},
		{hundred, 50, 50}, {hundred, 99, 99}, {hundred, 100, 100}} {
		if got := percentile(c.of, c.p); got != c.want {
			t.Errorf("percentile %d of %v is %v, want %v", c.p, c.of, got, c.want)
		}
	}
}

// Every endpoint has an address of its own in the backends' network, of which none is a changing
// one.
func TestBackends(t *testing.T) {
	seen := map[string]bool{changes[0].String(): true, changes[1].String(): true}
	for i := range mostServices {
		o := numbered(i, i%headlessEach == 0)
		if got := o.service.Spec.ClusterIP == corev1.ClusterIPNone; got != (i%headlessEach == 0) {
			t.Fatalf("service %d: headless is %v", i, got)
		}
		for _, e := range o.slice.Endpoints {
			if seen[e.Addresses[0]] || !backendNetwork.Contains(netip.MustParseAddr(e.Addresses[0])) {
				t.Fatalf("service %d has endpoint %s", i, e.Addresses[0])
			}
			seen[e.Addresses[0]] = true
		}
	}
	if len(seen) != mostServices*endpoints+2 || !backendNetwork.Contains(changes[1]) {
		t.Errorf("%d addresses", len(seen))
	}
}

// Questions are of all kinds and families, about services that there are, headless where they say
// so.
func TestAsk(t *testing.T) {
	const services = 20
	random := rand.New(rand.NewPCG(1, 1))
	counts := map[[2]int]int{}
	for n := range 8000 {
		q := ask(n, services, random)
		counts[[2]int{q.kind, int(q.of)}]++
		host, zone, _ := strings.Cut(q.name, ".")
		known := -1
		for i := range services {
			if host == serviceName(i) && zone == dns.Fqdn(searched[0]) {
				known = i
			}
		}
		if exists := known >= 0; exists != (q.rcode == dns.RcodeSuccess) {
			t.Fatalf("%+v: the service exists: %v", q, exists)
		}
		if known >= 0 && (known%headlessEach == 0) != (q.kind == 1) {
			t.Fatalf("%+v is about service %d", q, known)
		}
	}
	for of, n := range counts {
		if n != 1000 {
			t.Errorf("%d questions of kind %d, type %d", n, of[0], of[1])
		}
	}
}

func TestListeners(t *testing.T) {
	listen := func() net.Listener {
		t.Helper()
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return ln
	}
	first, second := listen(), listen()
	defer second.Close()
	both := newListeners(first)
	both.add(second)
	for _, ln := range []net.Listener{first, second, first} {
		client, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		conn, err := both.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		if got, want := conn.LocalAddr().String(), ln.Addr().String(); got != want {
			t.Errorf("accepted at %s, want %s", got, want)
		}
	}
	if err := both.Close(); err != nil {
		t.Error(err)
	}
	if _, err := both.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	late, err := net.Dial("tcp", second.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer late.Close()
	if err := late.SetDeadline(time.Now().Add(await.Hang)); err != nil {
		t.Fatal(err)
	}
	if _, err := late.Read(make([]byte, 1)); !errors.Is(err, io.EOF) && !strings.Contains(err.Error(), "reset") {
		t.Errorf("a connection that comes after Close: %v", err)
	}
}

// The client reaches every backend by the node, and learns which one; none that is not there.
func TestSite(t *testing.T) {
	needs.Root(t, "the network in which proxies and DNS servers are compared")
	s, err := newSite()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.close(); err != nil {
			t.Error(err)
		}
	}()
	end, err := s.answering()
	if err != nil {
		t.Fatal(err)
	}
	defer end()
	err = s.client.Do(func() error {
		for _, want := range []netip.Addr{backend(0), backend(300), backend(mostServices*endpoints - 1), changes[1]} {
			if got, err := leadsTo(netip.AddrPortFrom(want, backendPort)); err != nil || got != want {
				t.Errorf("%s is told by %s, %v", want, got, err)
			}
		}
		if got, err := leadsTo(netip.AddrPortFrom(backend(0), backendPort+1)); err == nil {
			t.Errorf("a port where nobody listens is told by %s", got)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}
