package node

import (
	"context"
	"net"
	"sync"
)

// acceptSeeds serves servers in quarantine, one at a time, until the listener is closed.
func (n *Node) acceptSeeds(l net.Listener) {
	var serving sync.WaitGroup
	defer serving.Wait()
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		serving.Go(func() { // ends with the connection, or with the node
			stop := context.AfterFunc(n.ctx, func() { conn.Close() })
			defer stop()
			defer conn.Close()
			if err := n.guard.Send(n.peers.Accept(conn)); err != nil {
				n.cfg.Logger.Warn("could not send the state to a server in quarantine", "to", conn.RemoteAddr(), "err", err)
			}
		})
	}
}
