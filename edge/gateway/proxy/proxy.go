// Package proxy is the data plane: it listens on the ports of listeners and sends requests to the
// endpoints of Services by the routes of package model.
//
// Routes and listeners are replaced while it runs, without a pause: a request goes by the routes of
// its beginning. It opens a port when a listener needs it, and closes it when none does.
package proxy

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/barque/barque/edge/gateway/certs"
	"github.com/barque/barque/edge/gateway/endpoints"
	"github.com/barque/barque/edge/gateway/framing"
	"github.com/barque/barque/edge/gateway/model"
	"github.com/barque/barque/internal/connlimit"
)

// Limits of the resources that strangers may take.
const (
	// maxConnections and MaxOfSource bound the connections over all ports.
	maxConnections = 16384
	MaxOfSource    = 1024
	maxHeader      = 64 << 10
	headerTimeout  = 10 * time.Second
	idleTimeout    = 2 * time.Minute
	maxStreams     = 250
	// bodyGrace is how long the bytes of a body may be late, in total.
	bodyGrace = time.Minute
	// writePatience bounds how long a client may leave a part of a response in the connection.
	writePatience = time.Minute
	// retryListen is the pause between two attempts to open a port.
	retryListen = 5 * time.Second
)

// Config of a Proxy.
type Config struct {
	// TrustedHops are proxies whose X-Forwarded-For counts. Balancers are those that name their
	// clients by the PROXY protocol: their connections must begin with it.
	TrustedHops, Balancers []netip.Prefix
	// Exempt are further sources of which many clients come, such as a NAT gateway. The number of
	// connections of one source does not bound them, nor trusted hops and balancers.
	Exempt []netip.Prefix
	// Connections and OfSource bound the connections; 0 is the default.
	Connections, OfSource int
	// Forbidden reports whether an address is none that routes may send requests for authentication
	// to; nil is OfMachine.
	Forbidden func(netip.Addr) bool
	// Certificate returns the certificate of a Secret; nil if there is none that can be used.
	Certificate func(types.NamespacedName) *tls.Certificate
	// Authority returns the CAs in a ConfigMap; nil if there are none. An answer does not change:
	// other certificates are another answer.
	Authority func(types.NamespacedName) *certs.Authority
	// Users returns the users of a Secret with their hashed passwords.
	Users func(secret types.NamespacedName, perKey bool) map[string]string
	// Listen opens a port; nil is that of all addresses of the machine.
	Listen func(port uint16) (net.Listener, error)
	// ListenPacket opens the UDP port of HTTP/3; nil is no HTTP/3.
	ListenPacket func(port uint16) (net.PacketConn, error)
	// Dial reaches endpoints; nil is TCP.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Refused is called when a port cannot be opened, once for each series of attempts.
	Refused func(port uint16, err error)
	// AccessLog gets a line of JSON for each request; nil is none.
	AccessLog io.Writer
	// Drain is how long requests may take to end when Run is told to; 0 is 10 s.
	Drain  time.Duration
	Logger *slog.Logger
}

// Proxy serves routes.
type Proxy struct {
	config    Config
	endpoints *endpoints.Set
	out       *outgoing
	access    *slog.Logger
	metrics   *metrics
	mirrors   chan struct{} // places of copies under way
	open      *connlimit.Limiter

	mu     sync.Mutex
	ports  map[uint16]*port
	routes map[model.Origin]*compiled
	// packetsTaken are the UDP ports that belong to somebody else.
	packetsTaken map[uint16]bool
	wake         chan struct{}

	// selfSigned makes the stand-in for missing certificates once.
	selfSigned func() (*tls.Certificate, error)
}

// New returns a proxy that listens nowhere yet.
func New(config Config, pools *endpoints.Set) *Proxy {
	if config.Listen == nil {
		config.Listen = func(port uint16) (net.Listener, error) {
			return net.Listen("tcp", ":"+strconv.Itoa(int(port)))
		}
	}
	if config.Drain == 0 {
		config.Drain = 10 * time.Second
	}
	if config.Logger == nil {
		config.Logger = slog.New(slog.DiscardHandler)
	}
	if config.Refused == nil {
		config.Refused = func(uint16, error) {}
	}
	if config.Forbidden == nil {
		config.Forbidden = OfMachine
	}
	p := &Proxy{
		config: config, endpoints: pools, out: newOutgoing(&config), open: connlimit.New(connlimit.Limits{
			Total: cmp.Or(config.Connections, maxConnections), PerSource: cmp.Or(config.OfSource, MaxOfSource),
			Anonymous: true,
			Exempt:    slices.Concat(config.TrustedHops, config.Balancers, config.Exempt),
		}, config.Logger), metrics: newMetrics(), mirrors: make(chan struct{}, maxMirrors),
		ports: map[uint16]*port{}, routes: map[model.Origin]*compiled{}, wake: make(chan struct{}, 1),
	}
	p.selfSigned = sync.OnceValues(certs.SelfSigned)
	if config.AccessLog != nil {
		p.access = slog.New(slog.NewJSONHandler(config.AccessLog, nil))
	}
	return p
}

// port is one port of this machine, open or not.
type port struct {
	proxy     *Proxy
	number    uint16
	table     *table
	listeners atomic.Pointer[listeners]
	// https and terminated are the configurations of TLS. Each has the keys of its sessions, so
	// there is one for all connections.
	https, terminated *tls.Config
	server            *http.Server
	socket            net.Listener // nil while it is not open
	refused           bool
	done              *sync.WaitGroup // of the socket's goroutines
	packets           packets
}

// listeners are those of a port, by what they serve and their hostname.
type listeners struct {
	by map[host]*model.Listener
	// secure is set where connections begin with TLS, and streams where their server name decides
	// what they are.
	secure, streams bool
}

func newListeners(by map[host]*model.Listener) *listeners {
	l := &listeners{by: by}
	for h := range by {
		l.secure = l.secure || h.serve != model.HTTP
		l.streams = l.streams || h.serve == model.Passthrough || h.serve == model.Terminate
	}
	return l
}

// port returns the state of a port. The caller holds mu.
func (p *Proxy) port(number uint16) *port {
	if of := p.ports[number]; of != nil {
		return of
	}
	of := &port{proxy: p, number: number, table: newTable()}
	of.listeners.Store(newListeners(nil))
	of.https, of.terminated = of.tls(model.HTTPS), of.tls(model.Terminate)
	p.ports[number] = of
	return of
}

// SetListeners replaces all listeners.
func (p *Proxy) SetListeners(all []model.Listener) {
	p.mu.Lock()
	defer p.mu.Unlock()
	byPort := map[uint16]map[host]*model.Listener{}
	for i := range all {
		l := &all[i]
		if byPort[l.Port] == nil {
			byPort[l.Port] = map[host]*model.Listener{}
		}
		h := host{l.Serve, l.Hostname}
		if other := byPort[l.Port][h]; other != nil {
			l = merged(other, l)
		}
		byPort[l.Port][h] = l
		p.port(l.Port)
	}
	for number, of := range p.ports {
		isolated := map[host]bool{}
		for h, l := range byPort[number] {
			if l.Isolated {
				isolated[h] = true
			}
		}
		of.listeners.Store(newListeners(byPort[number]))
		of.table.isolate(isolated)
	}
	p.poke()
}

// merged is a listener for two of the same name.
func merged(a, b *model.Listener) *model.Listener {
	both := *a
	both.Isolated, both.SelfSigned = a.Isolated || b.Isolated, a.SelfSigned || b.SelfSigned
	both.Clients = model.Together(a.Clients, b.Clients)
	both.Certificates = slices.Clone(a.Certificates)
	for _, c := range b.Certificates {
		if !slices.Contains(both.Certificates, c) {
			both.Certificates = append(both.Certificates, c)
		}
	}
	return &both
}

// SetRoutes replaces some routes; nil removes one.
func (p *Proxy) SetRoutes(changes map[model.Origin]*model.Route) {
	p.mu.Lock()
	defer p.mu.Unlock()
	next := map[model.Origin]*compiled{}
	for origin, route := range changes {
		next[origin] = nil
		if route != nil {
			next[origin] = p.compile(route)
		}
	}
	for number := range p.touched(changes) {
		now, before := map[model.Origin]*compiled{}, map[model.Origin]*compiled{}
		for origin, c := range next {
			before[origin], now[origin] = p.on(number, p.routes[origin]), p.on(number, c)
		}
		p.port(number).table.set(now, before)
	}
	for origin, c := range next {
		if c == nil {
			delete(p.routes, origin)
		} else {
			p.routes[origin] = c
		}
	}
}

// touched are the ports of these routes, as they were and as they will be.
func (p *Proxy) touched(changes map[model.Origin]*model.Route) map[uint16]bool {
	all := map[uint16]bool{}
	for origin, route := range changes {
		if old := p.routes[origin]; old != nil {
			for _, place := range old.Places {
				all[place.Port] = true
			}
		}
		if route != nil {
			for _, place := range route.Places {
				all[place.Port] = true
			}
		}
	}
	return all
}

// on is a route with its hosts on a port; nil if it has none there.
func (p *Proxy) on(number uint16, c *compiled) *compiled {
	if c == nil {
		return nil
	}
	hosts := map[host]*model.Place{}
	for i := range c.Places {
		if place := &c.Places[i]; place.Port == number {
			for _, name := range place.Hosts {
				h := host{place.Serve, name}
				// A route of two Gateways: the one that wants a certificate of clients counts.
				if before := hosts[h]; before == nil || !before.Clients.Required() || place.Clients.Required() {
					hosts[h] = place
				}
			}
		}
	}
	if len(hosts) == 0 {
		return nil
	}
	here := *c
	here.port = hosts
	return &here
}

func (p *Proxy) poke() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// Run opens the ports that listeners need until ctx ends. Then it takes no more connections, and
// gives requests and streams their time to end.
func (p *Proxy) Run(ctx context.Context) error {
	retry := time.NewTicker(retryListen)
	defer retry.Stop()
	for {
		p.reconcile()
		select {
		case <-ctx.Done():
			p.stop()
			return nil
		case <-p.wake:
		case <-retry.C:
		}
	}
}

// reconcile opens and closes ports.
func (p *Proxy) reconcile() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, number := range slices.Sorted(maps.Keys(p.ports)) {
		of := p.ports[number]
		wanted := len(of.listeners.Load().by) > 0
		switch {
		case wanted && of.socket == nil:
			socket, err := p.config.Listen(number)
			if err != nil {
				if !of.refused {
					of.refused = true
					p.config.Refused(number, err)
				}
				continue
			}
			of.refused = false
			of.start(socket)
		case !wanted && of.socket != nil:
			closing := of.detach()
			go closing(p.config.Drain)
		}
		of.reconcilePackets()
	}
}

// stop closes all ports at once and waits for requests under way.
func (p *Proxy) stop() {
	p.mu.Lock()
	var all []func(time.Duration)
	for _, of := range p.ports {
		if of.socket != nil {
			all = append(all, of.detach())
		}
		if of.packets.server != nil {
			all = append(all, of.detachPackets())
		}
	}
	p.mu.Unlock()
	var wg sync.WaitGroup
	for _, closing := range all {
		wg.Go(func() { closing(p.config.Drain) })
	}
	wg.Wait()
	p.out.close()
}

// start serves a socket. It ends with the function that detach returns.
func (o *port) start(socket net.Listener) {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetHTTP2(true)
	protocols.SetUnencryptedHTTP2(true)
	logger := o.proxy.config.Logger
	o.server = &http.Server{
		Handler: o, Protocols: &protocols, MaxHeaderBytes: maxHeader, ReadHeaderTimeout: headerTimeout,
		IdleTimeout: idleTimeout,
		HTTP2:       &http.HTTP2Config{MaxConcurrentStreams: maxStreams},
		ConnState: func(c net.Conn, state http.ConnState) {
			if f, ok := c.(interface{ Upgrade() }); ok && state == http.StateHijacked {
				f.Upgrade()
			}
		},
		ConnContext: func(ctx context.Context, _ net.Conn) context.Context { return withVouched(ctx) },
		// Faults of clients are theirs, and would fill the log.
		ErrorLog: log.New(io.Discard, "", 0),
	}
	o.socket, o.done = socket, &sync.WaitGroup{}
	queue := newQueue(socket.Addr())
	o.done.Go(func() {
		if err := o.server.Serve(queue); err != nil && !errors.Is(err, http.ErrServerClosed) {
			logger.Error("a port of the gateway has ended", "port", o.number, "err", err)
		}
	})
	o.done.Go(func() { o.accept(socket, queue) })
}

// detach closes the socket. The returned function waits for requests and streams, and cuts what
// lasts longer.
func (o *port) detach() func(time.Duration) {
	socket, server, done := o.socket, o.server, o.done
	o.socket, o.server, o.done = nil, nil, nil
	_ = socket.Close()
	return func(drain time.Duration) {
		ctx, cancel := context.WithTimeout(context.Background(), drain)
		defer cancel()
		if err := server.Shutdown(ctx); err != nil {
			_ = server.Close()
		}
		o.proxy.out.wait(ctx, o.number)
		done.Wait()
	}
}

// accept takes connections until the socket is closed.
func (o *port) accept(socket net.Listener, queue *queue) {
	var wait time.Duration
	for {
		conn, err := socket.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // such as too many open files
			wait = min(max(2*wait, 5*time.Millisecond), time.Second)
			pause := time.NewTimer(wait)
			<-pause.C
			continue
		}
		wait = 0
		// Ends with the connection's greeting, which is limited in time, or with its stream.
		go o.greet(client{o.proxy.open.Enter(conn)}, queue)
	}
}

// greet reads the PROXY header and the first bytes of TLS, and hands the connection on.
func (o *port) greet(conn net.Conn, queue *queue) {
	if contains(o.proxy.config.Balancers, addrOf(conn.RemoteAddr()).Addr()) {
		client, err := named(conn)
		if err != nil {
			_ = conn.Close()
			return
		}
		conn = client
	}
	listeners := o.listeners.Load()
	if !listeners.secure {
		queue.put(framing.New(conn))
		return
	}
	if listeners.streams {
		name, peeked, err := hello(conn)
		if err != nil {
			_ = conn.Close()
			return
		}
		conn = peeked
		switch serve := serveOf(listeners.by, lower(name)); serve {
		case model.Passthrough:
			o.stream(conn, serve, name)
			return
		case model.Terminate:
			o.terminate(conn, name)
			return
		}
	}
	o.secure(conn, queue)
}

// secure hands on a connection of HTTPS. The handshake says whether it has frames or messages.
func (o *port) secure(conn net.Conn, queue *queue) {
	client := tls.Server(conn, o.https)
	ctx, cancel := context.WithTimeout(context.Background(), helloTimeout)
	defer cancel()
	// The server sees an error, too, and answers a client that speaks without TLS.
	if err := client.HandshakeContext(ctx); err == nil && client.ConnectionState().NegotiatedProtocol != "h2" {
		queue.put(framing.NewTLS(client))
		return
	}
	queue.put(client)
}

// serveOf returns how a server name is served, by the most specific listener. A name without a
// listener is refused by HTTPS.
func serveOf(listeners map[host]*model.Listener, name string) model.Serve {
	for h := range candidates(model.HTTPS, name) {
		for _, serve := range []model.Serve{model.Passthrough, model.Terminate, model.HTTPS} {
			if listeners[host{serve, h.name}] != nil {
				return serve
			}
		}
	}
	return model.HTTPS
}

// find returns the most specific listener of a name.
func (o *port) find(serve model.Serve, name string) *model.Listener {
	listeners := o.listeners.Load()
	for h := range candidates(serve, name) {
		if l := listeners.by[h]; l != nil {
			return l
		}
	}
	return nil
}

// tls makes a configuration. A session that is resumed shows no certificate, so it counts for the
// server name alone that it was made for, while that has a listener.
func (o *port) tls(serve model.Serve) *tls.Config {
	config := &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(info *tls.ClientHelloInfo) (*tls.Certificate, error) { return o.certificate(serve, info) },
	}
	config.WrapSession = func(state tls.ConnectionState, session *tls.SessionState) ([]byte, error) {
		session.Extra = append(session.Extra, []byte(lower(state.ServerName)))
		return config.EncryptTicket(state, session)
	}
	config.UnwrapSession = func(ticket []byte, state tls.ConnectionState) (*tls.SessionState, error) {
		session, err := config.DecryptTicket(ticket, state)
		name := lower(state.ServerName)
		if session == nil || err != nil || len(session.Extra) != 1 || string(session.Extra[0]) != name ||
			o.find(serve, name) == nil {
			return nil, err
		}
		return session, nil
	}
	if serve == model.HTTPS {
		config.NextProtos = []string{"h2", "http/1.1"}
		config.GetConfigForClient = func(info *tls.ClientHelloInfo) (*tls.Config, error) {
			return o.asking(config, lower(info.ServerName))
		}
	}
	return config
}

// certificate chooses the certificate for a client at each handshake, so a new one is used at once
// and no connection is cut.
func (o *port) certificate(serve model.Serve, info *tls.ClientHelloInfo) (*tls.Certificate, error) {
	l := o.find(serve, lower(info.ServerName))
	if l == nil {
		return nil, fmt.Errorf("no listener for the server name %q", info.ServerName)
	}
	var first *tls.Certificate
	for _, secret := range l.Certificates {
		c := o.proxy.config.Certificate(secret)
		if c == nil {
			continue
		}
		if info.SupportsCertificate(c) == nil {
			return c, nil
		}
		if first == nil {
			first = c
		}
	}
	if first == nil && l.SelfSigned {
		return o.proxy.selfSigned()
	}
	if first == nil {
		return nil, fmt.Errorf("no usable certificate for the server name %q", info.ServerName)
	}
	return first, nil
}
