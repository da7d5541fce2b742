// Package framing follows the messages of HTTP/1 on a connection, and breaks those whose end two
// readers may see at different places. It is not for HTTP/2 and HTTP/3, whose frames have lengths.
package framing

import (
	"bytes"
	"crypto/tls"
	"net"
	"strconv"
	"sync/atomic"
)

// Conn is a connection of HTTP/1 with that check. net/http takes the one of two lengths that counts
// and forgets the other, so its handler cannot know. A header that breaks the rule is followed by a
// line that is none: net/http answers 400 and closes the connection.
//
// It ends with an upgrade. Only the server's goroutine for the connection reads.
type Conn struct {
	net.Conn
	upgraded atomic.Bool
	state    framing
	line     []byte // the beginning of the current line
	long     bool   // the line is longer than that
	left     int64  // bytes of a body, or of a chunk
	message  message
	reply    []byte // in place of what follows
}

// message is the header of the current message.
type message struct {
	old              bool // HTTP/1.0
	lengths, codings int  // fields
	length           int64
	chunked          bool
}

// framing is the part of a message that comes next.
type framing int

const (
	firstLine framing = iota
	header
	body
	chunkSize
	chunk
	chunkEnd // the line behind a chunk
	trailer
	unframed // no messages follow
	broken
)

// longestLine bounds what is kept of a line. The fields that count here are shorter.
const longestLine = 1 << 10

// malformed is a line that no header has.
const malformed = "\x00\r\n\r\n"

// New returns a connection with the check.
func New(c net.Conn) *Conn { return &Conn{Conn: c} }

// TLS is one in TLS, without HTTP/2.
type TLS struct {
	*Conn
	tls *tls.Conn
}

// NewTLS returns a connection in TLS with the check.
func NewTLS(c *tls.Conn) TLS { return TLS{New(c), c} }

// ConnectionState is asked by net/http, for Request.TLS.
func (f TLS) ConnectionState() tls.ConnectionState { return f.tls.ConnectionState() }

// CloseWrite ends one direction.
func (f *Conn) CloseWrite() error {
	if half, ok := f.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return f.Conn.Close()
}

// Upgrade says that the connection has another protocol from now on, and no messages any more.
func (f *Conn) Upgrade() { f.upgraded.Store(true) }

// Read implements net.Conn.
func (f *Conn) Read(p []byte) (int, error) {
	if len(f.reply) > 0 {
		n := copy(p, f.reply)
		f.reply = f.reply[n:]
		return n, nil
	}
	if f.state == broken {
		return 0, net.ErrClosed
	}
	n, err := f.Conn.Read(p)
	if f.state == unframed || f.upgraded.Load() {
		return n, err
	}
	if at, ok := f.follow(p[:n]); !ok {
		f.state, f.reply = broken, []byte(malformed)
		// What went before has been right. An error of the connection comes again.
		if at > 0 {
			return at, nil
		}
		return f.Read(p)
	}
	return n, err
}

// follow goes through bytes that have been read. It returns false with the number of bytes before
// the end of a header that is refused.
func (f *Conn) follow(p []byte) (int, bool) {
	for i := 0; i < len(p); {
		switch f.state {
		case body, chunk:
			n := min(f.left, int64(len(p)-i))
			f.left -= n
			i += int(n)
			if f.left > 0 {
				return i, true
			}
			if f.state == body {
				f.state = firstLine
			} else {
				f.state = chunkEnd
			}
		case unframed:
			return len(p), true
		default:
			end := bytes.IndexByte(p[i:], '\n')
			if end < 0 {
				f.keep(p[i:])
				return len(p), true
			}
			line := p[i : i+end]
			if len(f.line) > 0 || len(line) > longestLine {
				f.keep(line)
				line = f.line
			}
			if !f.take(bytes.TrimSuffix(line, []byte("\r"))) {
				return i, false
			}
			f.line, f.long = f.line[:0], false
			i += end + 1
		}
	}
	return len(p), true
}

// keep adds to the current line.
func (f *Conn) keep(p []byte) {
	n := min(len(p), longestLine-len(f.line))
	f.line = append(f.line, p[:n]...)
	f.long = f.long || n < len(p)
}

// take goes on behind a line. It returns false where the message is refused; what net/http refuses
// by itself is left to it.
func (f *Conn) take(line []byte) bool {
	empty := len(line) == 0
	switch f.state {
	case firstLine:
		if empty {
			return true // some clients send an empty line behind a body
		}
		if string(line) == "PRI * HTTP/2.0" {
			f.state = unframed
			return true
		}
		f.state, f.message = header, message{old: !f.long && !bytes.HasSuffix(line, []byte(" HTTP/1.1"))}
	case header:
		if empty {
			return f.endHeader()
		}
		return f.message.field(line, f.long)
	case chunkSize:
		// Extensions follow a semicolon.
		digits, _, _ := bytes.Cut(line, []byte(";"))
		size, err := strconv.ParseUint(string(bytes.TrimSpace(digits)), 16, 63)
		if err != nil {
			f.state = unframed // net/http finds the same, and closes the connection
			return true
		}
		if f.left, f.state = int64(size), chunk; size == 0 {
			f.state = trailer
		}
	case chunkEnd:
		f.state = chunkSize
	case trailer:
		if empty {
			f.state = firstLine
		}
	}
	return true
}

// endHeader decides what follows a header; false if readers may disagree.
func (f *Conn) endHeader() bool {
	m := &f.message
	switch {
	case m.codings > 0 && (m.lengths > 0 || m.old):
		return false
	case m.chunked:
		f.state = chunkSize
	case m.length > 0:
		f.state, f.left = body, m.length
	default:
		f.state = firstLine
	}
	return true
}

var (
	contentLength    = []byte("Content-Length")
	transferEncoding = []byte("Transfer-Encoding")
	chunked          = []byte("chunked")
)

// field takes note of a field that says where the message ends; false if readers may disagree.
func (m *message) field(line []byte, long bool) bool {
	if line[0] == ' ' || line[0] == '\t' {
		return false // it goes on with the line before, which some readers do not know
	}
	name, value, _ := bytes.Cut(line, []byte(":"))
	name = bytes.TrimRight(name, " \t")
	switch {
	case bytes.EqualFold(name, contentLength):
		length, err := strconv.ParseUint(string(bytes.Trim(value, " \t")), 10, 63)
		m.lengths, m.length = m.lengths+1, int64(length)
		return err == nil && !long && m.lengths == 1
	case bytes.EqualFold(name, transferEncoding):
		value = bytes.Trim(value, " \t")
		m.codings, m.chunked = m.codings+1, bytes.EqualFold(value, chunked)
		// Another coding alone gets 501 by net/http.
		return !long && m.codings == 1 && (m.chunked || !bytes.Contains(bytes.ToLower(value), chunked))
	}
	return true
}
