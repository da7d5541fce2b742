package dns

import (
	"context"
	"net"
	"testing"

	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/internal/heapcost"
)

// TestTheMemoryOfConnections: a client may announce the longest message, of 64 KiB, and send a part
// of it.
func TestTheMemoryOfConnections(t *testing.T) {
	const clients = maxConnectionsOfOne
	for name, c := range map[string]struct {
		send string
		most int64
	}{
		"silent": {"", heapcost.MostEach}, "a part of a message": {"\xff\xffxxxx", 2 * heapcost.MostEach},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			packets, listener := samePort(t)
			bounded := &counting{Listener: listener, accepted: make(chan struct{}, clients)}
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- b.serveOn(ctx, packets, bounded, func() {}) }()
			cost := heapcost.Of(func() {
				heapcost.Dial(t, listener.Addr().String(), clients, heapcost.Sends([]byte(c.send)))
				for range clients {
					await.Value(t, "a connection", bounded.accepted)
				}
			})
			if each := cost / clients; each > c.most {
				t.Errorf("a connection takes %d bytes", each)
			}
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

// counting tells of each connection that it has accepted.
type counting struct {
	net.Listener
	accepted chan struct{}
}

func (c *counting) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err == nil {
		c.accepted <- struct{}{}
	}
	return conn, err
}
