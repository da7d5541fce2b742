package transport_test

import (
	"bytes"
	"crypto/tls"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/raftstore/storetest"
	"github.com/barque/barque/raftstore/transport"
)

// canned is a connection from which something was received, and then the end.
type canned struct {
	io.Reader
	sent   int
	closed bool
}

func (c *canned) Write(b []byte) (int, error)      { c.sent += len(b); return len(b), nil }
func (c *canned) Close() error                     { c.closed = true; return nil }
func (c *canned) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (c *canned) RemoteAddr() net.Addr             { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 2), Port: 1} }
func (c *canned) SetDeadline(time.Time) error      { return nil }
func (c *canned) SetReadDeadline(time.Time) error  { return nil }
func (c *canned) SetWriteDeadline(time.Time) error { return nil }

// FuzzUnauthenticated lets an unauthenticated client send any bytes. It is not let in, and leaves
// nothing behind.
func FuzzUnauthenticated(f *testing.F) {
	ca := storetest.NewAuthority(f)
	server := ca.ServerMux()
	in := server.Listener("one/1")
	taking := make(chan struct{})
	got := make(chan net.Conn, 1)
	go func() { // ends with the server
		defer close(taking)
		for {
			conn, err := in.Accept()
			if err != nil {
				return
			}
			got <- conn
		}
	}()
	f.Cleanup(func() {
		server.Close()
		<-taking
	})
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"))
	f.Add([]byte{0x16, 0x03, 0x01, 0x40, 0x00, 0x01})
	f.Fuzz(func(t *testing.T, data []byte) {
		conn := &canned{Reader: bytes.NewReader(data)}
		server.Admit(conn)
		if clients, peers := server.Unauthenticated(); !conn.closed || clients != 0 || peers != 0 || len(got) > 0 {
			t.Fatalf("closed: %t, %d are pending, %d in, %d taken", conn.closed, clients, peers, len(got))
		}
		if conn.sent > 16<<10 {
			t.Fatalf("%d bytes were sent to an unknown client for %d", conn.sent, len(data))
		}
	})
}

// FuzzProtocols lets a server of the cluster ask for any protocols, one in each line. It gets the
// first that this one speaks, in the order of their names, or none.
func FuzzProtocols(f *testing.F) {
	ca := storetest.NewAuthority(f)
	server := ca.ServerMux()
	spoken := []string{"one/1", "two/1"}
	for _, proto := range spoken {
		echo(server, proto)
	}
	cert := ca.Issue(transport.ServerOrganization)
	f.Add("one/1")
	f.Add("three/1\ntwo/1\none/1")
	f.Add("")
	f.Fuzz(func(t *testing.T, lines string) {
		var asked []string
		for line := range strings.SplitSeq(lines, "\n") {
			if line != "" && len(line) < 256 && len(asked) < 100 { // TLS cannot say others
				asked = append(asked, line)
			}
		}
		want := ""
		if i := slices.IndexFunc(spoken, func(p string) bool { return slices.Contains(asked, p) }); i >= 0 {
			want = spoken[i]
		}
		here, there := net.Pipe()
		var admitting sync.WaitGroup
		admitting.Go(func() { server.Admit(there) })
		conn := tls.Client(here,
			&tls.Config{InsecureSkipVerify: true, Certificates: []tls.Certificate{*cert}, NextProtos: asked})
		conn.SetDeadline(time.Now().Add(await.Hang))
		heard, err := io.ReadAll(conn)
		here.Close()
		admitting.Wait()
		if string(heard) != want || (err == nil) != (want != "") {
			t.Fatalf("asked for %q, heard %q, %v", asked, heard, err)
		}
	})
}
