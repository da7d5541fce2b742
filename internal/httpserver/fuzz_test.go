package httpserver

import (
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/internal/await"
)

// FuzzFirstBytes: a client may send any bytes first, in clear and below TLS, to a port of HTTP/1
// and HTTP/2. The server answers or closes. The connection is not counted afterwards, and the next
// client is served.
func FuzzFirstBytes(f *testing.F) {
	for _, seed := range []string{
		"", "\x00", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", "GET / HTTP/9.9\r\n\r\n",
		"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nx",
		"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nfffffffff\r\n",
		"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
		"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\n\r\n",
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
		"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\xff\xff\xff\x01\x05\x00\x00\x00\x01",
		"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x00", "\x16\x03\x01\xff\xff" + strings.Repeat("\x01", 100),
		"\x80\x2e\x01\x03\x01",
	} {
		f.Add([]byte(seed), false)
		f.Add([]byte(seed), true)
	}
	ports := map[bool]*Server{}
	addresses := map[bool]string{}
	for _, secure := range []bool{false, true} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			f.Fatal(err)
		}
		c := Config{Listener: listener, Logger: slog.New(slog.DiscardHandler),
			Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, io.LimitReader(r.Body, 1))
			})}
		if secure {
			c.TLS = &tls.Config{Certificates: []tls.Certificate{certificate(f)}, NextProtos: []string{"h2", "http/1.1"}}
		}
		s := New(c)
		ended := make(chan error, 1)
		go func() { ended <- s.Serve() }()
		f.Cleanup(func() {
			_ = s.Close()
			<-ended
		})
		ports[secure], addresses[secure] = s, listener.Addr().String()
	}
	f.Fuzz(func(t *testing.T, first []byte, secure bool) {
		for _, below := range []bool{false, true} { // TLS of the client
			if below && !secure {
				continue
			}
			conn, err := net.Dial("tcp", addresses[secure])
			if err != nil {
				t.Fatal(err)
			}
			if below {
				conn = tls.Client(conn,
					&tls.Config{InsecureSkipVerify: true,
						NextProtos: []string{[]string{"http/1.1", "h2"}[len(first)%2]}})
			}
			_, _ = conn.Write(first) // the server may have closed
			if half, ok := conn.(interface{ CloseWrite() error }); ok {
				_ = half.CloseWrite()
			}
			_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
			if _, err := io.Copy(io.Discard, conn); err != nil {
				if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() {
					t.Errorf("%q: the connection is open after the client's end", first)
				}
			}
			_ = conn.Close()
		}
		scheme := map[bool]string{false: "http", true: "https"}[secure]
		client := &http.Client{
			Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
		answer, err := client.Get(scheme + "://" + addresses[secure] + "/")
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		await.True(t, "nobody is counted", func() bool { return ports[secure].Strangers() == 0 })
	})
}
