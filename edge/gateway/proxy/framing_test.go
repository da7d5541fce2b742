package proxy

import (
	"bufio"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"github.com/barque/barque/edge/gateway/conns"
	"github.com/barque/barque/edge/gateway/model"
)

// statuses writes bytes to a connection and returns the statuses of all answers. It leaves the
// connection open until there are as many as it wants: a server takes its end for a client that has
// left.
func statuses(t *testing.T, c net.Conn, want int, bytes ...string) (all []int) {
	t.Helper()
	defer c.Close()
	for _, b := range bytes {
		if _, err := io.WriteString(c, b); err != nil {
			t.Fatal(err)
		}
	}
	r := bufio.NewReader(c)
	for {
		if len(all) == want {
			_ = conns.CloseWrite(c)
		}
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			return all
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil {
			t.Fatal(err)
		}
		all = append(all, resp.StatusCode)
	}
}

// smuggled are messages that two readers may take for two different ones, with the answer.
var smuggled = []struct {
	name, request string
	want          int
}{
	{"two lengths", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400},
	{"a length twice", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na", 400},
	{"a list of lengths", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1, 1\r\n\r\na", 400},
	{"a length that is no number", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: +1\r\n\r\na", 400},
	{"an empty length", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length:\r\n\r\n", 400},
	{"a long length",
		"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: " + strings.Repeat("0", 1<<10) + "1\r\n\r\na", 400},
	{"both lengths", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		400},
	{"both lengths, the other way round",
		"POST / HTTP/1.1\r\nHost: x\r\ntransfer-encoding: Chunked\r\ncontent-LENGTH: 5\r\n\r\n0\r\n\r\n", 400},
	{"both lengths, with spaces",
		"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: \t chunked \t\r\n\r\n0\r\n\r\n", 400},
	{"a length beside an unknown encoding",
		"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: identity\r\n\r\nabcde", 400},
	{"two encodings",
		"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n",
		400},
	{"an encoding twice",
		"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
	{"a list of encodings", "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 400},
	{"nearly an encoding", "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 400},
	{"an encoding behind a control character",
		"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n", 400},
	{"an encoding in quotes", "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: \"chunked\"\r\n\r\n0\r\n\r\n", 400},
	{"an unknown encoding", "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n0\r\n\r\n", 501},
	{"an encoding in HTTP/1.0", "POST / HTTP/1.0\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
	{"a space before the colon", "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n", 400},
	{"a folded line", "POST / HTTP/1.1\r\nHost: x\r\nX: a\r\n Content-Length: 5\r\n\r\n", 400},
	{"a folded encoding", "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding:\r\n\tchunked\r\n\r\n0\r\n\r\n", 400},
	{"a header that begins with a space", "POST / HTTP/1.1\r\n Host: x\r\n\r\n", 400},
	{"a length of another length", "POST / HTTP/1.1\r\nHost: x\r\nContent-Length\x00: 5\r\n\r\n", 400},
	{"no host", "GET / HTTP/1.1\r\n\r\n", 400},
	{"two hosts", "GET / HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", 400},
	{"a host with a path", "GET / HTTP/1.1\r\nHost: x/y\r\n\r\n", 400},
	{"dots", "GET /a/../b HTTP/1.1\r\nHost: x\r\n\r\n", 400},
	{"encoded dots", "GET /a/%2e%2e/b HTTP/1.1\r\nHost: x\r\n\r\n", 400},
	{"CONNECT", "CONNECT x:80 HTTP/1.1\r\nHost: x:80\r\n\r\n", 400},
}

// TestSmuggling: an ambiguous message is refused on plain and on secure connections, and nothing
// behind it is believed.
func TestSmuggling(t *testing.T) {
	b := newBench(t, Config{})
	b.certs["c"] = certificateFor(t, "x")
	seen := make(chan string, 256)
	b.serve("s", func(w http.ResponseWriter, r *http.Request) { seen <- r.URL.Path })
	b.listen(model.Listener{Port: 80},
		model.Listener{Port: 443, Serve: model.HTTPS,
			Certificates: []types.NamespacedName{{Namespace: "n", Name: "c"}}})
	b.route("r", []model.Rule{rule("/", model.Action{Backends: to("s")})}, model.Place{Port: 80, Hosts: []string{""}},
		model.Place{Port: 443, Serve: model.HTTPS, Hosts: []string{""}})
	dial := map[string]func() (net.Conn, error){
		"plain": func() (net.Conn, error) { return net.Dial("tcp", b.addr(80)) },
		"secure": func() (net.Conn, error) {
			return tls.Dial("tcp", b.addr(443),
				&tls.Config{ServerName: "x", InsecureSkipVerify: true, NextProtos: []string{"http/1.1"}})
		},
	}
	for kind, dial := range dial {
		conn := func(t *testing.T) net.Conn {
			c, err := dial()
			if err != nil {
				t.Fatal(err)
			}
			return c
		}
		for _, c := range smuggled {
			t.Run(kind+"/"+c.name, func(t *testing.T) {
				if got := statuses(t, conn(t), 1, c.request); len(got) == 0 || got[0] != c.want {
					t.Errorf("got %v, want %d", got, c.want)
				}
				if got := statuses(t, conn(t), 1, c.request+"GET /second HTTP/1.1\r\nHost: x\r\n\r\n"); len(got) != 1 {
					t.Errorf("with a request behind it: %v", got)
				}
				// Behind requests whose ends are known.
				before := "POST /first HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabcPOST /first HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0\r\nX: y\r\n\r\n"
				if got := statuses(t, conn(t), 3, before+c.request); len(got) != 3 || got[0] != 200 || got[1] != 200 ||
					got[2] != c.want {
					t.Errorf("behind others: %v", got)
				}
			})
		}
	}
	close(seen)
	for path := range seen {
		if path == "/second" {
			t.Error("a request behind a refused one went to the backend")
		}
	}
}

// TestMessagesOneAfterAnother: what is right is served, however its bytes arrive.
func TestMessagesOneAfterAnother(t *testing.T) {
	b := newBench(t, Config{})
	b.serve("s", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || string(body) != r.Header.Get("X-Body") {
			w.WriteHeader(http.StatusTeapot)
		}
	})
	b.listen(model.Listener{Port: 80})
	b.route("r", []model.Rule{rule("/", model.Action{Backends: to("s")})})
	long := strings.Repeat("x", 3*1<<10)
	all := strings.Join([]string{
		"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
		"GET /" + long + " HTTP/1.1\nHost: x\nLong: " + long + "\n\n",
		"POST / HTTP/1.1\r\nHost: x\r\nX-Body: GET / H\r\nContent-Length: 7\r\n\r\nGET / H",
		"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n",
		"\r\nPUT / HTTP/1.1\r\nHost: x\r\nX-Body: one two\r\nTransfer-Encoding: chunked\r\n\r\n4\r\none \r\n003;ext=\"" + long + "\"\r\ntwo\r\n0\r\nTransfer-Encoding: x\r\nTrailer: y\r\n\r\n",
		"PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	}, "")
	var single []string
	for i := range len(all) {
		single = append(single, all[i:i+1])
	}
	for name, parts := range map[string][]string{"at once": {all}, "byte by byte": single} {
		t.Run(name, func(t *testing.T) {
			c, err := net.Dial("tcp", b.addr(80))
			if err != nil {
				t.Fatal(err)
			}
			if got := statuses(t, c, 6, parts...); !slices.Equal(got, []int{200, 200, 200, 200, 200, 200}) {
				t.Error(got)
			}
		})
	}
}
