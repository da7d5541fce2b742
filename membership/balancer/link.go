package balancer

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// link is one connection of a client that is forwarded.
type link struct {
	client net.Conn
	active atomic.Int64 // when something came from either side, in nanoseconds; kept when it is metered
}

func newLink(client net.Conn) *link {
	l := &link{client: client}
	l.touch()
	return l
}

func (l *link) touch() { l.active.Store(time.Now().UnixNano()) }

func (l *link) lastActive() time.Time { return time.Unix(0, l.active.Load()) }

// metered notes when something is read. It also keeps io.Copy from letting the kernel copy, which
// it would not notice.
type metered struct {
	io.Reader
	link *link
}

func (m metered) Read(p []byte) (int, error) {
	n, err := m.Reader.Read(p)
	m.link.touch()
	return n, err
}

// lingers is how long a client may go on after its server has ended the connection. A server closes
// that of a silent stranger. Such a client need not close it as well, and would hold it here for
// ever. The time is for the bytes that a client has yet to read: a close would discard them.
const lingers = 30 * time.Second

// pipe copies both ways and returns when both are done. The end of one direction becomes a
// half-close, for protocols that use it. An error ends both, and the server's end the client's
// within lingers.
func (l *link) pipe(server net.Conn, meter bool) {
	var wg sync.WaitGroup
	one := func(dst, src net.Conn) {
		var from io.Reader = src
		if meter {
			from = metered{src, l}
		}
		_, err := io.Copy(dst, from)
		if half, ok := dst.(interface{ CloseWrite() error }); err == nil && ok &&
			!errors.Is(half.CloseWrite(), net.ErrClosed) {
			if src == server {
				_ = l.client.SetReadDeadline(time.Now().Add(lingers)) // one that is closed shows in the next read
			}
			return
		}
		l.client.Close()
		server.Close()
	}
	wg.Go(func() { one(l.client, server) })
	wg.Go(func() { one(server, l.client) })
	wg.Wait()
	server.Close()
}
