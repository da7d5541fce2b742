package peer

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"
	"testing/iotest"
	"time"

	"github.com/barque/barque/raftstore/group"
)

// canned is a connection from which something was received, and then the end.
type canned struct {
	io.Reader
	sent   bytes.Buffer
	closed bool
}

func (c *canned) Write(b []byte) (int, error)      { return c.sent.Write(b) }
func (c *canned) Close() error                     { c.closed = true; return nil }
func (c *canned) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (c *canned) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (c *canned) SetDeadline(time.Time) error      { return nil }
func (c *canned) SetReadDeadline(time.Time) error  { return nil }
func (c *canned) SetWriteDeadline(time.Time) error { return nil }

// FuzzHello lets a peer begin with any bytes. Only those that name this cluster, and this server or
// none, let it in, and the connection then reads the bytes after them; a refused client gets the
// reason in words that the other side reads.
func FuzzHello(f *testing.F) {
	f.Add([]byte("\x00\x07cluster\x00\x00and what follows"))
	f.Add([]byte("\x00\x07cluster\x00\x04s1-x"))
	f.Add([]byte("\x00\x07cluster\x00\x04s2-y"))
	f.Add([]byte("\x00\x05other\x00\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		conn := &canned{Reader: iotest.HalfReader(bytes.NewReader(data))}
		read, err := io.ReadAll(&checked{Conn: conn, self: self})
		var rest []byte
		let := false
		for _, id := range []string{"", self.ServerID} {
			if after, ok := bytes.CutPrefix(data, greeting(self.ClusterID, id)); ok {
				rest, let = after, true
			}
		}
		if let == conn.closed || let && err != nil || !bytes.Equal(read, rest) {
			t.Fatalf("error: %v, closed: %t, read %q; want it let in: %t, and %q", err, conn.closed, read, let, rest)
		}
		told := beWelcome(&canned{Reader: &conn.sent}, "there", "", "")
		var wrong *WrongServerError
		switch {
		case let && told != nil, !let && told == nil:
			t.Fatalf("let in: %t, told: %v", let, told)
		case errors.As(told, &wrong) && wrong.Cluster != self.ClusterID && wrong.Server != self.ServerID:
			t.Fatalf("told: %+v", wrong)
		case conn.sent.Len() > 0:
			t.Fatalf("%q follows what was told", conn.sent.Bytes())
		}
	})
}

// FuzzWelcome lets a peer answer a greeting with any bytes.
func FuzzWelcome(f *testing.F) {
	f.Add([]byte{welcome, 'x'})
	f.Add(appendText([]byte{otherCluster}, "other"))
	f.Add(appendText([]byte{otherServer}, "s2-y"))
	f.Add(appendSuccession([]byte{successor}, &group.Succession{Successor: "new", By: "s2-y"}))
	f.Fuzz(func(t *testing.T, data []byte) {
		in := bytes.NewReader(data)
		err := beWelcome(&canned{Reader: in}, "there", "cluster", "s1-x")
		if (err == nil) != (len(data) > 0 && data[0] == welcome) {
			t.Fatalf("%q: %v", data, err)
		}
		if err == nil && in.Len() != len(data)-1 {
			t.Fatalf("%d bytes too many were read", len(data)-1-in.Len())
		}
		var wrong *WrongServerError
		if errors.As(err, &wrong) && len(wrong.Cluster)+len(wrong.Server) > maxText {
			t.Fatal("a name that is too long")
		}
		if wrong != nil && wrong.Succession != nil &&
			(wrong.Succession.Cluster != "cluster" || wrong.Succession.Successor == "cluster") {
			t.Fatalf("told of %+v", wrong.Succession)
		}
	})
}
