package server

import (
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestRuntimeThatHasClosed: what a client sends to a command that has ended is no error; the end of
// the stream is told by the runtime's side of it.
func TestRuntimeThatHasClosed(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() { // ends with the listener
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			conn.Close()
		}
	}()
	// A write succeeds until the other side's answer to an earlier one has come.
	refused := func(conn net.Conn) error {
		for limit := time.Now().Add(time.Minute); time.Now().Before(limit); {
			if n, err := conn.Write([]byte("more")); err != nil || n != len("more") {
				return err
			}
		}
		t.Fatal("what is closed takes all")
		return nil
	}
	plain, err := net.Dial("tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer plain.Close()
	if err := refused(plain); !errors.Is(err, unix.EPIPE) && !errors.Is(err, unix.ECONNRESET) {
		t.Fatalf("the kernel says %v", err)
	}

	conn, err := toRuntime.DialContext(t.Context(), "tcp", listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if n, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Fatalf("read %d bytes: %v", n, err)
	}
	for range 1000 {
		if n, err := conn.Write([]byte("more")); err != nil || n != len("more") {
			t.Fatalf("wrote %d bytes: %v", n, err)
		}
	}
	if err := conn.Close(); err != nil {
		t.Error(err)
	}
	if _, err := conn.Write([]byte("more")); !errors.Is(err, net.ErrClosed) {
		t.Errorf("after it was closed here: %v", err)
	}
}
