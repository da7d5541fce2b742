package portforward

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"

	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/internal/loglimit"
)

// session forwards local ports to ports of this machine, as kubectl does, and returns the addresses
// of the local ones. ended has the session's end.
func session(
	t *testing.T, network func(context.Context) (string, error), ports ...int,
) (addresses []string, ended <-chan error) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		Serve(w, r,
			Target{Pod: "ns/p", UID: "u", Network: network, Logger: slog.New(slog.DiscardHandler),
				Refusals: new(loglimit.Limiter)})
	}))
	t.Cleanup(server.Close)
	location, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	transport, upgrader, err := spdy.RoundTripperFor(&restclient.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	var wanted []string
	for _, port := range ports {
		wanted = append(wanted, "0:"+strconv.Itoa(port))
	}
	ctx, stop := context.WithCancel(t.Context())
	up := make(chan struct{})
	forwarder, err := portforward.NewOnAddresses(
		spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, location),
		[]string{"127.0.0.1"}, wanted, ctx.Done(), up, io.Discard, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	end, over := make(chan error, 1), make(chan struct{})
	go func() {
		end <- forwarder.ForwardPorts()
		close(over)
	}()
	t.Cleanup(func() {
		stop()
		<-over
	})
	await.Value(t, "the session", up)
	local, err := forwarder.GetPorts()
	if err != nil {
		t.Fatal(err)
	}
	for _, port := range local {
		addresses = append(addresses, net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port.Local))))
	}
	return addresses, end
}

func here(context.Context) (string, error) { return "", nil }

// listen serves each connection to a port of this machine with f, and returns the port.
func listen(t *testing.T, f func(*net.TCPConn)) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go func() { // ends with the listener
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() { // ends with the connection
				defer conn.Close()
				f(conn.(*net.TCPConn))
			}()
		}
	}()
	return listener.Addr().(*net.TCPAddr).Port
}

// echo answers when its client has sent all.
func echo(conn *net.TCPConn) {
	said, err := io.ReadAll(conn)
	if err == nil {
		_, _ = conn.Write(said)
	}
}

func connect(t *testing.T, address string) *net.TCPConn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn.(*net.TCPConn)
}

// answer sends a word, half-closes, and returns the other side's bytes.
func answer(t *testing.T, conn *net.TCPConn) string {
	t.Helper()
	if _, err := io.WriteString(conn, "hello"); err != nil {
		t.Error(err)
	}
	if err := conn.CloseWrite(); err != nil {
		t.Error(err)
	}
	said, err := io.ReadAll(conn)
	if err != nil {
		t.Error(err)
	}
	return string(said)
}

// TestOneConnectionEnds: a connection that ends with an error ends alone. Others of the session go
// on, and new ones are made.
func TestOneConnectionEnds(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	bad := map[string]int{
		"reset by the pod": listen(t,
			func(conn *net.TCPConn) { _, _ = conn.Read(make([]byte, 1)); _ = conn.SetLinger(0) }),
		"no listener":   closed.Addr().(*net.TCPAddr).Port,
		"closed unread": listen(t, func(*net.TCPConn) {}),
	}
	for name, port := range bad {
		t.Run(name, func(t *testing.T) {
			addresses, ended := session(t, here, listen(t, echo), port)
			old := connect(t, addresses[0])
			if _, err := io.WriteString(old, "still "); err != nil {
				t.Fatal(err)
			}
			for range 3 {
				ill := connect(t, addresses[1])
				_, _ = ill.Write(make([]byte, 64<<10)) // it may have ended already
				_, _ = io.Copy(io.Discard, ill)
			}
			select {
			case err := <-ended:
				t.Fatalf("the session has ended: %v", err)
			default:
			}
			if got := answer(t, connect(t, addresses[0])); got != "hello" {
				t.Errorf("a new connection got %q", got)
			}
			if got := answer(t, old); got != "still hello" {
				t.Errorf("the old connection got %q", got)
			}
		})
	}
}

// TestHalves: each side may stop sending, and take its time to read.
func TestHalves(t *testing.T) {
	const much = 8 << 20
	t.Run("the client", func(t *testing.T) {
		heard, goOn := make(chan struct{}), make(chan struct{})
		addresses, _ := session(t, here, listen(t, func(conn *net.TCPConn) {
			_, _ = io.Copy(io.Discard, conn)
			close(heard)
			<-goOn
			_, _ = conn.Write(make([]byte, much))
		}))
		conn := connect(t, addresses[0])
		if err := conn.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		await.Value(t, "the client's end in the pod", heard)
		close(goOn)
		if n, err := io.Copy(io.Discard, conn); n != much || err != nil {
			t.Errorf("read %d bytes of %d: %v", n, much, err)
		}
	})
	t.Run("the pod, which closes", func(t *testing.T) {
		addresses, _ := session(t, here, listen(t, func(conn *net.TCPConn) { _, _ = conn.Write(make([]byte, much)) }))
		if n, err := io.Copy(io.Discard, connect(t, addresses[0])); n != much || err != nil {
			t.Errorf("read %d bytes of %d: %v", n, much, err)
		}
	})
}

// TestLull: a client that is silent after the pod has stopped sending is cut off; a pod that takes
// its time to read is waited for.
func TestLull(t *testing.T) {
	t.Run("a slow pod", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			pod, conn := io.Pipe()
			client := &watched{Reader: io.LimitReader(rand.Reader, 1<<20)}
			sent := make(chan struct{})
			go func() { // ends with the upload
				_, _ = io.Copy(conn, client)
				close(sent)
			}()
			got := 0
			go func() { // ends with the upload
				for part := make([]byte, 100<<10); got < 1<<20; {
					time.Sleep(time.Minute)
					n, _ := pod.Read(part)
					got += n
				}
			}()
			err := client.await(sent)
			synctest.Wait()
			if err != nil || got != 1<<20 {
				t.Errorf("the pod has read %d bytes: %v", got, err)
			}
		})
	})
	t.Run("a silent client", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			silent, end := io.Pipe()
			client := &watched{Reader: silent}
			sent := make(chan struct{})
			go func() { // ends with the pipe
				_, _ = io.Copy(io.Discard, client)
				close(sent)
			}()
			if err := client.await(sent); !errors.Is(err, errLull) {
				t.Errorf("waited for it: %v", err)
			}
			end.Close()
		})
	})
}

// TestPodIsGone: the session ends with a message when the pod no longer runs.
func TestPodIsGone(t *testing.T) {
	addresses, ended := session(t,
		func(context.Context) (string, error) { return "", errors.New("sandbox s does not run") }, 80)
	connect(t, addresses[0])
	if err := await.Value(t, "the end of the session", ended); !errors.Is(err, portforward.ErrLostConnectionToPod) {
		t.Errorf("the session ended with %v", err)
	}
}

// TestSessionEnds: the connections in the pod end with their session, also where they are idle.
func TestSessionEnds(t *testing.T) {
	over := make(chan struct{})
	port := listen(t, func(conn *net.TCPConn) {
		_, _ = io.WriteString(conn, "here")
		_, _ = io.Copy(io.Discard, conn)
		close(over)
	})
	t.Run("session", func(t *testing.T) {
		addresses, _ := session(t, here, port)
		if _, err := io.ReadFull(connect(t, addresses[0]), make([]byte, 4)); err != nil {
			t.Fatal(err)
		}
	})
	await.Value(t, "the end in the pod", over)
}

// TestRefusalsAreLoggedRarely: a client that comes again and again does not fill the log.
func TestRefusalsAreLoggedRarely(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := listener.Addr().(*net.TCPAddr).Port
	listener.Close()
	var lines bytes.Buffer
	f := &forwarder{
		Target: Target{Pod: "ns/p", Network: here, Logger: slog.New(slog.NewTextHandler(&lines, nil)),
			Refusals: new(loglimit.Limiter)}}
	for range 10 * loglimit.Burst {
		if err := f.PortForward(t.Context(), "p", "u", int32(port), struct {
			io.ReadWriter
			io.Closer
		}{new(bytes.Buffer), io.NopCloser(nil)}); err != nil {
			t.Fatal(err)
		}
	}
	if n := bytes.Count(lines.Bytes(), []byte("\n")); n == 0 || n > 2*loglimit.Burst {
		t.Errorf("%d lines of %d connections", n, 10*loglimit.Burst)
	}
}

// TestBadRequest: a WebSocket client must name its ports.
func TestBadRequest(t *testing.T) {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", "websocket")
	Serve(w, r, Target{Network: here, Logger: slog.New(slog.DiscardHandler)})
	if w.Code != http.StatusBadRequest {
		t.Errorf("answered %d", w.Code)
	}
}
