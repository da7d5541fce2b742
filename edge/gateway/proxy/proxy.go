// Package proxy is the data plane: it listens on the ports of listeners and sends requests to the
// endpoints of Services by the routes of package model.
//
// One socket for a port serves the nodes' addresses and those of Gateways. The kernel leads packets
// to the latter here (edge/redirect), and knows the address that a client has asked for. Each
// address has listeners and routes of its own.
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
	"github.com/barque/barque/edge/gateway/conns"
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
	// Asked returns the address that the client of a connection has asked for; nil asks the kernel.
	Asked func(net.Conn) (netip.Addr, error)
	// Open is called with the addresses of Gateways, with their ports, at which the proxy serves,
	// when they have changed. Nil is nobody.
	Open func([]netip.AddrPort)
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

	mu sync.Mutex
	// ports are by address and number. The nodes' own addresses are the zero address.
	ports   map[netip.AddrPort]*port
	sockets map[uint16]*socket
	refused map[uint16]bool  // of the sockets that cannot be opened
	served  []netip.AddrPort // that Open was called with
	routes  map[model.Origin]*compiled
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
	if config.Asked == nil {
		config.Asked = conns.Asked
	}
	if config.Open == nil {
		config.Open = func([]netip.AddrPort) {}
	}
	p := &Proxy{
		config: config, endpoints: pools, out: newOutgoing(&config), open: connlimit.New(connlimit.Limits{
			Total: cmp.Or(config.Connections, maxConnections), PerSource: cmp.Or(config.OfSource, MaxOfSource),
			Anonymous: true,
			Exempt:    slices.Concat(config.TrustedHops, config.Balancers, config.Exempt),
		}, config.Logger), metrics: newMetrics(), mirrors: make(chan struct{}, maxMirrors),
		ports: map[netip.AddrPort]*port{}, sockets: map[uint16]*socket{}, refused: map[uint16]bool{},
		routes: map[model.Origin]*compiled{},
		wake:   make(chan struct{}, 1),
	}
	p.selfSigned = sync.OnceValues(certs.SelfSigned)
	if config.AccessLog != nil {
		p.access = slog.New(slog.NewJSONHandler(config.AccessLog, nil))
	}
	return p
}

// port is one port of an address, or of all of this machine's own ones, open or not.
type port struct {
	proxy     *Proxy
	at        netip.AddrPort
	number    uint16
	table     *table
	listeners atomic.Pointer[listeners]
	// https and terminated are the configurations of TLS. Each has the keys of its sessions, so
	// there is one for all connections.
	https, terminated *tls.Config
	server            *http.Server    // nil while it is not open
	queue             *conns.Queue    // of its connections
	done              *sync.WaitGroup // of its goroutines
	draining          bool
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
func (p *Proxy) port(at netip.AddrPort) *port {
	if of := p.ports[at]; of != nil {
		return of
	}
	of := &port{proxy: p, at: at, number: at.Port(), table: newTable()}
	of.listeners.Store(newListeners(nil))
	of.https, of.terminated = of.tls(model.HTTPS), of.tls(model.Terminate)
	p.ports[at] = of
	return of
}

// at are the ports that a listener or a place has: one for each address.
func at(addresses []netip.Addr, number uint16) (all []netip.AddrPort) {
	if len(addresses) == 0 {
		return []netip.AddrPort{netip.AddrPortFrom(netip.Addr{}, number)}
	}
	for _, a := range addresses {
		all = append(all, netip.AddrPortFrom(a, number))
	}
	return all
}

// SetListeners replaces all listeners.
func (p *Proxy) SetListeners(all []model.Listener) {
	p.mu.Lock()
	defer p.mu.Unlock()
	byPort := map[netip.AddrPort]map[host]*model.Listener{}
	for i := range all {
		for _, at := range at(all[i].Addresses, all[i].Port) {
			l := &all[i]
			if byPort[at] == nil {
				byPort[at] = map[host]*model.Listener{}
			}
			h := host{l.Serve, l.Hostname}
			if other := byPort[at][h]; other != nil {
				l = merged(other, l)
			}
			byPort[at][h] = l
			p.port(at)
		}
	}
	for at, of := range p.ports {
		isolated := map[host]bool{}
		for h, l := range byPort[at] {
			if l.Isolated {
				isolated[h] = true
			}
		}
		of.listeners.Store(newListeners(byPort[at]))
		of.table.isolate(isolated)
	}
	p.poke()
}

// merged is a listener for two of the same name. The certificates of the older one come first: a
// later object of another namespace must not show its own in their place.
func merged(a, b *model.Listener) *model.Listener {
	if b.Created.Before(a.Created) {
		a, b = b, a
	}
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
	for at := range p.touched(changes) {
		now, before := map[model.Origin]*compiled{}, map[model.Origin]*compiled{}
		for origin, c := range next {
			before[origin], now[origin] = p.on(at, p.routes[origin]), p.on(at, c)
		}
		p.port(at).table.set(now, before)
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
func (p *Proxy) touched(changes map[model.Origin]*model.Route) map[netip.AddrPort]bool {
	all := map[netip.AddrPort]bool{}
	add := func(places []model.Place) {
		for _, place := range places {
			for _, at := range at(place.Addresses, place.Port) {
				all[at] = true
			}
		}
	}
	for origin, route := range changes {
		if old := p.routes[origin]; old != nil {
			add(old.Places)
		}
		if route != nil {
			add(route.Places)
		}
	}
	return all
}

// on is a route with its hosts on a port; nil if it has none there.
func (p *Proxy) on(port netip.AddrPort, c *compiled) *compiled {
	if c == nil {
		return nil
	}
	hosts := map[host]*model.Place{}
	for i := range c.Places {
		if place := &c.Places[i]; slices.Contains(at(place.Addresses, place.Port), port) {
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
	wanted := map[uint16]bool{}
	for _, of := range p.ports {
		wanted[of.number] = wanted[of.number] || of.wanted()
	}
	for _, number := range slices.Sorted(maps.Keys(wanted)) {
		if wanted[number] {
			p.listen(number)
		}
	}
	for at, of := range p.ports {
		switch open := p.sockets[of.number] != nil; {
		case of.wanted() && open && of.server == nil:
			of.start()
		case !of.wanted() && of.server != nil:
			closing := of.detach()
			go p.drain(of, closing) // ends after the time for draining
		case of.over():
			delete(p.ports, at)
		}
		of.reconcilePackets()
	}
	p.dispatch()
	for number, s := range p.sockets {
		if !wanted[number] {
			s.close()
			delete(p.sockets, number)
		}
	}
	p.tell()
}

// wanted reports whether a port has listeners.
func (o *port) wanted() bool { return len(o.listeners.Load().by) > 0 }

// over reports whether nobody needs a port of a Gateway's address any more. Until then its
// connections are closed: they are not for the nodes' own addresses.
func (o *port) over() bool {
	return o.at.Addr().IsValid() && !o.wanted() && o.server == nil && !o.draining && len(o.table.members) == 0
}

// drain ends the connections of a port.
func (p *Proxy) drain(of *port, closing func(time.Duration)) {
	closing(p.config.Drain)
	p.mu.Lock()
	of.draining = false
	p.mu.Unlock()
	p.poke()
}

// stop closes all ports at once and waits for requests under way.
func (p *Proxy) stop() {
	p.mu.Lock()
	var all []func(time.Duration)
	for _, of := range p.ports {
		if of.server != nil {
			all = append(all, of.detach())
		}
		if of.packets.server != nil {
			all = append(all, of.detachPackets())
		}
	}
	for _, s := range p.sockets {
		s.close()
		all = append(all, func(time.Duration) { s.done.Wait() })
	}
	clear(p.sockets)
	p.tell()
	p.mu.Unlock()
	var wg sync.WaitGroup
	for _, closing := range all {
		wg.Go(func() { closing(p.config.Drain) })
	}
	wg.Wait()
	p.out.close()
}

// start serves the connections of its queue. It ends with the function that detach returns.
func (o *port) start() {
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
	o.done, o.queue = &sync.WaitGroup{}, conns.NewQueue(net.TCPAddrFromAddrPort(o.at))
	server, queue := o.server, o.queue
	o.done.Go(func() {
		if err := server.Serve(queue); err != nil && !errors.Is(err, http.ErrServerClosed) {
			logger.Error("a port of the gateway has ended", "port", o.number, "err", err)
		}
	})
}

// detach takes no more connections. The returned function waits for requests and streams, and cuts
// what lasts longer.
func (o *port) detach() func(time.Duration) {
	server, queue, done := o.server, o.queue, o.done
	o.server, o.queue, o.done, o.draining = nil, nil, nil, true
	_ = queue.Close()
	return func(drain time.Duration) {
		ctx, cancel := context.WithTimeout(context.Background(), drain)
		defer cancel()
		if err := server.Shutdown(ctx); err != nil {
			_ = server.Close()
		}
		o.proxy.out.wait(ctx, o.at)
		done.Wait()
	}
}

// greet reads the PROXY header and the first bytes of TLS, and hands the connection on.
func (o *port) greet(conn net.Conn, queue *conns.Queue) {
	if contains(o.proxy.config.Balancers, conns.AddrOf(conn.RemoteAddr()).Addr()) {
		client, err := conns.Named(conn)
		if err != nil {
			_ = conn.Close()
			return
		}
		conn = client
	}
	listeners := o.listeners.Load()
	if !listeners.secure {
		queue.Put(framing.New(conn))
		return
	}
	if listeners.streams {
		name, peeked, err := conns.Hello(conn)
		if err != nil {
			_ = conn.Close()
			return
		}
		conn = peeked
		serve, known := serveOf(listeners.by, lower(name))
		if !known {
			_ = conn.Close() // the gateway has no part in the TLS of that name
			return
		}
		switch serve {
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
func (o *port) secure(conn net.Conn, queue *conns.Queue) {
	client := tls.Server(conn, o.https)
	ctx, cancel := context.WithTimeout(context.Background(), conns.HelloTimeout)
	defer cancel()
	// The server sees an error, too, and answers a client that speaks without TLS.
	if err := client.HandshakeContext(ctx); err == nil && client.ConnectionState().NegotiatedProtocol != "h2" {
		queue.Put(framing.NewTLS(client))
		return
	}
	queue.Put(client)
}

// serveOf returns how a server name is served, by the most specific listener; false without one.
// Of several kinds of one hostname the oldest counts: a later object of another namespace must not
// take the connections over.
func serveOf(listeners map[host]*model.Listener, name string) (model.Serve, bool) {
	for h := range candidates(model.HTTPS, name) {
		var oldest *model.Listener
		for _, serve := range []model.Serve{model.Passthrough, model.Terminate, model.HTTPS} {
			if l := listeners[host{serve, h.name}]; l != nil && (oldest == nil || l.Created.Before(oldest.Created)) {
				oldest = l
			}
		}
		if oldest != nil {
			return oldest.Serve, true
		}
	}
	return model.HTTPS, false
}

// find returns the most specific listener of a name.
func (o *port) find(serve model.Serve, name string) *model.Listener {
	return o.listeners.Load().find(serve, name)
}

func (l *listeners) find(serve model.Serve, name string) *model.Listener {
	for h := range candidates(serve, name) {
		if found := l.by[h]; found != nil {
			return found
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
