package rpc

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Kinds of requests and answers in these tests.
const (
	ask     byte = 1 // is answered with its own payload
	swell   byte = 2 // is answered with too much
	fine    byte = 128
	refused byte = 129
)

// host serves one end of a pipe, and returns the other end.
func host(t *testing.T, handle Handler) (peer net.Conn, ended <-chan error) {
	peer, served := net.Pipe()
	why := make(chan error, 1)
	var running sync.WaitGroup
	running.Go(func() {
		why <- Serve(context.Background(), served, handle)
	})
	t.Cleanup(func() {
		peer.Close()
		running.Wait()
	})
	return peer, why
}

func encoded(f Frame) []byte {
	var b bytes.Buffer
	w := bufio.NewWriter(&b)
	writeFrame(w, f)
	w.Flush()
	return b.Bytes()
}

var echoes = Handler{
	Answer:   func(_ context.Context, _ byte, payload []byte) (byte, []byte) { return fine, payload },
	AtOnce:   func(kind byte, _ []byte) (byte, []byte, bool) { return fine, nil, kind == Ping },
	TooLarge: func() (byte, []byte) { return refused, nil },
}

// TestLinkMayBeIdle keeps a link without a word for a day. It still answers.
func TestLinkMayBeIdle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		peer, _ := host(t, echoes)
		for range 2 {
			<-time.After(24 * time.Hour)
			if _, err := peer.Write(encoded(Frame{Call: 7, Kind: ask, Payload: []byte("hello")})); err != nil {
				t.Fatal(err)
			}
			if f, err := readFrame(peer); err != nil || f.Call != 7 || string(f.Payload) != "hello" {
				t.Fatalf("%+v, %v", f, err)
			}
		}
	})
}

// TestUnfinishedFrame begins a message and does not go on.
func TestUnfinishedFrame(t *testing.T) {
	whole := encoded(Frame{Call: 1, Kind: ask, Payload: make([]byte, 1000)})
	for _, n := range []int{1, 3, 4, 12, 13, 14, len(whole) - 1} {
		synctest.Test(t, func(t *testing.T) {
			peer, ended := host(t, echoes)
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

// TestWrongLengths announces more than is allowed, less than there must be, or much and sends
// nothing.
func TestWrongLengths(t *testing.T) {
	for _, n := range []uint32{0, 1, frameHead - 1, maxFrame + 1, 1 << 31, 1<<32 - 1} {
		peer, ended := host(t, echoes)
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

// TestFramesOfAllSizes reads written frames back, around the sizes at which memory is taken.
func TestFramesOfAllSizes(t *testing.T) {
	for _, n := range []int{0, 1, trustedBytes - 1, trustedBytes, trustedBytes + 1, 2*trustedBytes + 1,
		5 * trustedBytes, MaxPayload} {
		payload := make([]byte, n)
		for i := range payload {
			payload[i] = byte(i * 31)
		}
		f, err := readFrame(bytes.NewReader(encoded(Frame{Call: 3, Kind: ask, Payload: payload})))
		if err != nil || f.Call != 3 || f.Kind != ask || !bytes.Equal(f.Payload, payload) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}

// TestManyCalls asks for more than one connection may have open. The peer waits, and all is
// answered.
func TestManyCalls(t *testing.T) {
	for what, c := range map[string]struct{ calls, size, open int }{
		"small ones": {3 * maxCalls, 0, maxCalls},
		"large ones": {20, maxFrame / 2, 2 * maxCallBytes / maxFrame},
	} {
		t.Run(what, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var mu sync.Mutex
				open, release := 0, make(chan struct{})
				peer, _ := host(t,
					Handler{AtOnce: echoes.AtOnce, TooLarge: echoes.TooLarge,
						Answer: func(ctx context.Context, _ byte, _ []byte) (byte, []byte) {
							mu.Lock()
							open++
							mu.Unlock()
							select {
							case <-release:
							case <-ctx.Done():
							}
							return fine, nil
						}})
				call := encoded(Frame{Call: 1, Kind: ask, Payload: make([]byte, c.size)})
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
	for _, kind := range []byte{ask, Ping} {
		synctest.Test(t, func(t *testing.T) {
			peer, ended := host(t, echoes)
			call := encoded(Frame{Call: 1, Kind: kind, Payload: make([]byte, 64<<10)})
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

// TestTooLargeToSend does not spoil a link with a frame that the peer would not read.
func TestTooLargeToSend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var links sync.WaitGroup
		peer, ended := host(t,
			Handler{AtOnce: echoes.AtOnce, TooLarge: echoes.TooLarge,
				Answer: func(_ context.Context, kind byte, payload []byte) (byte, []byte) {
					if kind == swell {
						payload = make([]byte, maxFrame)
					}
					return fine, payload
				}})
		c := NewClient(ClientConfig{
			Dial: func(context.Context) (net.Conn, error) { return peer, nil }, Running: &links, Patience: time.Minute,
		})
		if _, err := c.Call(t.Context(), ask, make([]byte, maxFrame)); !errors.Is(err, ErrTooLarge) ||
			errors.Is(err, ErrNotSent) {
			t.Errorf("a large call: %v", err)
		}
		if f, err := c.Call(t.Context(), swell, nil); err != nil || f.Kind != refused {
			t.Errorf("a large answer: %d, %v", f.Kind, err)
		}
		if f, err := c.Call(t.Context(), ask, make([]byte, MaxPayload)); err != nil || f.Kind != fine {
			t.Errorf("the largest call: %v", err)
		}
		if f, err := c.Call(t.Context(), ask, []byte("x")); err != nil || string(f.Payload) != "x" {
			t.Errorf("afterwards: %v", err)
		}
		c.Close()
		links.Wait()
		<-ended
	})
}
