package memnet_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/raftstore/transport/memnet"
)

// connected returns both ends of a connection between two hosts.
func connected(t *testing.T, n *memnet.Network) (a, b net.Conn) {
	t.Helper()
	l := n.Host("b").Listener("p")
	accepted := make(chan net.Conn, 1)
	go func() {
		conn, _ := l.Accept()
		accepted <- conn
	}()
	a, err := n.Host("a").Dial(context.Background(), "b", "p")
	if err != nil {
		t.Fatal(err)
	}
	return a, <-accepted
}

func hear(t *testing.T, conn net.Conn, want string, within time.Duration) {
	t.Helper()
	conn.SetReadDeadline(time.Now().Add(within))
	got := make([]byte, len(want))
	if n, err := io.ReadFull(conn, got); err != nil || string(got) != want {
		t.Errorf("heard %q, want %q: %v", got[:n], want, err)
	}
}

func hearNothing(t *testing.T, conn net.Conn) {
	t.Helper()
	conn.SetReadDeadline(time.Now().Add(time.Second))
	if n, err := conn.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("read %d bytes: %v", n, err)
	}
}

func TestOneDirectionIsBlocked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := new(memnet.Network)
		a, b := connected(t, n)
		n.Block("a", "b")
		io.WriteString(a, "held")
		hearNothing(t, b)
		io.WriteString(b, "back")
		hear(t, a, "back", time.Second)
		if _, err := n.Host("b").Dial(context.Background(), "a", "p"); err == nil {
			t.Error("a connection came about over a blocked direction")
		}
		n.Unblock("a", "b")
		hear(t, b, "held", time.Second)
		a.Close()
		if _, err := b.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("after the end: %v", err)
		}
	})
}

func TestHostVanishes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := new(memnet.Network)
		a, b := connected(t, n)
		host := n.Host("b")
		host.Vanish()
		if _, err := a.Write([]byte("to nobody")); err != nil {
			t.Errorf("the other end knows at once: %v", err)
		}
		hearNothing(t, a)
		if _, err := b.Read(make([]byte, 1)); err == nil {
			t.Error("the end that vanished still reads")
		}
		if _, err := n.Host("a").Dial(context.Background(), "b", "p"); err == nil {
			t.Error("connected to nobody")
		}
		n.Host("b")
		a.SetReadDeadline(time.Time{})
		if _, err := a.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("a connection that the new host does not know: %v", err)
		}
	})
}

func TestDelaysKeepTheOrderOfAConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := new(memnet.Network)
		a, b := connected(t, n)
		delays := []time.Duration{300 * time.Millisecond, 0}
		n.Delay(func(_, _ string, bytes int) time.Duration {
			if bytes == 0 {
				return 0
			}
			d := delays[0]
			delays = delays[1:]
			return d
		})
		began := time.Now()
		io.WriteString(a, "first")
		io.WriteString(a, "second")
		a.Close()
		got, err := io.ReadAll(b)
		if string(got) != "firstsecond" || err != nil {
			t.Errorf("read %q, %v", got, err)
		}
		if took := time.Since(began); took != 300*time.Millisecond {
			t.Errorf("it took %v", took)
		}
	})
}

func TestConnectionsBreakAndWritersWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := new(memnet.Network)
		a, b := connected(t, n)
		a.SetWriteDeadline(time.Now().Add(time.Second))
		sent, err := a.Write(make([]byte, 1<<20))
		if !errors.Is(err, os.ErrDeadlineExceeded) || sent == 0 || sent == 1<<20 {
			t.Errorf("%d bytes went into a connection that nobody reads: %v", sent, err)
		}
		a.SetWriteDeadline(time.Time{})
		read := make(chan struct{})
		go func() { // ends when it has read that
			defer close(read)
			io.CopyN(io.Discard, b, int64(sent))
		}()
		if _, err := a.Write([]byte("more")); err != nil {
			t.Error(err)
		}
		<-read
		hear(t, b, "more", time.Second)
		n.Reset("b", "a")
		if _, err := a.Write([]byte("x")); err == nil {
			t.Error("wrote to a broken connection")
		}
		if _, err := b.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
			t.Errorf("read from a broken connection: %v", err)
		}
	})
}
