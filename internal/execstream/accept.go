package execstream

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
	"k8s.io/streaming/pkg/httpstream/wsstream"

	"github.com/barque/barque/internal/linger"
)

// closesStreams reports whether a client uses version 5, which closes single streams and exists
// over WebSocket only.
func closesStreams(r *http.Request) bool {
	return wsstream.IsWebSocketRequestWithStreamCloseProtocol(r)
}

// accept upgrades a client's request. Before it returns an error it has answered the client.
func accept(w http.ResponseWriter, r *http.Request, streams Streams, idle time.Duration) (*client, error) {
	hijacked := linger.NewWriter(w)
	var c *client
	var err error
	if wsstream.IsWebSocketRequest(r) {
		c, err = acceptWebSocket(hijacked, r, streams, idle)
	} else {
		c, err = acceptSPDY(hijacked, r, streams, idle)
	}
	if conn := hijacked.Conn(); err != nil && conn != nil {
		conn.Close()
	}
	if err != nil {
		return nil, err
	}
	c.conn = hijacked.Conn()
	return c, nil
}

// opened is a client's open stream. replied is closed when the client may use it.
type opened struct {
	httpstream.Stream
	replied <-chan struct{}
}

func acceptSPDY(w http.ResponseWriter, r *http.Request, streams Streams, idle time.Duration) (*client, error) {
	protocol, err := httpstream.Handshake(r, w, remotecommand.SupportedStreamingProtocols)
	if err != nil {
		return nil, err
	}
	news, done := make(chan opened), make(chan struct{})
	defer close(done)
	conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r,
		func(stream httpstream.Stream, replied <-chan struct{}) error {
			select {
			case news <- opened{stream, replied}:
				return nil
			case <-done:
				return errors.New("the command has all its streams")
			}
		})
	if conn == nil {
		return nil, errors.New("the connection was not upgraded")
	}
	conn.SetIdleTimeout(idle)
	c := &client{streams: conn, plainStatus: protocol != remotecommand.StreamProtocolV4Name}
	resizes := streams.TTY &&
		(protocol == remotecommand.StreamProtocolV4Name || protocol == remotecommand.StreamProtocolV3Name)
	if err := c.gather(news, streams, resizes); err != nil {
		conn.Close()
		return nil, err
	}
	return c, nil
}

// gather collects the client's streams until all are there.
func (c *client) gather(news <-chan opened, streams Streams, resizes bool) error {
	missing := 1
	for _, wanted := range []bool{streams.Stdin, streams.Stdout, streams.Stderr, resizes} {
		if wanted {
			missing++
		}
	}
	late := time.NewTimer(opening)
	defer late.Stop()
	for missing > 0 {
		var stream opened
		select {
		case stream = <-news:
		case <-late.C:
			return fmt.Errorf("the client has not opened its streams within %v", opening)
		}
		select {
		case <-stream.replied:
		case <-late.C:
			return fmt.Errorf("the client has not taken its streams within %v", opening)
		}
		switch kind := stream.Headers().Get(remotecommand.StreamType); kind {
		case remotecommand.StreamTypeError:
			c.status = stream
		case remotecommand.StreamTypeStdin:
			c.stdin = stream
		case remotecommand.StreamTypeStdout:
			c.stdout = stream
		case remotecommand.StreamTypeStderr:
			c.stderr = stream
		case remotecommand.StreamTypeResize:
			c.resize = stream
		default:
			return fmt.Errorf("the client has opened a stream of the type %q", kind)
		}
		missing--
	}
	if c.status == nil || streams.Stdin && c.stdin == nil || streams.Stdout && c.stdout == nil ||
		streams.Stderr && c.stderr == nil {
		return errors.New("the client has opened other streams than its request names")
	}
	return nil
}

func acceptWebSocket(w http.ResponseWriter, r *http.Request, streams Streams, idle time.Duration) (*client, error) {
	channels := []wsstream.ChannelType{
		remotecommand.StreamStdIn:  wsstream.IgnoreChannel,
		remotecommand.StreamStdOut: wsstream.IgnoreChannel,
		remotecommand.StreamStdErr: wsstream.IgnoreChannel,
		remotecommand.StreamErr:    wsstream.WriteChannel,
		remotecommand.StreamResize: wsstream.ReadChannel,
	}
	first := remotecommand.StreamErr // gets an empty message: the client may begin
	if streams.Stdin {
		channels[remotecommand.StreamStdIn] = wsstream.ReadChannel
	}
	if streams.Stderr {
		channels[remotecommand.StreamStdErr] = wsstream.WriteChannel
		first = remotecommand.StreamStdErr
	}
	if streams.Stdout {
		channels[remotecommand.StreamStdOut] = wsstream.WriteChannel
		first = remotecommand.StreamStdOut
	}
	binary := wsstream.ChannelProtocolConfig{Binary: true, Channels: channels}
	text := wsstream.ChannelProtocolConfig{Binary: false, Channels: channels}
	protocols := map[string]wsstream.ChannelProtocolConfig{
		"":                                      binary,
		wsstream.ChannelWebSocketProtocol:       binary,
		wsstream.Base64ChannelWebSocketProtocol: text,
		"v4." + wsstream.ChannelWebSocketProtocol:       binary,
		"v4." + wsstream.Base64ChannelWebSocketProtocol: text,
	}
	if closesStreams(r) {
		protocols = map[string]wsstream.ChannelProtocolConfig{remotecommand.StreamProtocolV5Name: binary}
	}
	conn := wsstream.NewConn(protocols)
	conn.SetIdleTimeout(idle)
	protocol, ends, err := conn.Open(w, r)
	if err != nil {
		return nil, err
	}
	if _, err := ends[first].Write(nil); err != nil {
		conn.Close()
		return nil, err
	}
	c := &client{streams: conn, status: ends[remotecommand.StreamErr],
		stdin: ends[remotecommand.StreamStdIn], stdout: ends[remotecommand.StreamStdOut],
		stderr: ends[remotecommand.StreamStdErr]}
	switch protocol {
	case "", wsstream.ChannelWebSocketProtocol, wsstream.Base64ChannelWebSocketProtocol:
		c.plainStatus = true
	}
	resize := ends[remotecommand.StreamResize]
	if streams.TTY {
		c.resize = resize
	} else {
		go func() { _, _ = io.Copy(io.Discard, resize) }() // ends with the connection, which waits for its readers
	}
	return c, nil
}
