package execstream

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"

	utilproxy "k8s.io/apimachinery/pkg/util/proxy"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// refusal is the answer of a next server that did not upgrade.
type refusal struct {
	code        int
	contentType string
	body        []byte
}

// longestRefusal bounds the body of a refusal.
const longestRefusal = 64 << 10

func (e *refusal) Error() string {
	message := strings.TrimSpace(string(e.body))
	if message == "" {
		message = http.StatusText(e.code)
	}
	return "unable to upgrade connection: " + message
}

func (e *refusal) answer(w http.ResponseWriter) {
	if e.contentType != "" {
		w.Header().Set("Content-Type", e.contentType)
	}
	w.WriteHeader(e.code)
	_, _ = w.Write(e.body)
}

// dial asks the next server for a connection of streams. An answer instead of an upgrade is a
// refusal.
func dial(ctx context.Context, location *url.URL, transport *http.Transport) (httpstream.Connection, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, location.String(), nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set(httpstream.HeaderConnection, httpstream.HeaderUpgrade)
	request.Header.Set(httpstream.HeaderUpgrade, spdy.HeaderSpdy31)
	request.Header.Set(httpstream.HeaderProtocolVersion, remotecommand.StreamProtocolV4Name)
	conn, err := utilproxy.DialURL(ctx, location, transport)
	if err != nil {
		return nil, fmt.Errorf("error dialing backend: %w", err)
	}
	leave := context.AfterFunc(ctx, func() { conn.Close() })
	defer leave()
	fail := func(err error) (httpstream.Connection, error) {
		conn.Close()
		return nil, err
	}
	if err := request.Write(conn); err != nil {
		return fail(fmt.Errorf("error sending request: %w", err))
	}
	// nothing follows an upgrade before a stream is opened
	response, err := http.ReadResponse(bufio.NewReader(conn), request)
	if err != nil {
		return fail(fmt.Errorf("error reading response: %w", err))
	}
	if response.StatusCode != http.StatusSwitchingProtocols {
		body, err := io.ReadAll(io.LimitReader(response.Body, longestRefusal))
		if err != nil {
			return fail(fmt.Errorf("error reading response: %w", err))
		}
		return fail(&refusal{response.StatusCode, response.Header.Get("Content-Type"), body})
	}
	if got := response.Header.Get(httpstream.HeaderProtocolVersion); got != remotecommand.StreamProtocolV4Name {
		return fail(
			fmt.Errorf("unable to upgrade connection: the server at %s speaks %q, and not %s", location.Host, got,
				remotecommand.StreamProtocolV4Name))
	}
	streams, err := spdy.NewClientConnection(conn)
	if err != nil {
		return fail(err)
	}
	return &nextConn{streams, conn}, nil
}

// nextConn closes by its socket. SPDY's own close writes and waits for streams, which a hanging
// server blocks.
type nextConn struct {
	httpstream.Connection
	socket net.Conn
}

// Close implements httpstream.Connection.
func (c *nextConn) Close() error {
	err := c.socket.Close()
	c.Connection.Close() // its error is of the closed socket
	return err
}

// remote is the next server's side of a command.
type remote struct {
	status, stdin, stdout, stderr, resize httpstream.Stream // nil for streams that are not requested
}

// open opens the streams of a command on a connection to the next server.
func open(next httpstream.Connection, streams Streams) (*remote, error) {
	r := &remote{}
	for _, s := range []struct {
		kind   string
		wanted bool
		stream *httpstream.Stream
	}{
		{remotecommand.StreamTypeError, true, &r.status},
		{remotecommand.StreamTypeStdin, streams.Stdin, &r.stdin},
		{remotecommand.StreamTypeStdout, streams.Stdout, &r.stdout},
		{remotecommand.StreamTypeStderr, streams.Stderr, &r.stderr},
		{remotecommand.StreamTypeResize, streams.TTY, &r.resize},
	} {
		if !s.wanted {
			continue
		}
		header := http.Header{}
		header.Set(remotecommand.StreamType, s.kind)
		stream, err := next.CreateStream(header)
		if err != nil {
			return nil, fmt.Errorf("open the stream of the command's %s: %w", s.kind, err)
		}
		*s.stream = stream
	}
	return r, nil
}
