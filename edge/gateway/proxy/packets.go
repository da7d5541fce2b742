package proxy

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/barque/barque/edge/gateway/conns"
	"github.com/barque/barque/edge/gateway/http3"
	"github.com/barque/barque/edge/gateway/model"
)

// maxStreamsOfPackets bounds the requests of a connection of HTTP/3. Each may have a header that is
// not complete, which HTTP/2 allows for one request of a connection only.
const maxStreamsOfPackets = 100

// altSvcAge is how long clients may remember that there is HTTP/3.
const altSvcAge = 24 * time.Hour

// packets is the HTTP/3 of a port, which has the UDP port of the same number. Proxy.mu guards all
// but announced.
type packets struct {
	server  *http3.Server // nil while it is not open
	refused bool
	leaving bool // the socket before is not closed yet
	// announced is the field Alt-Svc of responses; nil while HTTP/3 is not open.
	announced atomic.Pointer[string]
}

// SetPacketsTaken replaces the set of UDP ports that belong to somebody else. They have no HTTP/3.
func (p *Proxy) SetPacketsTaken(ports map[uint16]bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.packetsTaken = ports
	p.poke()
}

// reconcilePackets opens and closes the UDP port. The caller holds Proxy.mu.
func (o *port) reconcilePackets() {
	p, of := o.proxy, &o.packets
	// The kernel does not tell for packets of UDP which address of a Gateway they were for.
	wanted := p.config.ListenPacket != nil && !o.at.Addr().IsValid() && !p.packetsTaken[o.number] &&
		o.serves(model.HTTPS)
	switch {
	case wanted && of.server == nil && !of.leaving:
		err := o.startPackets()
		if err != nil && !of.refused {
			p.config.Refused(o.number, fmt.Errorf("for HTTP/3, which --gateway-http3=false leaves out: %w", err))
		}
		of.refused = err != nil
	case !wanted && of.server != nil:
		closing := o.detachPackets()
		go closing(p.config.Drain)
	}
}

// serves reports whether the port has a listener of a kind.
func (o *port) serves(serve model.Serve) bool {
	for h := range o.listeners.Load().by {
		if h.serve == serve {
			return true
		}
	}
	return false
}

// errOtherProtocol ends handshakes for names whose streams are no HTTP.
var errOtherProtocol = errors.New("this server name has no HTTP/3")

func (o *port) startPackets() error {
	socket, err := o.proxy.config.ListenPacket(o.number)
	if err != nil {
		return err
	}
	secure := o.tls(model.HTTPS)
	asking := secure.GetConfigForClient
	secure.GetConfigForClient = func(info *tls.ClientHelloInfo) (*tls.Config, error) {
		if serve, _ := serveOf(o.listeners.Load().by, lower(info.ServerName)); serve != model.HTTPS {
			return nil, errOtherProtocol
		}
		return asking(info)
	}
	balancers := o.proxy.config.Balancers
	o.packets.server, err = http3.Serve(socket, http3.Config{
		TLS: secure, Handler: o, Connections: o.proxy.open, Context: withServer,
		// Connections of balancers begin with the PROXY protocol, which QUIC does not have.
		Refuse:    func(source netip.Addr) bool { return contains(balancers, source) },
		MaxHeader: maxHeader, Streams: maxStreamsOfPackets,
		Handshake: conns.HelloTimeout, First: headerTimeout, Idle: idleTimeout,
	})
	if err == nil {
		o.packets.announced.Store(new(fmt.Sprintf(`h3=":%d"; ma=%d`, o.number, altSvcAge/time.Second)))
	}
	return err
}

// withServer is the context of a connection. httputil.ReverseProxy breaks a response off only in a
// handler of a http.Server: otherwise one that the backend has not completed would look complete.
func withServer(ctx context.Context) context.Context {
	return context.WithValue(withVouched(ctx), http.ServerContextKey, &http.Server{})
}

// detachPackets ends HTTP/3 at the port. The returned function waits for requests, and cuts what
// lasts longer. The caller holds Proxy.mu.
func (o *port) detachPackets() func(time.Duration) {
	server := o.packets.server
	o.packets.server, o.packets.leaving = nil, true
	o.packets.announced.Store(nil)
	return func(drain time.Duration) {
		ctx, cancel := context.WithTimeout(context.Background(), drain)
		defer cancel()
		server.Close(ctx)
		o.proxy.mu.Lock()
		o.packets.leaving = false
		o.proxy.mu.Unlock()
		o.proxy.poke()
	}
}

// announce tells a client of HTTPS that there is HTTP/3: RFC 7838. A backend's field is about
// another server. Behind a proxy or a balancer nobody knows whether packets of clients arrive here.
func (x *exchange) announce(h http.Header) {
	p, r := x.action.proxy, x.in
	if !x.secure {
		return
	}
	h.Del("Alt-Svc")
	text := x.packets.announced.Load()
	if text != nil && r.ProtoMajor < 3 && len(p.config.Balancers) == 0 &&
		(len(p.config.TrustedHops) == 0 || !p.trusts(r)) {
		h.Set("Alt-Svc", *text)
	}
}

// settle finds out whether a request of HTTP/3 has a body: a header without a length does not say
// so. A request without one may be sent to another endpoint.
func settle(r *http.Request) {
	if r.ProtoMajor < 3 || r.ContentLength >= 0 {
		return
	}
	switch r.Method {
	case http.MethodPost, http.MethodPut, http.MethodPatch:
		return
	}
	first := make([]byte, 1)
	n, err := io.ReadFull(r.Body, first)
	if n == 0 && errors.Is(err, io.EOF) {
		r.Body, r.ContentLength = http.NoBody, 0
		return
	}
	r.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(first[:n]), r.Body), r.Body}
}
