package transport_test

import (
	"crypto/tls"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/raftstore/storetest"
	"github.com/barque/barque/raftstore/transport"
	"github.com/barque/barque/raftstore/transport/memnet"
)

// TestAHandshakeHasItsTime: a client that is silent, or sends a byte now and then, is closed when
// the time for a handshake is over, and one that says nonsense at once. Meanwhile and afterwards a
// server of the cluster gets in.
func TestAHandshakeHasItsTime(t *testing.T) {
	const limit = 5 * time.Second
	handshake := append([]byte{0x16, 0x03, 0x01, 0x40, 0x00, 0x01}, make([]byte, 5000)...)
	for name, c := range map[string]struct {
		talks func(conn net.Conn)
		after time.Duration
	}{
		"silence":  {func(net.Conn) {}, limit},
		"nonsense": {func(conn net.Conn) { io.WriteString(conn, "GET / HTTP/1.1\r\n\r\n") }, 0},
		"drops": {func(conn net.Conn) {
			for _, b := range handshake {
				if _, err := conn.Write([]byte{b}); err != nil {
					return
				}
				time.Sleep(10 * time.Millisecond)
			}
			t.Error("all of it was taken")
		}, limit},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				network, ca := new(memnet.Network), storetest.NewAuthority(t)
				cert := ca.Issue(transport.ServerOrganization)
				server, err := transport.NewMux(transport.Config{
					Listener: network.Host("10.0.0.1:1").Listener("tcp"), HandshakeTimeout: limit,
					Certificate: func() *tls.Certificate { return cert }, Roots: ca.Pool,
				})
				if err != nil {
					t.Fatal(err)
				}
				defer server.Close()
				echo(server, "one/1")
				dial := func(from string) net.Conn {
					t.Helper()
					conn, err := network.Host(from).Dial(t.Context(), "10.0.0.1:1", "tcp")
					if err != nil {
						t.Fatal(err)
					}
					return conn
				}
				friend := func() {
					t.Helper()
					conn := tls.Client(dial("10.0.0.2:1"), &tls.Config{
						InsecureSkipVerify: true, Certificates: []tls.Certificate{*cert}, NextProtos: []string{"one/1"},
					})
					defer conn.Close()
					if heard, err := io.ReadAll(conn); string(heard) != "one/1" {
						t.Errorf("a server of the cluster is kept out: %q, %v", heard, err)
					}
				}
				began := time.Now()
				var clients sync.WaitGroup
				for range 12 {
					conn := dial("10.0.0.3:1")
					defer conn.Close()
					clients.Go(func() { c.talks(conn) })
					clients.Go(func() {
						io.Copy(io.Discard, conn)
						if after := time.Since(began); after != c.after {
							t.Errorf("it is closed after %v, want %v", after, c.after)
						}
					})
				}
				friend()
				clients.Wait()
				friend()
			})
		})
	}
}
