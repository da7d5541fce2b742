package drain

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/internal/lifecycle"
)

// pipes is a port without a network.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

var errClosed = errors.New("the port is closed")

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.conns:
		return conn, nil
	case <-p.closed:
		return nil, errClosed
	}
}

func (p *pipes) Close() error {
	close(p.closed)
	return nil
}

func (*pipes) Addr() net.Addr { return &net.IPAddr{} }

func (p *pipes) dial(context.Context, string, string) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case p.conns <- far:
		return near, nil
	case <-p.closed:
		return nil, errClosed
	}
}

// TestShutdownDelay stops a server as package node does: for the time of --shutdown-delay-duration
// it answers requests, also over new connections, and its readiness fails. Then its port closes. A
// request of the last moment is answered.
func TestShutdownDelay(t *testing.T) {
	const delay, long = 20 * time.Second, 3 * time.Second
	synctest.Test(t, func(t *testing.T) {
		var out Drain
		port := &pipes{make(chan net.Conn), make(chan struct{})}
		mux := http.NewServeMux()
		mux.HandleFunc("/readyz", func(w http.ResponseWriter, r *http.Request) {
			if err := out.Check().Check(r); err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
			}
		})
		mux.HandleFunc("/api", func(http.ResponseWriter, *http.Request) {})
		mux.HandleFunc("/long", func(http.ResponseWriter, *http.Request) { <-time.After(long) })
		server := &http.Server{Handler: mux}
		stack := lifecycle.New(slog.New(slog.DiscardHandler))
		for _, c := range []lifecycle.Component{
			{Name: "port", StopTimeout: time.Minute, Run: func(ctx context.Context) error {
				served := make(chan error, 1)
				go func() { served <- server.Serve(port) }() // ends with Shutdown
				<-ctx.Done()
				err := server.Shutdown(context.Background())
				<-served
				return err
			}},
			{Name: "service", StopTimeout: delay + 2*AtMost, Run: func(ctx context.Context) error {
				<-ctx.Done()
				Departure{Least: delay, Ready: func(context.Context) error { return nil },
					HandOver: func() error { return nil },
					Listed:   func() bool { return false }, Logger: slog.New(slog.DiscardHandler)}.Run(&out)
				return nil
			}},
		} {
			if err := stack.Start(t.Context(), c); err != nil {
				t.Fatal(err)
			}
		}
		client := &http.Client{Transport: &http.Transport{DialContext: port.dial, DisableKeepAlives: true}}
		get := func(path string) string {
			response, err := client.Get("http://server" + path)
			if err != nil {
				return "no answer"
			}
			return fmt.Sprint(response.StatusCode, response.Body.Close())
		}
		want := func(when, ready, api string) {
			t.Helper()
			if is := get("/readyz"); is != ready {
				t.Errorf("%s: /readyz: %s, want %s", when, is, ready)
			}
			if is := get("/api"); is != api {
				t.Errorf("%s: a request: %s, want %s", when, is, api)
			}
		}
		want("before", "200 <nil>", "200 <nil>")
		stopped, last := make(chan error, 1), make(chan string, 1)
		told := time.Now()
		go func() { stopped <- stack.Stop() }()
		synctest.Wait()
		for since := time.Duration(0); since < delay; since += time.Second {
			want(fmt.Sprintf("after %s", since), "500 <nil>", "200 <nil>")
			<-time.After(time.Second - time.Nanosecond)
			if since+time.Second == delay {
				go func() { last <- get("/long") }()
				synctest.Wait()
			}
			<-time.After(time.Nanosecond)
		}
		synctest.Wait()
		want("after the delay", "no answer", "no answer")
		if is := <-last; is != "200 <nil>" {
			t.Errorf("the request of the last moment: %s", is)
		}
		if err := <-stopped; err != nil {
			t.Error(err)
		}
		if took := time.Since(told); took < delay+long || took > delay+long+time.Second {
			t.Errorf("it took %s", took)
		}
	})
}
