package proxy

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/edge/gateway/conns"
	"github.com/barque/barque/edge/gateway/endpoints"
	"github.com/barque/barque/edge/gateway/model"
)

func tcp(addr string) net.Addr { return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(addr)) }

// TestConnectionsOfASource: one source has no more than its part, and its newcomers are closed.
// Other sources get through. Trusted proxies, balancers and exempt sources have only the total.
func TestConnectionsOfASource(t *testing.T) {
	const mine, most = 3, 12
	prefix := netip.MustParsePrefix
	b := newBench(t, Config{
		OfSource: mine, Connections: most, TrustedHops: []netip.Prefix{prefix("198.51.100.0/24")},
		Exempt: []netip.Prefix{prefix("203.0.113.0/24")},
	})
	b.serve("s", func(http.ResponseWriter, *http.Request) {})
	b.route("r", []model.Rule{rule("/", model.Action{Backends: to("s")})})
	b.listen(model.Listener{Port: 80, Serve: model.HTTP})
	// ask opens a connection and makes a request; an error means that the connection was closed.
	ask := func(remote string) (net.Conn, error) {
		b.mu.Lock()
		b.remote = tcp(remote)
		b.mu.Unlock()
		conn, err := net.Dial("tcp", b.addr(80))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			return conn, err
		}
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err == nil {
			response.Body.Close()
		}
		return conn, err
	}
	for i := range mine + 2 {
		if _, err := ask("192.0.2.1:1"); (err != nil) != (i >= mine) {
			t.Errorf("connection %d of a source: %v", i, err)
		}
	}
	for i := range mine + 1 {
		if _, err := ask("198.51.100.7:1"); err != nil {
			t.Errorf("connection %d of a trusted proxy: %v", i, err)
		}
		if _, err := ask("203.0.113.7:1"); err != nil {
			t.Errorf("connection %d of an exempt source: %v", i, err)
		}
	}
	if _, err := ask("192.0.2.2:1"); err != nil {
		t.Errorf("another source: %v", err)
	}
	if n := b.proxy.open.Count(); n > most {
		t.Errorf("%d connections are open", n)
	}
}

// slowly runs a client against a proxy with one backend, in virtual time.
func slowly(t *testing.T, backend http.HandlerFunc, client func(t *testing.T, conn net.Conn)) {
	synctest.Test(t, func(t *testing.T) {
		front, behind := conns.NewQueue(tcp("192.0.2.1:80")), conns.NewQueue(tcp("192.0.2.9:80"))
		server := &http.Server{Handler: backend}
		var running sync.WaitGroup
		running.Go(func() { _ = server.Serve(behind) })
		p := New(Config{
			Listen: func(uint16) (net.Listener, error) { return front, nil },
			Dial: func(context.Context, string, string) (net.Conn, error) {
				near, far := net.Pipe()
				behind.Put(far)
				return near, nil
			},
			Drain: time.Second,
		}, endpoints.New(func(types.NamespacedName) (*corev1.Service, []*discoveryv1.EndpointSlice) {
			return &corev1.Service{Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}},
				[]*discoveryv1.EndpointSlice{{
					Ports:     []discoveryv1.EndpointPort{{Name: ptr.To(""), Port: ptr.To(int32(80))}},
					Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.9"}}},
				}}
		}))
		ctx, stop := context.WithCancel(t.Context())
		running.Go(func() { _ = p.Run(ctx) })
		origin := model.Origin{Kind: "HTTPRoute", NamespacedName: types.NamespacedName{Namespace: "n", Name: "r"}}
		p.SetRoutes(map[model.Origin]*model.Route{origin: {
			Origin: origin, Places: []model.Place{{Port: 80, Hosts: []string{""}}},
			Rules: []model.Rule{rule("/", model.Action{Backends: to("s")})},
		}})
		p.SetListeners([]model.Listener{{Port: 80, Serve: model.HTTP}})
		near, far := net.Pipe()
		running.Go(func() { front.Put(conns.From(far, far, tcp("192.0.2.7:5000"))) })
		client(t, near)
		_ = near.Close()
		stop()
		_ = server.Close()
		running.Wait()
	})
}

// TestASlowBodyEnds: a client that sends a byte now and then does not hold a backend for long.
func TestASlowBodyEnds(t *testing.T) {
	slowly(t, func(_ http.ResponseWriter, r *http.Request) { _, _ = io.Copy(io.Discard, r.Body) },
		func(t *testing.T, conn net.Conn) {
			var sent atomic.Int64
			var sending sync.WaitGroup
			defer sending.Wait()
			defer conn.Close()
			sending.Go(func() { // ends when the connection is closed
				_, err := io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n")
				for ; err == nil; time.Sleep(time.Second) {
					_, err = conn.Write([]byte("x"))
					sent.Add(1)
				}
			})
			_ = conn.SetReadDeadline(time.Now().Add(time.Hour))
			response, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil || response.StatusCode != http.StatusRequestTimeout {
				t.Errorf("after %d bytes: %v, %v", sent.Load(), response, err)
			}
		})
}

// TestAClientThatReadsNothing loses its connection.
func TestAClientThatReadsNothing(t *testing.T) {
	slowly(t, func(w http.ResponseWriter, _ *http.Request) {
		// A length keeps the copy from flushing under a mutex, which stops virtual time.
		w.Header().Set("Content-Length", strconv.Itoa(1<<40))
		for {
			if _, err := io.WriteString(w, strings.Repeat("x", 1<<16)); err != nil {
				return
			}
		}
	}, func(t *testing.T, conn net.Conn) {
		if _, err := io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * writePatience)
		if n, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("the connection is open: %d bytes, %v", n, err)
		}
	})
}

// TestAuthenticationOfTheNodeItself: an Ingress cannot have the node ask itself, by whatever name.
func TestAuthenticationOfTheNodeItself(t *testing.T) {
	b := newBench(t, Config{})
	var asked atomic.Int64
	auth := b.serve("auth", func(http.ResponseWriter, *http.Request) { asked.Add(1) })
	b.serve("s", func(http.ResponseWriter, *http.Request) {})
	_, port, err := net.SplitHostPort(auth.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	var rules []model.Rule
	hosts := []string{"127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "0.0.0.0", "169.254.169.254"}
	for _, host := range hosts {
		rules = append(rules, rule("/"+host, model.Action{
			Backends: to("s"),
			Access: model.Access{
				External: &model.External{URL: "http://" + net.JoinHostPort(strings.Trim(host, "[]"), port)}},
		}))
	}
	b.route("r", rules)
	b.listen(model.Listener{Port: 80, Serve: model.HTTP})
	for _, host := range hosts {
		response := b.get("http://x/" + host)
		text, _ := io.ReadAll(response.Body)
		if response.StatusCode != http.StatusInternalServerError || !strings.Contains(string(text), "not allowed") {
			t.Errorf("%s: %s %s", host, response.Status, text)
		}
	}
	if n := asked.Load(); n > 0 {
		t.Errorf("%d requests have reached the node", n)
	}
}

// TestAddressesOfTheMachine: what is reachable for others is none of them.
func TestAddressesOfTheMachine(t *testing.T) {
	for addr, is := range map[string]bool{
		"127.0.0.1": true, "127.8.8.8": true, "::1": true, "169.254.169.254": true, "fe80::1": true, "0.0.0.0": true,
		"::": true, "224.0.0.1": true,
		"255.255.255.255": true, "192.0.2.1": false, "2001:db8::1": false,
	} {
		if got := OfMachine(netip.MustParseAddr(addr)); got != is {
			t.Errorf("%s: %t", addr, got)
		}
	}
	own, err := net.InterfaceAddrs()
	if err != nil || len(own) == 0 {
		t.Fatalf("%v, %v", own, err)
	}
	for _, a := range own {
		if addr := netip.MustParsePrefix(a.String()).Addr(); !OfMachine(addr) {
			t.Errorf("%s is one of this machine", addr)
		}
	}
}

// received is a connection whose client has sent these bytes, and no more.
type received struct {
	net.Conn
	r *bytes.Reader
}

func (c *received) Read(p []byte) (int, error)     { return c.r.Read(p) }
func (*received) Write(p []byte) (int, error)      { return len(p), nil }
func (*received) Close() error                     { return nil }
func (*received) RemoteAddr() net.Addr             { return tcp("192.0.2.7:5000") }
func (*received) LocalAddr() net.Addr              { return tcp("192.0.2.1:443") }
func (*received) SetDeadline(time.Time) error      { return nil }
func (*received) SetReadDeadline(time.Time) error  { return nil }
func (*received) SetWriteDeadline(time.Time) error { return nil }

// greetingOf is the first flight of a client of TLS.
func greetingOf(f *testing.F, name string) []byte {
	near, far := net.Pipe()
	go func() { // ends when the pipe is closed
		_ = tls.Client(near,
			&tls.Config{ServerName: name, InsecureSkipVerify: true, NextProtos: []string{"h2"}}).Handshake()
	}()
	greeting := make([]byte, conns.LongestHello)
	n, err := far.Read(greeting)
	if err != nil {
		f.Fatal(err)
	}
	_ = near.Close()
	_ = far.Close()
	return greeting[:n]
}

// FuzzHello: the first bytes of a client of TLS are refused, or all of them are handed on.
func FuzzHello(f *testing.F) {
	whole := greetingOf(f, "a.example.com")
	f.Add(whole)
	f.Add(append(slices.Clone(whole), "more"...))
	f.Add(whole[:len(whole)/2])
	f.Add([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"))
	f.Add([]byte{22, 3, 1, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, data []byte) {
		_, conn, err := conns.Hello(&received{r: bytes.NewReader(data)})
		if err != nil {
			return
		}
		if all, err := io.ReadAll(conn); err != nil || !bytes.Equal(all, data) {
			t.Errorf("%d of %d bytes are handed on: %v", len(all), len(data), err)
		}
	})
}

// FuzzGreet: whatever a client sends first to a port of all kinds, the connection is closed or
// handed on, and its place is free in the end.
func FuzzGreet(f *testing.F) {
	whole := greetingOf(f, "a.example.com")
	f.Add(whole, false)
	f.Add(append([]byte("PROXY TCP4 198.51.100.7 192.0.2.1 5000 443\r\n"), whole...), true)
	f.Add([]byte("PROXY UNKNOWN\r\nGET / HTTP/1.1\r\n\r\n"), true)
	f.Add([]byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"), false)
	f.Fuzz(func(t *testing.T, data []byte, balancer bool) {
		config := Config{Certificate: func(types.NamespacedName) *tls.Certificate { return nil }}
		if balancer {
			config.Balancers = []netip.Prefix{netip.MustParsePrefix("192.0.2.7/32")}
		}
		p := New(config,
			endpoints.New(
				func(types.NamespacedName) (*corev1.Service, []*discoveryv1.EndpointSlice) { return nil, nil }))
		p.SetListeners([]model.Listener{
			{Port: 443, Serve: model.HTTPS, Hostname: "a.example.com", SelfSigned: true},
			{Port: 443, Serve: model.Passthrough, Hostname: "b.example.com"},
			{Port: 443, Serve: model.Terminate, Hostname: "c.example.com", SelfSigned: true},
		})
		queue := conns.NewQueue(tcp("192.0.2.1:443"))
		handed := make(chan struct{})
		go func() { // ends with the queue
			defer close(handed)
			for {
				conn, err := queue.Accept()
				if err != nil {
					return
				}
				_, _ = io.Copy(io.Discard, conn)
				_ = conn.Close()
			}
		}()
		p.ports[netip.AddrPortFrom(netip.Addr{}, 443)].greet(
			conns.Limited{Conn: p.open.Enter(&received{r: bytes.NewReader(data)}), Patience: writePatience}, queue)
		_ = queue.Close()
		<-handed
		if n := p.open.Count(); n != 0 {
			t.Errorf("%d connections are counted after their end", n)
		}
	})
}
