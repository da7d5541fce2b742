package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
)

// bodyLength is the length of each answer's body. Clients know it, and read none of it.
const bodyLength = 1024

// messages speaks HTTP/1.1. It looks at the status and for the end of the header, and counts the
// rest.
type messages struct {
	conn    net.Conn
	request []byte
	buffer  []byte
}

func newMessages(conn net.Conn, host string) *messages {
	return &messages{conn, []byte("GET / HTTP/1.1\r\nHost: " + host + "\r\n\r\n"), make([]byte, 16<<10)}
}

func (m *messages) close() { _ = m.conn.Close() }

var (
	okay      = []byte("HTTP/1.1 200")
	headerEnd = []byte("\r\n\r\n")
)

func (m *messages) exchange() error {
	if _, err := m.conn.Write(m.request); err != nil {
		return err
	}
	for n, whole := 0, 0; ; {
		more, err := m.conn.Read(m.buffer[n:])
		n += more
		if whole == 0 {
			if end := bytes.Index(m.buffer[:n], headerEnd); end >= 0 {
				if !bytes.HasPrefix(m.buffer, okay) { // its body has another length
					return fmt.Errorf("the answer begins with %q", m.buffer[:min(n, 64)])
				}
				whole = end + len(headerEnd) + bodyLength
			}
		}
		switch {
		case whole > 0 && n == whole:
			return nil
		case whole > 0 && n > whole || n == len(m.buffer):
			return fmt.Errorf("the answer has another length than %d bytes: %q", bodyLength, m.buffer[:min(n, 256)])
		case errors.Is(err, io.EOF):
			return fmt.Errorf("the connection ends within an answer, after %q", m.buffer[:min(n, 256)])
		case err != nil:
			return err
		}
	}
}

// Types, flags and settings of HTTP/2 by RFC 9113.
const (
	frameData     = 0
	frameHeaders  = 1
	frameReset    = 3
	frameSettings = 4
	framePing     = 6
	frameGoAway   = 7
	frameWindow   = 8

	flagEndStream  = 1
	flagAck        = 1
	flagEndHeaders = 4

	settingPush   = 2
	settingWindow = 4

	frameHeader = 9
	// firstWindow is the connection's before the first update, and wholeWindow the widest.
	firstWindow, wholeWindow = 1<<16 - 1, 1<<31 - 1
)

const preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"

// frames speaks HTTP/2, one stream after the other. It looks at the type and the length of frames,
// and at the first byte of a header, which is the status.
type frames struct {
	conn     net.Conn
	request  []byte // a frame, whose stream is set each time
	stream   uint32
	buffer   []byte
	from, to int // the bytes in buffer that have not been looked at
	received int // of bodies, since the window was opened
}

func newFrames(conn net.Conn, host string) (*frames, error) {
	if len(host) > 126 {
		return nil, fmt.Errorf("the host %q is too long for one byte of length", host)
	}
	f := &frames{conn: conn, buffer: make([]byte, 64<<10)}
	// :method GET, :scheme https and :path / of the static table, and :authority as a literal.
	header := append([]byte{0x82, 0x87, 0x84, 0x01, byte(len(host))}, host...)
	f.request = frame(frameHeaders, flagEndStream|flagEndHeaders, 0, header)
	settings := binary.BigEndian.AppendUint16(nil, settingPush)
	settings = binary.BigEndian.AppendUint32(settings, 0)
	settings = binary.BigEndian.AppendUint16(settings, settingWindow)
	settings = binary.BigEndian.AppendUint32(settings, wholeWindow)
	hello := append([]byte(preface), frame(frameSettings, 0, 0, settings)...)
	hello = append(hello, frame(frameWindow, 0, 0, binary.BigEndian.AppendUint32(nil, wholeWindow-firstWindow))...)
	if _, err := conn.Write(hello); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return f, nil
}

func frame(kind, flags byte, stream uint32, payload []byte) []byte {
	n := len(payload)
	out := append(make([]byte, 0, frameHeader+n), byte(n>>16), byte(n>>8), byte(n), kind, flags)
	out = binary.BigEndian.AppendUint32(out, stream)
	return append(out, payload...)
}

func (f *frames) close() { _ = f.conn.Close() }

func (f *frames) exchange() error {
	if f.stream == 0 {
		f.stream = 1
	} else {
		f.stream += 2
	}
	binary.BigEndian.PutUint32(f.request[5:], f.stream)
	if _, err := f.conn.Write(f.request); err != nil {
		return err
	}
	for body := 0; ; {
		kind, flags, stream, payload, err := f.next()
		if err != nil {
			return err
		}
		switch kind {
		case frameHeaders:
			if err := status(payload); err != nil {
				return err
			}
		case frameData:
			body += len(payload)
			if f.received += len(payload); f.received > wholeWindow/2 {
				more := binary.BigEndian.AppendUint32(nil, uint32(f.received))
				f.received = 0
				if _, err := f.conn.Write(frame(frameWindow, 0, 0, more)); err != nil {
					return err
				}
			}
		case frameSettings, framePing:
			if flags&flagAck == 0 {
				if kind == frameSettings {
					payload = nil
				}
				if _, err := f.conn.Write(frame(kind, flagAck, 0, payload)); err != nil {
					return err
				}
			}
			continue
		case frameReset, frameGoAway:
			return fmt.Errorf("a frame of type %d instead of an answer: %x", kind, payload)
		default:
			continue
		}
		if stream != f.stream {
			return fmt.Errorf("an answer for the stream %d, and %d was asked", stream, f.stream)
		}
		if flags&flagEndStream != 0 {
			if body != bodyLength {
				return fmt.Errorf("the body has %d bytes, not %d", body, bodyLength)
			}
			return nil
		}
	}
}

// next returns the next frame, whose payload is valid until the call after it.
func (f *frames) next() (kind, flags byte, stream uint32, payload []byte, err error) {
	for {
		if have := f.buffer[f.from:f.to]; len(have) >= frameHeader {
			n := frameHeader + (int(have[0])<<16 | int(have[1])<<8 | int(have[2]))
			if n > len(f.buffer) {
				return 0, 0, 0, nil, fmt.Errorf("a frame of %d bytes", n)
			}
			if len(have) >= n {
				f.from += n
				return have[3], have[4], binary.BigEndian.Uint32(have[5:]) &^ (1 << 31), have[frameHeader:n], nil
			}
		}
		if f.from > 0 {
			f.to = copy(f.buffer, f.buffer[f.from:f.to])
			f.from = 0
		}
		n, err := f.conn.Read(f.buffer[f.to:])
		f.to += n
		if n == 0 && err != nil {
			return 0, 0, 0, nil, err
		}
	}
}

// status checks that a header begins with the status 200, as the static table has it. Changes of
// the size of the dynamic table come before it.
func status(header []byte) error {
	const okay, sizeMask, size = 0x88, 0xe0, 0x20
	for i := 0; i < len(header); i++ {
		if header[i]&sizeMask != size {
			if header[i] == okay {
				return nil
			}
			break
		}
		if header[i]&^sizeMask == 0x1f { // the number goes on
			for i++; i < len(header) && header[i]&0x80 != 0; i++ {
			}
		}
	}
	return fmt.Errorf("the answer's status is not 200: %x", header[:min(len(header), 32)])
}
