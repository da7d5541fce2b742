package peer

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/transport"
)

// maxRaftConns is how many connections Raft may have accepted from one address and not be done
// with. A server needs about six: for heartbeats, for entries, for a vote, and those that are idle.
const maxRaftConns = 64

// raftSilence is how long a connection must have been silent to be closed in favour of another one.
// One that carries heartbeats is never that silent.
const raftSilence = 10 * time.Second

// RaftStream is a transport.Stream as Raft wants it. It keeps track of the connections, because
// Raft leaves the accepted ones open when it stops.
//
// It also bounds how many there are. For each accepted connection Raft has a goroutine, which hands
// each message to Raft's main goroutine and waits. While that does not listen, as when the disk
// hangs, it does not notice that the other end has long given up and comes back with another
// connection, again and again.
type RaftStream struct {
	net.Listener
	stream transport.Stream
	self   Identity
	// Set before the first connection, or nil: succeeded as in checked, and refused, which takes
	// the error of dialing.
	succeeded func(cluster string) *group.Succession
	refused   func(error)

	ctx    context.Context // of dials; ends with cut
	cancel context.CancelFunc

	mu       sync.Mutex
	open     map[net.Conn]struct{}
	accepted map[string]map[*accepted]struct{} // by the address of the other end; until Raft is done with it
	closed   bool
}

func newRaftStream(s transport.Stream, self Identity) *RaftStream {
	ctx, cancel := context.WithCancel(context.Background())
	return &RaftStream{
		Listener: s.Listener(ProtoRaft), stream: s, self: self, ctx: ctx, cancel: cancel,
		open: make(map[net.Conn]struct{}), accepted: make(map[string]map[*accepted]struct{}),
	}
}

// RaftStream returns the stream of Raft's transport.
func (p *Peers) RaftStream() *RaftStream {
	s := newRaftStream(p.opts.Stream, p.opts.Self)
	s.succeeded, s.refused = p.server.Succeeded, p.server.Refused
	return s
}

// accepted is a connection that another server has opened.
type accepted struct {
	net.Conn // tracked
	stream   *RaftStream
	from     string
	began    time.Time
	heard    atomic.Int64 // when Raft has read from it last: time.Duration since began
}

// Accept returns the next connection. One that is too many is closed, and with it the one that has
// been silent for the longest time, if that is long: when Raft was waiting to read from it, as when
// the other end is gone without a word, there is room for the next attempt.
func (s *RaftStream) Accept() (net.Conn, error) {
	for {
		conn, err := s.Listener.Accept()
		if err != nil {
			return nil, err
		}
		from := hostOf(conn.RemoteAddr())
		if !s.makeRoom(from) {
			conn.Close()
			continue
		}
		tracked, err := s.track(&checked{Conn: conn, self: s.self, membersOnly: true, succeeded: s.succeeded})
		if err != nil {
			continue // Close ends it
		}
		return s.admit(tracked, from), nil
	}
}

// hostOf returns the part of an address that does not change from one connection to the next.
func hostOf(a net.Addr) string {
	if h, _, err := net.SplitHostPort(a.String()); err == nil {
		return h
	}
	return a.String()
}

// makeRoom reports whether there may be another connection from an address. If not, it closes one.
func (s *RaftStream) makeRoom(from string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.accepted[from]) < maxRaftConns {
		return true
	}
	var silent *accepted
	for a := range s.accepted[from] {
		_, open := s.open[a.Conn.(*tracked).Conn]
		if open && time.Since(a.lastHeard()) > raftSilence &&
			(silent == nil || a.lastHeard().Before(silent.lastHeard())) {
			silent = a
		}
	}
	if silent != nil {
		conn := silent.Conn.(*tracked).Conn
		delete(s.open, conn)
		conn.Close()
	}
	return false
}

func (s *RaftStream) admit(conn net.Conn, from string) net.Conn {
	a := &accepted{Conn: conn, stream: s, from: from, began: time.Now()}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.accepted[from] == nil {
		s.accepted[from] = make(map[*accepted]struct{})
	}
	s.accepted[from][a] = struct{}{}
	return a
}

func (a *accepted) lastHeard() time.Time { return a.began.Add(time.Duration(a.heard.Load())) }

func (a *accepted) Read(p []byte) (int, error) {
	n, err := a.Conn.Read(p)
	if n > 0 {
		a.heard.Store(int64(time.Since(a.began)))
	}
	return n, err
}

// Close is called by Raft when it is done with the connection.
func (a *accepted) Close() error {
	a.stream.mu.Lock()
	delete(a.stream.accepted[a.from], a)
	if len(a.stream.accepted[a.from]) == 0 {
		delete(a.stream.accepted, a.from)
	}
	a.stream.mu.Unlock()
	return a.Conn.Close()
}

func (s *RaftStream) Dial(addr raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(s.ctx, timeout)
	defer cancel()
	conn, err := greet(ctx, s.stream, string(addr), ProtoRaft, s.self)
	if err != nil {
		if s.refused != nil {
			s.refused(err)
		}
		return nil, err
	}
	return s.track(conn)
}

func (s *RaftStream) track(conn net.Conn) (net.Conn, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		conn.Close()
		return nil, net.ErrClosed
	}
	s.open[conn] = struct{}{}
	return &tracked{Conn: conn, stream: s}, nil
}

// Cut breaks all connections, for good. Raft does not wait for answers any more that it would wait
// for when it stops.
func (s *RaftStream) Cut() {
	s.cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for conn := range s.open {
		conn.Close()
	}
}

// Close closes the listener and all connections.
func (s *RaftStream) Close() error {
	s.Cut()
	return s.Listener.Close()
}

type tracked struct {
	net.Conn
	stream *RaftStream
}

func (t *tracked) Close() error {
	t.stream.mu.Lock()
	delete(t.stream.open, t.Conn)
	t.stream.mu.Unlock()
	return t.Conn.Close()
}
