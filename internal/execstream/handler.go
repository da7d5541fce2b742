// Package execstream carries the streams of a command (exec and attach) to the next server on the
// way to the container. That is the kubelet behind the API server, and the runtime behind the
// kubelet.
//
// Invariant: a client that receives the status of a command has received all output before it.
// After a broken connection it receives a failure as the status, and never a success.
//
// Each server decodes the streams, instead of copying bytes between connections, for three reasons.
// Client libraries take a stream without a status for a success. The client's pings end here: the
// runtime closes its connection at the command's end, and a later ping would make the kernel
// discard output (package linger). And the next server gets one protocol, SPDY with version 4 of
// the streams, for any protocol of the client.
package execstream

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/streaming/pkg/httpstream"

	"github.com/barque/barque/internal/linger"
)

const (
	// defaultIdle is the longest time without traffic, unless the handler has another. It is the
	// node's default for streams.
	defaultIdle = 4 * time.Hour
	// opening is the time that a client has to open its streams.
	opening = 30 * time.Second
	// longestStatus bounds the status that the next server may send.
	longestStatus = 1 << 20
)

// Streams are the streams that a client requests.
type Streams struct{ Stdin, Stdout, Stderr, TTY bool }

// Handler serves the client of one command.
type Handler struct {
	Location *url.URL
	// Transport has the dialer and the TLS configuration for Location.
	Transport *http.Transport
	Streams
	// Idle is the longest time without traffic; 0 is four hours.
	Idle time.Duration
	// Fail answers a client that cannot be served.
	Fail func(w http.ResponseWriter, r *http.Request, err error)
}

// ServeHTTP implements http.Handler. It returns when the client has everything, or has left.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !httpstream.IsUpgradeRequest(r) {
		h.Fail(w, r, apierrors.NewBadRequest("Upgrade request required"))
		return
	}
	streams := h.Streams
	streams.Stderr = streams.Stderr && !streams.TTY // a terminal has one output
	next, err := dial(r.Context(), h.Location, h.Transport)
	var refused *refusal
	switch {
	case err == nil || closesStreams(r): // such a client reads errors from its status
	case errors.As(err, &refused):
		refused.answer(w)
		return
	default:
		h.Fail(w, r, err)
		return
	}
	client, acceptErr := accept(w, r, streams, cmp.Or(h.Idle, defaultIdle))
	if acceptErr != nil { // the client has been answered, where it can be
		if next != nil {
			next.Close()
		}
		return
	}
	defer client.close()
	if err != nil {
		client.end(failure(err))
		return
	}
	client.end(carry(client, next, streams))
}

// carry copies in all directions until the command has ended, and returns its status.
func carry(client *client, next httpstream.Connection, streams Streams) []byte {
	defer next.Close()
	remote, err := open(next, streams)
	if err != nil {
		return failure(err)
	}
	ended, stop := context.WithCancel(context.Background())
	defer stop()
	go func() { // ends with this function
		select {
		case <-client.conn.Gone():
			next.Close() // ends the copies below
		case <-ended.Done():
		}
	}()
	if streams.Stdin {
		go func() { // ends with the client's connection, at the latest
			_, _ = io.Copy(remote.stdin, client.stdin)
			remote.stdin.Close()
		}()
	}
	if streams.TTY && client.resize != nil {
		go func() { _, _ = io.Copy(remote.resize, client.resize) }() // as the one above
	}
	var output sync.WaitGroup
	for _, way := range []struct {
		wanted bool
		to     io.WriteCloser
		from   io.Reader
	}{{streams.Stdout, client.stdout, remote.stdout}, {streams.Stderr, client.stderr, remote.stderr}} {
		if way.wanted {
			output.Go(func() {
				if _, err := io.Copy(way.to, way.from); err != nil {
					next.Close() // the client takes no more
				}
				way.to.Close()
			})
		}
	}
	status, err := io.ReadAll(io.LimitReader(remote.status, longestStatus))
	output.Wait()
	// The next server sends the status after all output, so a status means that the output is
	// complete.
	if len(status) == 0 {
		return failure(errors.Join(errBroken, err))
	}
	return status
}

// errBroken is the end of a command whose status has not come.
var errBroken = errors.New(
	"the connection to the container ended before the command's exit status came: output may be missing")

// failure is a status in the form of version 4 of the streams.
func failure(err error) []byte {
	status := apierrors.NewInternalError(err).Status()
	var known apierrors.APIStatus
	if errors.As(err, &known) {
		status = known.Status()
	}
	body, err := json.Marshal(status)
	if err != nil {
		panic(fmt.Sprintf("a status is not JSON: %v", err)) // it is plain data
	}
	return body
}

// messageOf returns the status for versions without one: nothing for a success.
func messageOf(status []byte) []byte {
	var parsed metav1.Status
	if err := json.Unmarshal(status, &parsed); err != nil {
		return status
	}
	if parsed.Status == metav1.StatusSuccess {
		return nil
	}
	return []byte(parsed.Message)
}

// client is the client's side of a command.
type client struct {
	conn          *linger.Conn
	streams       io.Closer // closes all streams, and conn
	stdin, resize io.Reader
	stdout        io.WriteCloser
	stderr        io.WriteCloser
	status        io.Writer
	plainStatus   bool // a text, as in the versions before 4
}

// end sends the status.
func (c *client) end(status []byte) {
	if c.plainStatus {
		status = messageOf(status)
	}
	if len(status) > 0 {
		_, _ = c.status.Write(status) // a client that has left needs none
	}
}

// close ends the streams, and waits until the client has read them.
func (c *client) close() {
	_ = c.streams.Close()
	_ = c.conn.Close()
}
