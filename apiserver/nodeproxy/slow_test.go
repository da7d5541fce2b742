package nodeproxy

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/remotecommand"
	kubeletcommand "k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"

	"github.com/barque/barque/internal/await"
)

// much is more than a socket with little room takes without being read, and less than one with
// much room keeps.
const much = 1 << 20

// roomy is a listener whose connections keep much output that the peer does not read.
type roomy struct{ net.Listener }

func (l roomy) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return conn, conn.(*net.TCPConn).SetWriteBuffer(4 * much)
}

// narrow opens connections that take little in advance.
var narrow = net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error {
	var failed error
	err := raw.Control(
		func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 16<<10) })
	return errors.Join(err, failed)
}}

// writer is a node whose commands write much, and end.
type writer struct {
	runtimeOfNode
	ended chan struct{}
}

func (n writer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	options, err := kubeletcommand.NewOptions(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	kubeletcommand.ServeExec(w, r, n, "pod", "", "main", nil, options, time.Minute, time.Minute,
		kubeletcommand.SupportedStreamingProtocols)
	close(n.ended) // the kubelet has closed its side
}

func (n writer) ExecInContainer(
	_ context.Context, _, _, _ string, _ []string, _ io.Reader, out, _ io.WriteCloser, _ bool,
	_ <-chan kubeletcommand.TerminalSize, _ time.Duration,
) error {
	_, err := io.Copy(out, io.LimitReader(zeros{}, much))
	out.Close()
	return err
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// result is a client's result of a command.
type result struct {
	bytes  int
	status metav1.Status
}

// slowSPDY runs a command and begins to read when go on is closed, with many pings.
func slowSPDY(t *testing.T, address string, goOn <-chan struct{}) result {
	conn, err := narrow.DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+address, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set(httpstream.HeaderConnection, httpstream.HeaderUpgrade)
	request.Header.Set(httpstream.HeaderUpgrade, spdy.HeaderSpdy31)
	request.Header.Set(httpstream.HeaderProtocolVersion, remotecommand.StreamProtocolV4Name)
	if err := request.Write(conn); err != nil {
		t.Fatal(err)
	}
	if err := untilUpgraded(conn); err != nil {
		t.Fatal(err)
	}
	const often = time.Millisecond // the interval of pings
	streams, err := spdy.NewClientConnectionWithPings(conn, often)
	if err != nil {
		t.Fatal(err)
	}
	defer streams.Close()
	create := func(kind string) httpstream.Stream {
		header := http.Header{}
		header.Set(corev1.StreamType, kind)
		stream, err := streams.CreateStream(header)
		if err != nil {
			t.Fatal(err)
		}
		return stream
	}
	status, stdout := create(corev1.StreamTypeError), create(corev1.StreamTypeStdout)
	await.Value(t, "the end of the command", goOn)
	// A client library pings in turns, each after the answer to the one before. Others ping anyway.
	var r result
	part := make([]byte, 8<<10)
	for err == nil {
		_, _ = conn.Write(ping)
		var n int
		n, err = stdout.Read(part)
		r.bytes += n
	}
	said, _ := io.ReadAll(status)
	_ = json.Unmarshal(said, &r.status)
	return r
}

// ping is a frame of SPDY.
var ping = []byte{0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, 1}

// untilUpgraded reads the head of a response, and not a byte more.
func untilUpgraded(conn net.Conn) error {
	var head strings.Builder
	one := make([]byte, 1)
	for !strings.HasSuffix(head.String(), "\r\n\r\n") {
		if _, err := conn.Read(one); err != nil {
			return err
		}
		head.Write(one)
	}
	if !strings.HasPrefix(head.String(), "HTTP/1.1 101 ") {
		return errors.New(head.String())
	}
	return nil
}

// slowWebSocket does the same as slowSPDY.
func slowWebSocket(t *testing.T, address string, goOn <-chan struct{}) result {
	dialer := websocket.Dialer{Subprotocols: []string{remotecommand.StreamProtocolV5Name},
		NetDialContext: narrow.DialContext}
	conn, _, err := dialer.DialContext(t.Context(), "ws://"+address, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	await.Value(t, "the end of the command", goOn)
	var r result
	for {
		_ = conn.WriteControl(websocket.PingMessage, nil, time.Now().Add(time.Minute))
		_, message, err := conn.ReadMessage()
		if err != nil {
			return r
		}
		switch message[0] {
		case remotecommand.StreamStdOut:
			r.bytes += len(message) - 1
		case remotecommand.StreamErr:
			_ = json.Unmarshal(message[1:], &r.status)
		}
	}
}

// TestSlowReaders: a client that reads after the command has ended, and pings meanwhile, gets all
// output and then the status, wherever on the way the output waits.
func TestSlowReaders(t *testing.T) {
	for way, read := range map[string]func(*testing.T, string, <-chan struct{}) result{"SPDY": slowSPDY,
		"WebSocket": slowWebSocket} {
		for _, roomyServer := range []string{"kubelet", "API server"} {
			t.Run(way+", output waits at the "+roomyServer, func(t *testing.T) {
				node := writer{ended: make(chan struct{})}
				c := newCluster()
				proxy := newProxy(t, c, node)
				proxy.dial = func(ctx context.Context, network, address string) (net.Conn, error) {
					if roomyServer == "API server" {
						return c.dial(ctx, network, address)
					}
					return narrow.DialContext(ctx, network, c.routes[address])
				}
				storage := proxy.PodExec()
				server := httptest.NewUnstartedServer(
					connecting(storage, "pod", with(&corev1.PodExecOptions{Command: []string{"cat"}, Stdout: true})))
				if roomyServer == "API server" {
					server.Listener = roomy{server.Listener}
				}
				server.Start()
				defer server.Close()
				got := read(t, server.Listener.Addr().String(), node.ended)
				if got.bytes != much || got.status.Status != metav1.StatusSuccess {
					t.Errorf("the client has read %d bytes of %d, and the status %+v", got.bytes, much, got.status)
				}
			})
		}
	}
}

// TestBrokenOutput: a client of a command whose node is lost gets a failure, and no success.
func TestBrokenOutput(t *testing.T) {
	node := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var conn net.Conn
		options, err := kubeletcommand.NewOptions(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		kubeletcommand.ServeExec(&stealing{w, &conn}, r, dying{conn: &conn}, "pod", "", "main", nil, options,
			time.Minute, time.Minute, kubeletcommand.SupportedStreamingProtocols)
	})
	server := front(t, newProxy(t, newCluster(), node).PodExec(), "pod",
		with(&corev1.PodExecOptions{Command: []string{"cat"}, Stdout: true}))
	ready := make(chan struct{})
	close(ready)
	for way, read := range map[string]func(*testing.T, string, <-chan struct{}) result{"SPDY": slowSPDY,
		"WebSocket": slowWebSocket} {
		t.Run(way, func(t *testing.T) {
			if got := read(t, server.Listener.Addr().String(), ready); got.status.Status != metav1.StatusFailure {
				t.Errorf("the client has read %d bytes, and the status %+v", got.bytes, got.status)
			}
		})
	}
}

// stealing keeps the connection of a response at hand.
type stealing struct {
	http.ResponseWriter
	conn *net.Conn
}

func (s *stealing) Hijack() (conn net.Conn, buffers *bufio.ReadWriter, err error) {
	conn, buffers, err = s.ResponseWriter.(http.Hijacker).Hijack()
	*s.conn = conn
	return conn, buffers, err
}

// dying is a node that is lost while a command writes.
type dying struct {
	runtimeOfNode
	conn *net.Conn
}

func (n dying) ExecInContainer(
	_ context.Context, _, _, _ string, _ []string, _ io.Reader, out, _ io.WriteCloser, _ bool,
	_ <-chan kubeletcommand.TerminalSize, _ time.Duration,
) error {
	_, err := io.WriteString(out, "some")
	(*n.conn).Close()
	return err
}
