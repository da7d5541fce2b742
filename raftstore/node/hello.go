package node

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/transport"
)

// Protocols on the peer port.
const (
	ProtoRaft  = "barque-raft/1"
	ProtoStore = "barque-store/1"
)

// helloTimeout bounds how long a peer may take to say to which cluster it belongs.
const helloTimeout = 5 * time.Second

// greet opens a connection and says first of all to which cluster this server belongs. A server of
// another cluster must not be listened to even when the same CA signed its certificate.
func greet(ctx context.Context, s transport.Stream, addr, proto, cluster string) (net.Conn, error) {
	conn, err := s.Dial(ctx, addr, proto)
	if err != nil {
		return nil, err
	}
	conn.SetWriteDeadline(time.Now().Add(helloTimeout))
	if _, err := conn.Write(append([]byte{byte(len(cluster))}, cluster...)); err != nil {
		conn.Close()
		return nil, fmt.Errorf("connect to server %s: %w", addr, err)
	}
	conn.SetWriteDeadline(time.Time{})
	return conn, nil
}

// checked is an accepted connection. Its first Read reads the greeting, and fails when it is
// wrong, so that accepting does not wait for it.
type checked struct {
	net.Conn
	cluster string
	once    sync.Once
	err     error
}

func (c *checked) Read(p []byte) (int, error) {
	c.once.Do(func() { c.err = c.check() })
	if c.err != nil {
		return 0, c.err
	}
	return c.Conn.Read(p)
}

func (c *checked) check() error {
	c.Conn.SetReadDeadline(time.Now().Add(helloTimeout))
	defer c.Conn.SetReadDeadline(time.Time{})
	var n [1]byte
	if _, err := io.ReadFull(c.Conn, n[:]); err != nil {
		return err
	}
	cluster := make([]byte, n[0])
	if _, err := io.ReadFull(c.Conn, cluster); err != nil {
		return err
	}
	if string(cluster) != c.cluster {
		c.Conn.Close()
		return fmt.Errorf("server %s belongs to cluster %q, this one to %q", c.RemoteAddr(), cluster, c.cluster)
	}
	return nil
}

// raftStream is a transport.Stream as Raft wants it. It keeps track of the connections, because Raft
// leaves the accepted ones open when it stops.
type raftStream struct {
	net.Listener
	stream  transport.Stream
	cluster string

	mu     sync.Mutex
	open   map[net.Conn]struct{}
	closed bool
}

func newRaftStream(s transport.Stream, cluster string) *raftStream {
	return &raftStream{Listener: s.Listener(ProtoRaft), stream: s, cluster: cluster, open: make(map[net.Conn]struct{})}
}

func (s *raftStream) Accept() (net.Conn, error) {
	conn, err := s.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return s.track(&checked{Conn: conn, cluster: s.cluster})
}

func (s *raftStream) Dial(addr raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	conn, err := greet(ctx, s.stream, string(addr), ProtoRaft, s.cluster)
	if err != nil {
		return nil, err
	}
	return s.track(conn)
}

func (s *raftStream) track(conn net.Conn) (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		conn.Close()
		return nil, net.ErrClosed
	}
	s.open[conn] = struct{}{}
	return &tracked{Conn: conn, stream: s}, nil
}

// Close closes the listener and all connections.
func (s *raftStream) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for conn := range s.open {
		conn.Close()
	}
	return s.Listener.Close()
}

type tracked struct {
	net.Conn
	stream *raftStream
}

func (t *tracked) Close() error {
	t.stream.mu.Lock()
	delete(t.stream.open, t.Conn)
	t.stream.mu.Unlock()
	return t.Conn.Close()
}
