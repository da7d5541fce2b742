package rpc

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"testing"
	"testing/iotest"
	"time"
)

// canned is a connection from which something was received, and then the end.
type canned struct{ io.Reader }

func (canned) Write(b []byte) (int, error)      { return len(b), nil }
func (canned) Close() error                     { return nil }
func (canned) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (canned) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (canned) SetDeadline(time.Time) error      { return nil }
func (canned) SetReadDeadline(time.Time) error  { return nil }
func (canned) SetWriteDeadline(time.Time) error { return nil }

// FuzzFrames reads the frames that another server may send. A frame that was read is written again
// as it was.
func FuzzFrames(f *testing.F) {
	var b bytes.Buffer
	w := bufio.NewWriter(&b)
	writeFrame(w, Frame{Call: 7, Kind: ask, Payload: []byte("payload")})
	writeFrame(w, Frame{Kind: Ping})
	w.Flush()
	f.Add(b.Bytes())
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, data []byte) {
		var whole, parts []Frame
		defer func() {
			if len(whole) != len(parts) {
				t.Errorf("%d frames, and %d when they come in parts", len(whole), len(parts))
			}
		}()
		newLink(canned{iotest.OneByteReader(bytes.NewReader(data))}).read(func(f Frame) { parts = append(parts, f) })
		r := bytes.NewReader(data)
		for {
			begin := len(data) - r.Len()
			read, err := readFrame(r)
			if err != nil {
				return
			}
			whole = append(whole, read)
			var again bytes.Buffer
			w := bufio.NewWriter(&again)
			if err := writeFrame(w, read); err != nil {
				t.Fatal(err)
			}
			w.Flush()
			if !bytes.Equal(again.Bytes(), data[begin:len(data)-r.Len()]) {
				t.Fatal("a frame is another one when it is written again")
			}
		}
	})
}
