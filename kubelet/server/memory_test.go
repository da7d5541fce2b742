package server

import (
	"crypto/tls"
	"log/slog"
	"net"
	"testing"

	"github.com/barque/barque/internal/heapcost"
)

// TestTheMemoryOfStrangers: clients that go on slowly after a handshake cost little. The test of
// package httpserver has those before it.
func TestTheMemoryOfStrangers(t *testing.T) {
	const clients = 200
	cert, pool := servingTLS(t)
	for name, begin := range map[string]func(net.Conn) error{
		"HTTP/1": heapcost.Speaks("http/1.1", "GET /pods HTTP/1.1\r\nHost: x\r\nX-Long: ", false),
		"HTTP/2": heapcost.Speaks("h2", heapcost.HTTP2, true),
	} {
		t.Run(name, func(t *testing.T) {
			s, err := New(
				Config{NodeName: "n",
					TLS: &tls.Config{Certificates: []tls.Certificate{cert}, ClientCAs: pool,
						NextProtos: []string{"h2", "http/1.1"}},
					Pods: podList{}, Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- s.Serve(t.Context(), listener) }() // ends with the test's context
			t.Cleanup(func() {
				if err := <-ended; err != nil {
					t.Error(err)
				}
			})
			cost := heapcost.Of(func() { heapcost.Dial(t, listener.Addr().String(), clients, begin) })
			if each := cost / clients; each > 2*heapcost.MostEach { // with the client's end
				t.Errorf("a client takes %d bytes", each)
			}
		})
	}
}
