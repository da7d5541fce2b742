package transport_test

import (
	"testing"

	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/internal/heapcost"
	"github.com/barque/barque/raftstore/transport"
)

// TestTheMemoryOfStrangers: a connection that does not authenticate costs little, and there are not
// more than the places for handshakes. A TLS message is read as a whole, and announces its length.
func TestTheMemoryOfStrangers(t *testing.T) {
	const clients, places = 400, 100
	for name, send := range map[string]string{
		"silent":                  "",
		"a part of a handshake":   "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
		"a part of the longest":   "\x16\x03\x01\x3f\xff\x01\x00\xff\xff\x03\x03",
		"another protocol's text": "GET / HTTP/1.1\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			server, friend := abused(t,
				func(c *transport.Config) { c.MaxHandshakes, c.MaxHandshakesFrom = places, places })
			cost := heapcost.Of(func() {
				strangers := heapcost.Dial(t, server.Addr(), clients, heapcost.Sends([]byte(send)))
				await.True(t, "the server makes room", func() bool { return strangers.Closed() >= clients-places })
			})
			if each := cost / places; each > heapcost.MostEach {
				t.Errorf("a place takes %d bytes", each)
			}
			conn, err := friend.Dial(t.Context(), server.Addr(), "one/1")
			if err != nil {
				t.Fatal(err)
			}
			conn.Close()
		})
	}
}
