// Package heapcost measures how much memory clients make a server hold. It is for tests only.
package heapcost

import (
	"crypto/tls"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
)

// MostEach is what a silent or slow connection may cost, with the client's end where that is in the
// same process.
const MostEach = 64 << 10

// Of returns by how many bytes the heap and the stacks in use grow while f runs.
func Of(f func()) int64 {
	before := inUse()
	f()
	return inUse() - before
}

func inUse() int64 {
	var m runtime.MemStats
	for range 2 { // pools keep what they have for one collection
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc + m.StackInuse)
}

// Clients are connections to a server.
type Clients struct{ closed atomic.Int64 }

// Closed returns the number of connections that the server has closed.
func (c *Clients) Closed() int { return int(c.closed.Load()) }

// Dial opens connections to a server, and has each of them begin with something; nil is nothing. A
// connection that the server closes meanwhile is one of them. They are closed at the end of the
// test.
func Dial(t testing.TB, address string, connections int, begin func(net.Conn) error) *Clients {
	t.Helper()
	c := new(Clients)
	var beginning sync.WaitGroup
	for range connections {
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		beginning.Add(1)
		go func() { // ends with the connection
			defer c.closed.Add(1)
			var err error
			if begin != nil {
				err = begin(conn)
			}
			beginning.Done()
			for answer := make([]byte, 64); err == nil; {
				_, err = conn.Read(answer)
			}
		}()
	}
	beginning.Wait()
	return c
}

// Sends returns a function that sends bytes.
func Sends(what []byte) func(net.Conn) error {
	return func(conn net.Conn) error {
		_, err := conn.Write(what)
		return err
	}
}

// Speaks returns a function that makes a TLS handshake, sends a text, and waits for the first byte
// of an answer if there is to be one. It believes any certificate.
func Speaks(protocol, text string, answered bool) func(net.Conn) error {
	return func(plain net.Conn) error {
		conn := tls.Client(plain, &tls.Config{InsecureSkipVerify: true, NextProtos: []string{protocol}})
		err := conn.Handshake()
		if err == nil {
			_, err = io.WriteString(conn, text)
		}
		if err == nil && answered {
			_, err = conn.Read(make([]byte, 1))
		}
		return err
	}
}

// HTTP2 is what a client of HTTP/2 says first; the server answers with its settings.
const HTTP2 = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
