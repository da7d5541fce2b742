package peer

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/transport"
)

// Protocols on the peer port.
const (
	ProtoRaft  = "barque-raft/3"
	ProtoStore = "barque-store/3"
)

// helloTimeout bounds how long a peer may take to say to which cluster it belongs.
const helloTimeout = 5 * time.Second

// A connection begins with
//
//	cluster: length(2) text    server: length(2) text, empty for any server
//
// from the one who opens it, and one byte from the other: welcome, or why not, and after that which
// cluster or server it is, length(2) text. A server of the successor of the other's cluster says
// which cluster that is, the ID of its first server, and when that began it, three texts: see
// group.Succession. A fourth text is for servers of earlier versions, which believe none that lacks
// it: for how many nanoseconds that is so.
//
// A server of another cluster must not be listened to even when the same CA signed its certificate,
// nor must a server be taken for the one that had its address before.
const (
	welcome      byte = 0
	otherCluster byte = 1
	otherServer  byte = 2
	successor    byte = 3
	notWelcome   byte = 4 // the caller is barred; a text says why
)

// WrongServerError is returned when the server at an address is not the one that was looked for.
type WrongServerError struct {
	Address string
	// Cluster is the cluster that it belongs to, when that is another one; else Server is its ID.
	Cluster, Server string
	// Succession is set when that cluster goes on in place of the caller's.
	Succession *group.Succession
}

func (e *WrongServerError) Error() string {
	if e.Succession != nil {
		return fmt.Sprintf("the server at %s belongs to another cluster: %s", e.Address, e.Succession)
	}
	if e.Cluster != "" {
		return fmt.Sprintf("the server at %s belongs to another cluster, %q", e.Address, e.Cluster)
	}
	return fmt.Sprintf("the server at %s is another one, %q", e.Address, e.Server)
}

// BarredError is returned when the server at an address does not let this one speak Raft.
type BarredError struct{ Address, Reason string }

func (e *BarredError) Error() string {
	return fmt.Sprintf("the server at %s refuses this one: %s", e.Address, e.Reason)
}

// greet opens a connection to a destination and waits until the server there lets this one in.
func greet(ctx context.Context, s transport.Stream, dest, proto string, self Identity) (net.Conn, error) {
	id, addr := SplitDestination(dest)
	conn, err := s.Dial(ctx, addr, proto)
	if err != nil {
		return nil, err
	}
	end := time.Now().Add(helloTimeout)
	if d, ok := ctx.Deadline(); ok && d.Before(end) {
		end = d
	}
	conn.SetDeadline(end)
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	err = beWelcome(conn, addr, self.ClusterID, id)
	if !stop() && err == nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("connect to server %s: %w", addr, err)
	}
	conn.SetDeadline(time.Time{})
	return conn, nil
}

func beWelcome(conn net.Conn, addr, cluster, id string) error {
	if _, err := conn.Write(appendText(appendText(nil, cluster), id)); err != nil {
		return err
	}
	var answer [1]byte
	if _, err := io.ReadFull(conn, answer[:]); err != nil {
		return err
	}
	if answer[0] == welcome {
		return nil
	}
	if answer[0] == successor {
		return readSuccession(conn, addr, cluster)
	}
	who, err := readText(conn)
	switch {
	case err != nil:
		return err
	case answer[0] == otherCluster:
		return &WrongServerError{Address: addr, Cluster: who}
	case answer[0] == notWelcome:
		return &BarredError{Address: addr, Reason: who}
	}
	return &WrongServerError{Address: addr, Server: who}
}

// readSuccession reads how the cluster there goes on in place of this one.
func readSuccession(conn net.Conn, addr, cluster string) error {
	s := &group.Succession{Cluster: cluster}
	var at string
	var err error
	for _, text := range []*string{&s.Successor, &s.By, &at} {
		if *text, err = readText(conn); err != nil {
			return err
		}
	}
	if s.At, err = time.Parse(time.RFC3339Nano, at); err != nil || s.Successor == "" || s.Successor == cluster {
		return fmt.Errorf("the server at %s does not say well how it became the successor of cluster %q: %w", addr,
			cluster, errors.Join(err, errGreeting))
	}
	return &WrongServerError{Address: addr, Cluster: s.Successor, Succession: s}
}

// appendSuccession writes the texts of readSuccession: all but the cluster, which the other one
// has named.
func appendSuccession(to []byte, s *group.Succession) []byte {
	for _, text := range []string{s.Successor, s.By, s.At.UTC().Format(time.RFC3339Nano)} {
		to = appendText(to, text)
	}
	return to
}

var errGreeting = errors.New("wrong greeting")

// maxText is longer than any ID: a name of up to 253 bytes and something random.
const maxText = 512

func appendText(b []byte, text string) []byte {
	return append(binary.BigEndian.AppendUint16(b, uint16(len(text))), text...)
}

func readText(r io.Reader) (string, error) {
	var n [2]byte
	if _, err := io.ReadFull(r, n[:]); err != nil {
		return "", err
	}
	length := binary.BigEndian.Uint16(n[:])
	if length > maxText {
		return "", fmt.Errorf("a greeting with a name of %d bytes, the limit is %d", length, maxText)
	}
	text := make([]byte, length)
	_, err := io.ReadFull(r, text)
	return string(text), err
}

// checked is an accepted connection. Its first Read reads the greeting, and fails when it is
// wrong, so that accepting does not wait for it.
type checked struct {
	net.Conn
	self Identity
	// membersOnly refuses a peer that is barred at all, now or later. Without it the calls of a
	// stranger decide.
	membersOnly bool
	// succeeded returns how this server's cluster became the successor of another one; nil where it
	// is not. It may be nil.
	succeeded func(cluster string) *group.Succession

	once sync.Once
	err  error
}

func (c *checked) Read(p []byte) (int, error) {
	c.once.Do(func() {
		if c.err = c.check(); c.err != nil {
			c.Conn.Close()
		}
	})
	if c.err != nil {
		return 0, c.err
	}
	n, err := c.Conn.Read(p)
	// Again: the peer may have been welcome only because this server knew no leader, or was behind.
	if barred := c.barred(); barred != nil {
		c.Conn.Close()
		return 0, notHere(c.RemoteAddr(), barred)
	}
	return n, err
}

// barred returns the reason why the peer may not speak here at all, or nil.
func (c *checked) barred() error {
	if !c.membersOnly {
		return nil
	}
	return barredBy(c.Conn)
}

// notHere is the error of a connection whose peer is barred.
func notHere(peer net.Addr, why error) error {
	return fmt.Errorf("server %s may not speak Raft here: %w", peer, why)
}

func (c *checked) check() error {
	c.Conn.SetDeadline(time.Now().Add(helloTimeout))
	defer c.Conn.SetDeadline(time.Time{})
	cluster, err := readText(c.Conn)
	if err != nil {
		return err
	}
	id, err := readText(c.Conn)
	if err != nil {
		return err
	}
	switch {
	case cluster == "":
		err = fmt.Errorf("server %s names no cluster, this one belongs to %q", c.RemoteAddr(), c.self.ClusterID)
		return errors.Join(err, c.turnAway(otherCluster, c.self.ClusterID))
	case cluster != c.self.ClusterID:
		err = &WrongServerError{Address: c.RemoteAddr().String(), Cluster: cluster}
		if c.succeeded != nil {
			if s := c.succeeded(cluster); s != nil {
				age := strconv.FormatInt(int64(max(0, time.Since(s.At))), 10)
				_, writing := c.Conn.Write(appendText(appendSuccession([]byte{successor}, s), age))
				return errors.Join(err, writing)
			}
		}
		return errors.Join(err, c.turnAway(otherCluster, c.self.ClusterID))
	case id != "" && id != c.self.ServerID:
		err = fmt.Errorf("server %s looks for server %q, this one is %q", c.RemoteAddr(), id, c.self.ServerID)
		return errors.Join(err, c.turnAway(otherServer, c.self.ServerID))
	}
	if barred := c.barred(); barred != nil {
		reason := barred.Error()
		return errors.Join(notHere(c.RemoteAddr(), barred), c.turnAway(notWelcome, reason[:min(len(reason), maxText)]))
	}
	_, err = c.Conn.Write([]byte{welcome})
	return err
}

func (c *checked) turnAway(why byte, who string) error {
	_, err := c.Conn.Write(appendText([]byte{why}, who))
	return err
}
