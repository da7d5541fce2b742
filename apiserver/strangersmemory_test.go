package apiserver

import (
	"net"
	"strings"
	"testing"

	"github.com/barque/barque/internal/heapcost"
)

// TestTheMemoryOfStrangers: clients that have made a handshake with the API's port and go on slowly
// cost little. Those before it are in the test of package httpserver.
func TestTheMemoryOfStrangers(t *testing.T) {
	const clients = 400
	c := startCluster(t)
	for name, begin := range map[string]func(net.Conn) error{
		"HTTP/1": heapcost.Speaks("http/1.1", "GET /version HTTP/1.1\r\nHost: x\r\nX-Long: ", false),
		"HTTP/2": heapcost.Speaks("h2", heapcost.HTTP2, true),
	} {
		t.Run(name, func(t *testing.T) {
			cost := heapcost.Of(func() { heapcost.Dial(t, strings.TrimPrefix(c.host, "https://"), clients, begin) })
			// with the client's end, and the server's work beside it
			if each := cost / clients; each > 2*heapcost.MostEach {
				t.Errorf("a client takes %d bytes", each)
			}
		})
	}
}
