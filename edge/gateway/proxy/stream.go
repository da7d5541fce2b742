package proxy

import (
	"context"
	"crypto/tls"
	"net"
	"net/netip"

	"github.com/barque/barque/edge/gateway/certs"
	"github.com/barque/barque/edge/gateway/conns"
	"github.com/barque/barque/edge/gateway/model"
)

// terminate ends a client's TLS, and joins the stream in it with the backend of the server name.
func (o *port) terminate(conn net.Conn, name string) {
	client := tls.Server(conn, o.terminated)
	ctx, cancel := context.WithTimeout(context.Background(), conns.HelloTimeout)
	err := client.HandshakeContext(ctx)
	cancel()
	if err != nil {
		_ = conn.Close()
		return
	}
	o.stream(client, model.Terminate, name)
}

// stream joins a client with the backend of a server name.
func (o *port) stream(client net.Conn, serve model.Serve, name string) {
	defer client.Close()
	e := o.table.view.Load().streamOf(serve, lower(name))
	if e == nil {
		return
	}
	b := e.action.backends.choose()
	if b == nil || b.Invalid != "" {
		return
	}
	out := o.proxy.out
	var verify *tls.Config
	if serve == model.Terminate && b.Verify != nil {
		authorities, err := out.authorities(b.Verify)
		if err != nil {
			return
		}
		verify = certs.Verifying(b.Verify, authorities)
		show(verify, out.certificate(e.shown))
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*connectTimeout)
	defer cancel()
	var tried []netip.AddrPort
	for len(tried) < maxTries {
		addr, ok := b.pool.Pick(tried)
		if !ok {
			return
		}
		tried = append(tried, addr)
		backend, err := out.dial(ctx, "tcp", addr.String())
		if err != nil {
			continue
		}
		if verify != nil {
			secure := tls.Client(backend, verify)
			if err := secure.HandshakeContext(ctx); err != nil {
				_ = backend.Close()
				return
			}
			backend = secure
		}
		leave := out.enter(o.at, client)
		conns.Join(client, backend)
		_ = backend.Close()
		leave()
		return
	}
}

// enter counts a stream of a port until the returned function is called.
func (o *outgoing) enter(port netip.AddrPort, c net.Conn) func() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.streams[port] == nil {
		o.streams[port] = map[net.Conn]bool{}
	}
	o.streams[port][c] = true
	return func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.streams[port], c)
		close(o.ended)
		o.ended = make(chan struct{})
	}
}

// wait waits for the streams of a port until ctx ends, and cuts the rest.
func (o *outgoing) wait(ctx context.Context, port netip.AddrPort) {
	for {
		o.mu.Lock()
		left, ended := len(o.streams[port]), o.ended
		if ctx.Err() != nil {
			for c := range o.streams[port] {
				_ = c.Close()
			}
			left = 0
		}
		o.mu.Unlock()
		if left == 0 {
			return
		}
		select {
		case <-ended:
		case <-ctx.Done():
		}
	}
}
