package proxy

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/barque/barque/edge/gateway/model"
)

// asking is the address that the next client asks for, and the addresses that Open has been called
// with.
type asking struct {
	mu     sync.Mutex
	addr   netip.Addr
	err    error
	served [][]netip.AddrPort
	told   *sync.Cond
}

func newAsking() *asking {
	a := &asking{}
	a.told = sync.NewCond(&a.mu)
	return a
}

func (a *asking) config() Config {
	return Config{
		Asked: func(net.Conn) (netip.Addr, error) {
			a.mu.Lock()
			defer a.mu.Unlock()
			return a.addr, a.err
		},
		Open: func(all []netip.AddrPort) {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.served = append(a.served, all)
			a.told.Broadcast()
		},
	}
}

func (a *asking) ask(text string, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.addr, a.err = netip.Addr{}, err
	if text != "" {
		a.addr = netip.MustParseAddr(text)
	}
}

// wait waits until these addresses are served.
func (a *asking) wait(want ...string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for {
		var have []string
		if n := len(a.served); n > 0 {
			for _, at := range a.served[n-1] {
				have = append(have, at.String())
			}
		}
		if slices.Equal(have, want) {
			return
		}
		a.told.Wait()
	}
}

func only(addrs ...string) (all []netip.Addr) {
	for _, a := range addrs {
		all = append(all, netip.MustParseAddr(a))
	}
	return all
}

// answer is the text of a response to a request to port 80, or "closed".
func (b *bench) answer() string {
	b.t.Helper()
	conn, err := net.Dial("tcp", b.addr(80))
	if err != nil {
		b.t.Fatal(err)
	}
	defer conn.Close()
	_, err = io.WriteString(conn, "GET /x HTTP/1.1\r\nHost: a.example.com\r\nConnection: close\r\n\r\n")
	all, readErr := io.ReadAll(conn)
	if err != nil || readErr != nil || len(all) == 0 {
		return "closed"
	}
	_, body, _ := strings.Cut(string(all), "\r\n\r\n")
	return strings.TrimSpace(body)
}

// TestAddresses: one port has a table for each address, and one for the nodes' own addresses. What
// was led here by somebody else is for the latter.
func TestAddresses(t *testing.T) {
	a := newAsking()
	b := newBench(t, a.config())
	for _, name := range []string{"nodes", "one", "two"} {
		b.serve(name, says(name))
		place := model.Place{Port: 80, Hosts: []string{""}}
		switch name {
		case "one":
			place.Addresses = only("192.0.2.1", "2001:db8::1")
		case "two":
			place.Addresses = only("192.0.2.2")
		}
		b.route(name, []model.Rule{rule("/", model.Action{Backends: to(name)})}, place)
	}
	nodes := model.Listener{Port: 80}
	one := model.Listener{Port: 80, Addresses: only("192.0.2.1", "2001:db8::1"), Isolated: true}
	two := model.Listener{Port: 80, Addresses: only("192.0.2.2")}
	b.listen(nodes, one, two)
	a.wait("192.0.2.1:80", "192.0.2.2:80", "[2001:db8::1]:80")
	expect := func(addr, want string) {
		t.Helper()
		a.ask(addr, nil)
		if got := b.answer(); !strings.HasPrefix(got, want) {
			t.Errorf("%s answers %q, want %q", addr, got, want)
		}
	}
	expect("192.0.2.1", "one")
	expect("2001:db8::1", "one")
	expect("192.0.2.2", "two")
	expect("127.0.0.1", "nodes")
	expect("10.0.0.1", "nodes") // a Service whose endpoint is the node
	a.ask("", errors.New("no such option"))
	if got := b.answer(); got != "closed" {
		t.Errorf("without the kernel's word: %q", got)
	}
	// Without the nodes' listener, the port is open, and closes their connections.
	b.listen(one, two)
	expect("192.0.2.1", "one")
	for got := ""; got != "closed"; got = b.answer() { // until the proxy has taken the listeners over
		a.ask("127.0.0.1", nil)
	}
	// An address that goes is not the nodes' one, also while its connections end.
	b.listen(nodes, two)
	a.wait("192.0.2.2:80")
	a.ask("192.0.2.1", nil)
	if got := b.answer(); got == "nodes /x" && stillKnown(b.proxy, "192.0.2.1:80") {
		t.Error("a Gateway's client was led to the nodes' routes")
	}
	expect("192.0.2.2", "two")
}

func stillKnown(p *Proxy, at string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.ports[netip.MustParseAddrPort(at)] != nil
}

// TestAddressesOfTLS: server names of one address are no names of another one.
func TestAddressesOfTLS(t *testing.T) {
	a := newAsking()
	b := newBench(t, a.config())
	b.certs["one"], b.certs["two"] = certificateFor(t, "a.example.com"), certificateFor(t, "b.example.com")
	secret := func(name string) []types.NamespacedName { return []types.NamespacedName{{Namespace: "n", Name: name}} }
	b.listen(
		model.Listener{Port: 443, Serve: model.HTTPS, Certificates: secret("one"), Addresses: only("192.0.2.1")},
		model.Listener{Port: 443, Serve: model.HTTPS, Certificates: secret("two"), Addresses: only("192.0.2.2")},
	)
	a.wait("192.0.2.1:443", "192.0.2.2:443")
	for addr, want := range map[string]string{"192.0.2.1": "a.example.com", "192.0.2.2": "b.example.com"} {
		a.ask(addr, nil)
		conn, err := tls.Dial("tcp", b.addr(443), &tls.Config{InsecureSkipVerify: true, ServerName: "x.example.com"})
		if err != nil {
			t.Fatal(err)
		}
		if got := conn.ConnectionState().PeerCertificates[0].DNSNames[0]; got != want {
			t.Errorf("%s shows the certificate of %s", addr, got)
		}
		_ = conn.Close()
	}
}

// TestAddressesAreForgotten: nothing remains of an address that no listener has any more.
func TestAddressesAreForgotten(t *testing.T) {
	a := newAsking()
	config := a.config()
	config.Drain = 1 // nothing is under way
	b := newBench(t, config)
	for i := range 3 {
		addr := fmt.Sprintf("192.0.2.%d", i+1)
		b.listen(model.Listener{Port: 80, Addresses: only(addr)})
		a.wait(addr + ":80")
	}
	b.listen()
	a.wait()
	for stillKnown(b.proxy, "192.0.2.1:80") || stillKnown(b.proxy, "192.0.2.2:80") ||
		stillKnown(b.proxy, "192.0.2.3:80") {
		if t.Context().Err() != nil {
			t.Fatal("the proxy keeps addresses")
		}
	}
}
