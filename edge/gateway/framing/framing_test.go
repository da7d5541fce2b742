package framing

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"testing"
)

// refused are messages whose end readers may see at different places.
var refused = []string{
	"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na",
	"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	"POST / HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	"POST / HTTP/1.1\r\nHost: x\r\nX: y\r\n Content-Length: 1\r\n\r\na",
}

// TestRefused: nothing is read of such a message, and nothing behind it. proxy.TestSmuggling has
// the answers to clients.
func TestRefused(t *testing.T) {
	const good = "GET /first HTTP/1.1\r\nHost: x\r\n\r\n"
	for _, message := range refused {
		for _, size := range []int{1, 7, 1 << 20} {
			got := parsed(New(&pieces{r: bytes.NewReader([]byte(good + message + good)), size: size}))
			if len(got) != 1 {
				t.Errorf("%q in pieces of %d: %d requests are read, want the first one: %q", message, size, len(got),
					got)
			}
		}
	}
}

// pieces is a connection whose bytes come in pieces of a size.
type pieces struct {
	net.Conn
	r    io.Reader
	size int
}

func (p *pieces) Read(b []byte) (int, error) { return p.r.Read(b[:min(len(b), p.size)]) }

// parsed are the requests that net/http reads from a connection, until it finds a fault.
func parsed(c net.Conn) (all []string) {
	r := bufio.NewReader(c)
	for {
		req, err := http.ReadRequest(r)
		if err != nil {
			return all
		}
		body, err := io.ReadAll(req.Body)
		all = append(all,
			fmt.Sprintf("%s %s %d %v %q", req.Method, req.RequestURI, req.ContentLength, req.TransferEncoding, body))
		if err != nil {
			return all
		}
	}
}

// FuzzFraming: the result does not depend on how the bytes arrive, and what is accepted is read as
// it is without the check.
func FuzzFraming(f *testing.F) {
	for _, header := range refused {
		f.Add([]byte(header+"GET / HTTP/1.1\r\nHost: x\r\n\r\n"), 7)
	}
	f.Add([]byte("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"), 3)
	f.Add(
		[]byte(
			"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\nGET / HTTP/1.1\r\nHost: x\r\n\r\n"), 1)
	f.Fuzz(func(t *testing.T, data []byte, size int) {
		whole := parsed(New(&pieces{r: bytes.NewReader(data), size: 1 << 20}))
		cut := parsed(New(&pieces{r: bytes.NewReader(data), size: max(1, size%64)}))
		if !slices.Equal(whole, cut) {
			t.Errorf("at once %q, in pieces %q", whole, cut)
		}
		// Without the check there may be more, and those before are the same.
		if plain := parsed(&pieces{r: bytes.NewReader(data), size: 1 << 20}); len(whole) > len(plain) ||
			!slices.Equal(whole, plain[:len(whole)]) {
			t.Errorf("unchecked %q, checked %q", plain, whole)
		}
	})
}
