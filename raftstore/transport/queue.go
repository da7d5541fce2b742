package transport

import (
	"context"
	"net"
	"sync"
)

// queue is a net.Listener that is fed with connections.
type queue struct {
	addr  addr
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

type addr string

func (addr) Network() string  { return "tcp" }
func (a addr) String() string { return string(a) }

func newQueue(advertise string) *queue {
	return &queue{addr: addr(advertise), conns: make(chan net.Conn), done: make(chan struct{})}
}

// offer hands the connection over. It reports false when it is not taken in time.
func (q *queue) offer(ctx context.Context, conn net.Conn) bool {
	select {
	case q.conns <- conn:
		return true
	case <-q.done:
	case <-ctx.Done():
	}
	return false
}

func (q *queue) Accept() (net.Conn, error) {
	select {
	case conn := <-q.conns:
		return conn, nil
	case <-q.done:
		return nil, net.ErrClosed
	}
}

func (q *queue) Close() error {
	q.once.Do(func() { close(q.done) })
	return nil
}

func (q *queue) Addr() net.Addr { return q.addr }
