// Package portforward connects the clients of port-forward to ports in a pod's network namespace.
//
// A session has any number of connections. The end of one, whatever its reason, ends that one
// alone: a reset by the pod, or a port without a listener. So nothing is written about it into the
// connection's error stream: kubectl ends the whole session at the first message there. A message
// is sent only when the pod no longer runs.
//
// The kubelet connects by itself, instead of passing sessions to the runtime: containerd reports a
// reset as an error of the session, and ends a connection one second after either side has stopped
// sending. Here the other side may go on sending for as long as it likes.
package portforward

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netns"
	"k8s.io/cri-streaming/pkg/streaming/portforward"

	"github.com/barque/barque/internal/linger"
	"github.com/barque/barque/internal/loglimit"
	"github.com/barque/barque/internal/osthread"
)

const (
	// idle and opening bound a session without traffic, and the opening of a connection's streams,
	// as the defaults of a runtime do.
	idle    = 4 * time.Hour
	opening = 30 * time.Second
	// connecting bounds the connection to a port. A listener whose queue is full does not answer.
	connecting = 30 * time.Second
	// lull ends a connection whose pod sends no more, when the client sends nothing for so long. A
	// pod that has closed looks like one that still reads, and clients wait for the end.
	lull = time.Second
)

// Target is the pod of a session.
type Target struct {
	Pod, UID string
	// Network returns the path of the pod's network namespace, which is empty for the node's own.
	// It fails when the pod does not run.
	Network func(ctx context.Context) (path string, err error)
	// Idle bounds a session without traffic; 0 is four hours.
	Idle   time.Duration
	Logger *slog.Logger
	// Refusals bounds the log lines about connections that no process in a pod accepts: a client
	// may ask for them without end.
	Refusals *loglimit.Limiter
}

// Serve serves one session.
func Serve(w http.ResponseWriter, r *http.Request, target Target) {
	options, err := portforward.NewV4Options(r)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	hijacked := linger.NewWriter(w)
	portforward.ServePortForward(hijacked, r, &forwarder{target, hijacked}, target.Pod, target.UID, options,
		cmp.Or(target.Idle, idle), opening, portforward.SupportedProtocols)
	if conn := hijacked.Conn(); conn != nil {
		conn.Close()
	}
}

// forwarder makes the connections of a session.
type forwarder struct {
	Target
	session *linger.Writer
}

// PortForward implements portforward.PortForwarder. An error of it ends the session.
func (f *forwarder) PortForward(ctx context.Context, _, _ string, port int32, stream io.ReadWriteCloser) error {
	defer reset(stream) // bytes that come after the end would hold up other connections
	path, err := f.Network(ctx)
	if err != nil {
		return err
	}
	conn, err := dial(ctx, path, port)
	if err != nil {
		if omitted, ok := f.Refusals.Take(time.Now()); ok {
			f.Logger.Info("a forwarded connection has no listener in the pod", "pod", f.Pod, "port", port, "err", err,
				"omitted", omitted)
		}
		return nil
	}
	defer conn.Close()
	over := make(chan struct{})
	defer close(over)
	go func() { // ends with this connection
		select {
		case <-f.session.Conn().Gone():
			conn.Close() // no stream shows the end of its session to a pod that does not send
		case <-over:
		}
	}()
	if err := carry(conn, stream); err != nil {
		f.Logger.Debug("a forwarded connection was cut", "pod", f.Pod, "port", port, "err", err)
	}
	return nil
}

// carry copies both ways until the pod has stopped sending, or an error ends the connection. The
// end of one direction is passed on.
func carry(conn *net.TCPConn, stream io.ReadWriteCloser) error {
	client := &watched{Reader: stream}
	sent := make(chan struct{})
	go func() { // ends with the stream, at the latest when PortForward resets it
		defer close(sent)
		_, err := io.Copy(conn, client)
		switch {
		case wasReset(stream):
			conn.Close()
		case err == nil:
			_ = conn.CloseWrite() // a pod that has closed needs none
		}
	}()
	if _, err := io.Copy(checked{stream}, conn); err != nil {
		return err
	}
	if err := stream.Close(); err != nil {
		return err
	}
	return client.await(sent)
}

// checked is a stream whose writes fail after a reset by the client.
type checked struct{ io.ReadWriteCloser }

func (c checked) Write(p []byte) (int, error) {
	if wasReset(c.ReadWriteCloser) {
		return 0, errReset
	}
	return c.ReadWriteCloser.Write(p)
}

// wasReset reports whether a stream that is not closed here was reset by the client.
func wasReset(stream io.ReadWriteCloser) bool {
	s, ok := stream.(interface{ IsFinished() bool })
	return ok && s.IsFinished()
}

var (
	errReset = errors.New("the client has reset the connection")
	errLull  = errors.New("the pod has stopped to send, and the client is silent")
)

// watched is a reader that records since when it has waited.
type watched struct {
	io.Reader
	waits atomic.Int64 // since when it waits, in nanoseconds; 0 while it does not
}

func (w *watched) Read(p []byte) (int, error) {
	w.waits.Store(time.Now().UnixNano())
	n, err := w.Reader.Read(p)
	w.waits.Store(0)
	return n, err
}

// await waits until the copy from the client has ended, or has been idle for a lull. A copy that
// waits for the pod to read is not idle.
func (w *watched) await(sent <-chan struct{}) error {
	rest := lull
	for {
		select {
		case <-sent:
			return nil
		case <-time.After(rest):
		}
		rest = lull
		if since := w.waits.Load(); since != 0 {
			if rest -= time.Since(time.Unix(0, since)); rest <= 0 {
				return errLull
			}
		}
	}
}

// reset ends both directions of a stream, where it has two.
func reset(stream io.ReadWriteCloser) {
	if s, ok := stream.(interface{ Reset() error }); ok {
		_ = s.Reset() // the session may have ended
		return
	}
	_ = stream.Close()
}

// dial connects to a port on the loopback of a network namespace.
func dial(ctx context.Context, path string, port int32) (conn *net.TCPConn, err error) {
	ctx, cancel := context.WithTimeout(ctx, connecting)
	defer cancel()
	connect := func() error {
		var failed error
		// Literal addresses, one after the other: a resolver or a race would use other threads.
		for _, host := range []string{"127.0.0.1", "::1"} {
			c, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort(host, strconv.Itoa(int(port))))
			if err == nil {
				conn = c.(*net.TCPConn)
				return nil
			}
			failed = errors.Join(failed, err)
		}
		return failed
	}
	if path == "" {
		err = connect()
		return conn, err
	}
	err = osthread.Do(func() error {
		there, err := netns.GetFromPath(path)
		if err != nil {
			return fmt.Errorf("network namespace %s: %w", path, err)
		}
		defer there.Close()
		if err := netns.Set(there); err != nil {
			return fmt.Errorf("enter network namespace %s: %w", path, err)
		}
		return connect()
	})
	return conn, err
}
