package hold

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"
)

// Kind distinguishes messages.
type Kind string

const (
	// Hello is the leader's first message. It names the term and the session.
	Hello Kind = "hello"
	// Request is a node's message. It lists all addresses that the node holds.
	Request Kind = "request"
	// Answer is the leader's answer to a request.
	Answer Kind = "answer"
	// Wake asks the node for a request now.
	Wake Kind = "wake"
)

// Message goes between a node and the leader.
type Message struct {
	Kind    Kind   `json:"kind"`
	Term    uint64 `json:"term,omitempty"`
	Session uint64 `json:"session,omitempty"`
	// Held are the addresses of a Request, and Granted those of an Answer. The node stops to answer
	// for an address that is not granted again.
	Held    []netip.Addr `json:"held,omitempty"`
	Granted []netip.Addr `json:"granted,omitempty"`
	// For is how long the granted addresses are held, from the instant before the request was sent.
	For time.Duration `json:"for,omitempty"`
}

// Link carries the messages of one session, in order. Send and Close may be called by several
// goroutines. Close ends a Receive.
type Link interface {
	Send(Message) error
	Receive() (Message, error)
	Close() error
}

const (
	// maxMessage bounds a message: some 20,000 addresses.
	maxMessage = 1 << 20
	// sendPatience bounds how long a peer may leave a message in the connection.
	sendPatience = Duration
)

// stream is a Link over a connection: JSON objects, one a line.
type stream struct {
	conn io.ReadWriteCloser
	in   *bufio.Scanner
	mu   sync.Mutex // of writers
}

// NewLink returns a Link over a connection.
func NewLink(conn io.ReadWriteCloser) Link {
	in := bufio.NewScanner(conn)
	in.Buffer(make([]byte, 0, 4096), maxMessage)
	return &stream{conn: conn, in: in}
}

// Send implements Link.
func (s *stream) Send(m Message) error {
	line, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode a message about held addresses: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if c, ok := s.conn.(net.Conn); ok {
		if err := c.SetWriteDeadline(time.Now().Add(sendPatience)); err != nil {
			return err
		}
	}
	_, err = s.conn.Write(append(line, '\n'))
	return err
}

// Receive implements Link.
func (s *stream) Receive() (Message, error) {
	if !s.in.Scan() {
		if err := s.in.Err(); err != nil {
			return Message{}, err
		}
		return Message{}, io.EOF
	}
	return parse(s.in.Bytes())
}

// Close implements Link.
func (s *stream) Close() error { return s.conn.Close() }

var errMessage = errors.New("hold: a message is not understood")

// parse reads one message of a peer.
func parse(line []byte) (Message, error) {
	var m Message
	if err := json.Unmarshal(line, &m); err != nil {
		return Message{}, fmt.Errorf("%w: %w", errMessage, err)
	}
	if m.For < 0 || m.For > Duration {
		return Message{}, fmt.Errorf("%w: a grant for %s", errMessage, m.For)
	}
	return m, nil
}
