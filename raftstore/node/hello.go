package node

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
//	cluster: length(2) text    server: length(2) text, empty for whoever is there
//
// from the one who opens it, and one byte from the other: welcome, or why not, and after that which cluster
// or server it is, length(2) text. An heir of the other's cluster says as which one it goes on, who was recovered,
// when, and how many nanoseconds ago that was by its clock, four texts: see succession.go. A server of another cluster must not be listened to even when the same CA
// signed its certificate, nor must a server be taken for the one that had its address before.
const (
	welcome      byte = 0
	otherCluster byte = 1
	otherServer  byte = 2
	heirsServer  byte = 3
)

// StrangerError is returned when the server at an address is not the one that was looked for.
type StrangerError struct {
	Address string
	// Cluster is the cluster that it belongs to, when that is another one; else Server is its ID.
	Cluster, Server string
	// Succession is how the cluster of the one who looked became that other cluster, when it did.
	Succession *Succession
	heard      time.Time // by the clock that nobody sets
	ago        ago       // that was then
}

func (e *StrangerError) Error() string {
	if e.Succession != nil {
		return fmt.Sprintf("the server at %s belongs to another cluster: %s", e.Address, e.Succession)
	}
	if e.Cluster != "" {
		return fmt.Sprintf("the server at %s belongs to another cluster, %q", e.Address, e.Cluster)
	}
	return fmt.Sprintf("the server at %s is another one, %q", e.Address, e.Server)
}

// greet opens a connection to a destination and waits until the server there lets this one in.
func greet(ctx context.Context, s transport.Stream, dest, proto string, self identity) (net.Conn, error) {
	id, addr := splitDestination(dest)
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
	asked := time.Now()
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
	if answer[0] == heirsServer {
		return readHeir(conn, addr, cluster, asked)
	}
	who, err := readText(conn)
	switch {
	case err != nil:
		return err
	case answer[0] == otherCluster:
		return &StrangerError{Address: addr, Cluster: who}
	}
	return &StrangerError{Address: addr, Server: who}
}

// readHeir reads how the cluster became that of the server there, which was asked at that time.
func readHeir(conn net.Conn, addr, cluster string, asked time.Time) error {
	s := &Succession{Cluster: cluster}
	var at, age string
	var err error
	for _, text := range []*string{&s.Heir, &s.By, &at, &age} {
		if *text, err = readText(conn); err != nil {
			return err
		}
	}
	s.At, err = time.Parse(time.RFC3339Nano, at)
	nanoseconds, ageErr := strconv.ParseInt(age, 10, 64)
	if err := errors.Join(err, ageErr); err != nil || nanoseconds < 0 || s.Heir == "" || s.Heir == cluster {
		return fmt.Errorf("the server at %s does not say well how it became the heir of cluster %q: %w", addr, cluster, errors.Join(err, errGreeting))
	}
	least, heard := min(time.Duration(nanoseconds), longAgo), time.Now() // it was said between the two times, however long this process was suspended
	return &StrangerError{Address: addr, Cluster: s.Heir, Succession: s, heard: heard, ago: ago{Least: least, Most: least + heard.Sub(asked)}}
}

// longAgo is more than any age can be, and less than what cannot be added to.
const longAgo = 100 * 365 * 24 * time.Hour

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
	self identity
	// inherited tells how this server's cluster became the heir of another one; nil for one of which it is not. It may be nil.
	inherited func(cluster string) *bequest

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
	return c.Conn.Read(p)
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
		err = &StrangerError{Address: c.RemoteAddr().String(), Cluster: cluster}
		if c.inherited != nil {
			if b := c.inherited(cluster); b != nil {
				_, writing := c.Conn.Write(b.append([]byte{heirsServer}))
				return errors.Join(err, writing)
			}
		}
		return errors.Join(err, c.turnAway(otherCluster, c.self.ClusterID))
	case id != "" && id != c.self.ServerID:
		err = fmt.Errorf("server %s looks for server %q, this one is %q", c.RemoteAddr(), id, c.self.ServerID)
		return errors.Join(err, c.turnAway(otherServer, c.self.ServerID))
	}
	_, err = c.Conn.Write([]byte{welcome})
	return err
}

func (c *checked) turnAway(why byte, who string) error {
	_, err := c.Conn.Write(appendText([]byte{why}, who))
	return err
}
