package linger

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/barque/barque/internal/await"
)

// much is more than a client's socket takes without being read, and less than a server's keeps.
const much = 1 << 20

// pair returns the two ends of a TCP connection whose client takes little in advance.
func pair(t *testing.T) (server, client *net.TCPConn) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	dialer := net.Dialer{Control: smallInput}
	there, err := dialer.DialContext(t.Context(), "tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { there.Close() })
	here, err := listener.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { here.Close() })
	if err := here.(*net.TCPConn).SetWriteBuffer(2 * much); err != nil {
		t.Fatal(err)
	}
	return here.(*net.TCPConn), there.(*net.TCPConn)
}

func smallInput(_, _ string, raw syscall.RawConn) error {
	var failed error
	err := raw.Control(
		func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 16<<10) })
	return errors.Join(err, failed)
}

// secured puts TLS over both ends.
func secured(t *testing.T, server, client net.Conn) (net.Conn, net.Conn) {
	t.Helper()
	certified := httptest.NewUnstartedServer(nil)
	certified.StartTLS()
	t.Cleanup(certified.Close)
	return tls.Server(server, &tls.Config{Certificates: certified.TLS.Certificates}),
		tls.Client(client, &tls.Config{InsecureSkipVerify: true})
}

// readSlowly sends a ping before each read, like clients of streams, and returns the number of
// received bytes.
func readSlowly(client net.Conn) (n int, err error) {
	part := make([]byte, 32<<10)
	for {
		_, _ = client.Write([]byte("ping")) // it fails when the connection was reset, and reads do then
		more, err := client.Read(part)
		n += more
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}

// TestCloseWithoutLinger shows the loss: a closed socket answers a ping with a reset. The client's
// read may meet an ordinary end then, because the write of a ping has taken the error.
func TestCloseWithoutLinger(t *testing.T) {
	server, client := pair(t)
	if _, err := server.Write(make([]byte, much)); err != nil {
		t.Fatal(err)
	}
	if err := server.Close(); err != nil {
		t.Fatal(err)
	}
	n, err := readSlowly(client)
	if n >= much {
		t.Errorf("the client has read all %d bytes", n)
	}
	t.Logf("the client has read %d bytes of %d, and then %v", n, much, err)
}

// TestClose: a client that reads slowly, and pings meanwhile, gets all.
func TestClose(t *testing.T) {
	for name, secure := range map[string]bool{"plain": false, "TLS": true} {
		t.Run(name, func(t *testing.T) {
			var server, client net.Conn = pair(t)
			if secure {
				server, client = secured(t, server, client)
			}
			conn := New(server, Patience{Progress: await.Hang, End: await.Hang})
			closed := make(chan error, 1)
			go func() { // ends when the client has closed
				_, err := conn.Write(make([]byte, much))
				closed <- errors.Join(err, conn.Close())
			}()
			if n, err := readSlowly(client); n != much || err != nil {
				t.Errorf("the client has read %d bytes of %d, and then %v", n, much, err)
			}
			select {
			case err := <-closed:
				t.Errorf("the server has not waited for the client's end: %v", err)
			default:
			}
			client.Close()
			if err := await.Value(t, "the server's close", closed); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestBounds: peers that take nothing, that never close, and that are gone do not hold a close.
func TestBounds(t *testing.T) {
	const brief = 50 * time.Millisecond // the bound under test
	tests := map[string]struct {
		patience Patience
		peer     func(client *net.TCPConn)
	}{
		"takes nothing": {Patience{Progress: brief, End: await.Hang}, func(*net.TCPConn) {}},
		"never closes": {Patience{Progress: await.Hang, End: brief},
			func(client *net.TCPConn) { _, _ = io.Copy(io.Discard, client) }},
		"is gone": {Patience{Progress: await.Hang, End: await.Hang},
			func(client *net.TCPConn) { _ = client.SetLinger(0); client.Close() }},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			server, client := pair(t)
			if _, err := server.Write(make([]byte, much)); err != nil {
				t.Fatal(err)
			}
			conn := New(server, tt.patience)
			go tt.peer(client) // ends with the connection
			closed := make(chan error, 1)
			go func() { closed <- conn.Close() }()
			_ = await.Value(t, "the close", closed) // a reset may show as an error
			if _, err := conn.Conn.Write([]byte("more")); !errors.Is(err, net.ErrClosed) {
				t.Errorf("the connection is not closed: %v", err)
			}
		})
	}
}

// TestGone: a reader sees the end of the peer.
func TestGone(t *testing.T) {
	server, client := pair(t)
	conn := New(server, Default)
	go func() { _, _ = io.Copy(io.Discard, conn) }() // ends with the client
	select {
	case <-conn.Gone():
		t.Fatal("gone while the client is there")
	default:
	}
	client.Close()
	await.Value(t, "the end of the client", conn.Gone())
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
}

// TestHijack: bytes that the HTTP server has read ahead come first.
func TestHijack(t *testing.T) {
	said := make(chan string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		wrapped := NewWriter(w)
		conn, buffers, err := wrapped.Hijack()
		if err != nil {
			said <- err.Error()
			return
		}
		defer conn.Close()
		word := make([]byte, len("hello"))
		if _, err := io.ReadFull(buffers, word); err != nil || wrapped.Conn() != conn {
			said <- fmt.Sprint(err)
			return
		}
		said <- string(word)
	}))
	defer server.Close()
	client, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := io.WriteString(client, "GET / HTTP/1.1\r\nHost: h\r\n\r\nhel"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(client, "lo"); err != nil {
		t.Fatal(err)
	}
	if got := await.Value(t, "the client's word", said); got != "hello" {
		t.Errorf("the handler has read %q", got)
	}
}
