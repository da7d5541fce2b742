package integrity

import (
	"context"
	"net"
	"sync"
)

// Serve gives this server's state to servers in quarantine that connect, one at a time. accept
// returns the connection with what comes before the first byte. It ends with ctx, and closes the
// listener.
func (g *Guard) Serve(ctx context.Context, l net.Listener, accept func(net.Conn) net.Conn) {
	defer l.Close()
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	var serving sync.WaitGroup
	defer serving.Wait()
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		serving.Go(func() { // ends with the connection, or with ctx
			defer conn.Close()
			stop := context.AfterFunc(ctx, func() { conn.Close() })
			defer stop()
			if err := g.Send(accept(conn)); err != nil {
				g.opts.Logger.Warn("could not send the state to a server in quarantine", "to", conn.RemoteAddr(), "err", err)
			}
		})
	}
}
