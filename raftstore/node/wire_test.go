package node

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

var self = identity{ClusterID: "cluster", ServerID: "s1-x"}

// host serves one end of a pipe as acceptPeers does, and returns the other end.
func host(t *testing.T, handle handler) (peer net.Conn, ended <-chan error) {
	peer, served := net.Pipe()
	why := make(chan error, 1)
	var running sync.WaitGroup
	running.Go(func() {
		why <- serve(context.Background(), &checked{Conn: served, self: self}, handle)
	})
	t.Cleanup(func() {
		peer.Close()
		running.Wait()
	})
	return peer, why
}

func greeting(cluster, id string) []byte { return appendText(appendText(nil, cluster), id) }

// enter lets the peer in.
func enter(t *testing.T, peer net.Conn) {
	t.Helper()
	if err := beWelcome(peer, "there", self.ClusterID, ""); err != nil {
		t.Fatal(err)
	}
}

func encoded(f frame) []byte {
	var b bytes.Buffer
	w := bufio.NewWriter(&b)
	writeFrame(w, f)
	w.Flush()
	return b.Bytes()
}

var echoes = handler{
	answer: func(_ context.Context, _ byte, payload []byte) (byte, []byte) { return answerOK, payload },
	atOnce: func(kind byte, _ []byte) (byte, []byte, bool) { return answerOK, nil, kind == callPing },
}

// TestGreetings says wrong things first, or slowly. Each ends the connection, in time and with a reason.
func TestGreetings(t *testing.T) {
	for what, c := range map[string]struct {
		says    []byte
		answer  byte
		because string
	}{
		"another cluster":      {greeting("other", ""), otherCluster, "belongs to cluster"},
		"no cluster":           {greeting("", ""), otherCluster, "belongs to cluster"},
		"another server":       {greeting("cluster", "s2-y"), otherServer, "looks for server"},
		"a name without end":   {[]byte{0xff, 0xff, 'x'}, 0xff, "the limit is"},
		"a name that is short": {greeting("cluster", "s1-x")[:5], 0xff, "timeout"},
		"nothing":              {nil, 0xff, "timeout"},
		"another protocol":     {[]byte("GET / HTTP/1.1\r\n\r\n"), 0xff, "the limit is"},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				peer, ended := host(t, echoes)
				began := time.Now()
				go peer.Write(c.says) // ends with the connection
				answer := []byte{0xff}
				io.ReadFull(peer, answer)
				io.Copy(io.Discard, peer)
				err := <-ended
				if answer[0] != c.answer || err == nil || !strings.Contains(err.Error(), c.because) {
					t.Errorf("answered %d, ended by %v", answer[0], err)
				}
				if took := time.Since(began); took > helloTimeout {
					t.Errorf("it took %v", took)
				}
			})
		})
	}
}

// TestDrippingGreeting says the right thing, too slowly: the time is for all of it.
func TestDrippingGreeting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		peer, ended := host(t, echoes)
		began := time.Now()
		for _, b := range greeting("cluster", "s1-x") {
			peer.Write([]byte{b})
			<-time.After(time.Second)
		}
		if err := <-ended; err == nil || time.Since(began) > time.Minute {
			t.Errorf("after %v: %v", time.Since(began), err)
		}
	})
}

// TestLinkMayBeIdle keeps a link without a word for a day. It still answers.
func TestLinkMayBeIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		peer, _ := host(t, echoes)
		enter(t, peer)
		for range 2 {
			<-time.After(24 * time.Hour)
			if _, err := peer.Write(encoded(frame{call: 7, kind: callStatus, payload: []byte("hello")})); err != nil {
				t.Fatal(err)
			}
			if f, err := readFrame(peer); err != nil || f.call != 7 || string(f.payload) != "hello" {
				t.Fatalf("%+v, %v", f, err)
			}
		}
	})
}

// TestUnfinishedFrame begins a message and does not go on.
func TestUnfinishedFrame(t *testing.T) {
	whole := encoded(frame{call: 1, kind: callStatus, payload: make([]byte, 1000)})
	for _, n := range []int{1, 3, 4, 12, 13, 14, len(whole) - 1} {
		synctest.Test(t, func(t *testing.T) {
			peer, ended := host(t, echoes)
			enter(t, peer)
			<-time.After(time.Hour)
			began := time.Now()
			peer.Write(whole[:n])
			err := <-ended
			var timeout net.Error
			if !errors.As(err, &timeout) || !timeout.Timeout() || time.Since(began) != frameStall {
				t.Errorf("%d bytes: after %v: %v", n, time.Since(began), err)
			}
		})
	}
}

// TestWrongLengths announces more than is allowed, less than there must be, or much and sends nothing.
func TestWrongLengths(t *testing.T) {
	for _, n := range []uint32{0, 1, frameHead - 1, maxFrame + 1, 1 << 31, 1<<32 - 1} {
		peer, ended := host(t, echoes)
		enter(t, peer)
		go peer.Write(append(binary.LittleEndian.AppendUint32(nil, n), make([]byte, 60)...)) // ends with the connection
		if err := <-ended; err == nil || !strings.Contains(err.Error(), "the limit is") {
			t.Errorf("length %d: %v", n, err)
		}
	}
	head := append(binary.LittleEndian.AppendUint32(nil, maxFrame), make([]byte, frameHead)...)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 100 {
		if _, err := readFrame(bytes.NewReader(head)); err == nil {
			t.Fatal("a frame without its bytes")
		}
	}
	runtime.ReadMemStats(&after)
	if got := after.TotalAlloc - before.TotalAlloc; got > 100*2*trustedBytes {
		t.Errorf("%d bytes were taken for 100 lengths", got)
	}
}

// TestFramesOfAllSizes reads back what was written, around the sizes at which memory is taken.
func TestFramesOfAllSizes(t *testing.T) {
	for _, n := range []int{0, 1, trustedBytes - 1, trustedBytes, trustedBytes + 1, 2*trustedBytes + 1, 5 * trustedBytes, maxFrame - frameHead} {
		payload := make([]byte, n)
		for i := range payload {
			payload[i] = byte(i * 31)
		}
		f, err := readFrame(bytes.NewReader(encoded(frame{call: 3, kind: callPropose, payload: payload})))
		if err != nil || f.call != 3 || f.kind != callPropose || !bytes.Equal(f.payload, payload) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}

// TestManyCalls asks for more than one connection may have open. The peer waits, and all is answered.
func TestManyCalls(t *testing.T) {
	for what, c := range map[string]struct{ calls, size, open int }{
		"small ones": {3 * maxCalls, 0, maxCalls},
		"large ones": {20, maxFrame / 2, 2 * maxCallBytes / maxFrame},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				open, release := 0, make(chan struct{})
				peer, _ := host(t, handler{atOnce: echoes.atOnce, answer: func(ctx context.Context, _ byte, _ []byte) (byte, []byte) {
					mu.Lock()
					open++
					mu.Unlock()
					select {
					case <-release:
					case <-ctx.Done():
					}
					return answerOK, nil
				}})
				enter(t, peer)
				call := encoded(frame{call: 1, kind: callStatus, payload: make([]byte, c.size)})
				go func() { // ends when all is sent, or with the connection
					for range c.calls {
						if _, err := peer.Write(call); err != nil {
							return
						}
					}
				}()
				synctest.Wait()
				mu.Lock()
				if open > c.open || open < c.open-1 {
					t.Errorf("%d calls are open, want %d", open, c.open)
				}
				mu.Unlock()
				if n := runtime.NumGoroutine(); n > c.open+100 {
					t.Errorf("%d goroutines", n)
				}
				close(release)
				for i := range c.calls {
					if _, err := readFrame(peer); err != nil {
						t.Fatalf("answer %d: %v", i, err)
					}
				}
			})
		})
	}
}

// TestPeerThatReadsNothing asks and does not take the answers.
func TestPeerThatReadsNothing(t *testing.T) {
	for _, kind := range []byte{callStatus, callPing} {
		synctest.Test(t, func(t *testing.T) {
			peer, ended := host(t, echoes)
			enter(t, peer)
			call := encoded(frame{call: 1, kind: kind, payload: make([]byte, 64<<10)})
			began := time.Now()
			for {
				if _, err := peer.Write(call); err != nil {
					break
				}
			}
			if err := <-ended; err == nil || time.Since(began) > 3*frameStall {
				t.Errorf("kind %d: after %v: %v", kind, time.Since(began), err)
			}
		})
	}
}

// TestTooLargeToSend does not spoil a link with what the peer would not read.
func TestTooLargeToSend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var links sync.WaitGroup
		peer, ended := host(t, handler{atOnce: echoes.atOnce, answer: func(_ context.Context, kind byte, payload []byte) (byte, []byte) {
			if kind == callMembers {
				payload = make([]byte, maxFrame)
			}
			return answerOK, payload
		}})
		enter(t, peer)
		c := &client{
			dial: func(context.Context) (net.Conn, error) { return peer, nil }, running: &links,
			patience: time.Minute, waiting: make(map[uint64]chan frame),
		}
		if _, err := c.call(t.Context(), callPropose, make([]byte, maxFrame)); !errors.Is(err, errFrameTooLarge) || errors.Is(err, errNotSent) {
			t.Errorf("a large call: %v", err)
		}
		if f, err := c.call(t.Context(), callMembers, nil); err != nil || f.kind != answerUnknown {
			t.Errorf("a large answer: %d, %v", f.kind, err)
		}
		if f, err := c.call(t.Context(), callPropose, make([]byte, maxFrame-frameHead)); err != nil || f.kind != answerOK {
			t.Errorf("the largest call: %v", err)
		}
		if f, err := c.call(t.Context(), callStatus, []byte("x")); err != nil || string(f.payload) != "x" {
			t.Errorf("afterwards: %v", err)
		}
		c.close()
		links.Wait()
		<-ended
	})
}
