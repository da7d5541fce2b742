package node

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/raftstore/rpc"
)

var self = identity{ClusterID: "cluster", ServerID: "s1-x"}

// host serves one end of a pipe as acceptPeers does, and returns the other end.
func host(t *testing.T, handle rpc.Handler) (peer net.Conn, ended <-chan error) {
	peer, served := net.Pipe()
	why := make(chan error, 1)
	var running sync.WaitGroup
	running.Go(func() {
		why <- rpc.Serve(context.Background(), &checked{Conn: served, self: self}, handle)
	})
	t.Cleanup(func() {
		peer.Close()
		running.Wait()
	})
	return peer, why
}

func greeting(cluster, id string) []byte { return appendText(appendText(nil, cluster), id) }

var echoes = rpc.Handler{
	Answer: func(_ context.Context, _ byte, payload []byte) (byte, []byte) { return answerOK, payload },
	AtOnce: func(byte, []byte) (byte, []byte, bool) { return 0, nil, false },
}

// TestGreetings says wrong things first, or slowly. Each ends the connection, in time and with a reason.
func TestGreetings(t *testing.T) {
	for what, c := range map[string]struct {
		says    []byte
		answer  byte
		because string
	}{
		"another cluster":      {greeting("other", ""), otherCluster, "belongs to another cluster"},
		"no cluster":           {greeting("", ""), otherCluster, "names no cluster"},
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

// An heir says how long ago it was recovered. When it answers late, it was as much later, at most.
func TestHeirTellsHowLongAgo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := Succession{Cluster: "cluster", Heir: "heir", By: "s2-y", At: time.Unix(1e9, 0).UTC()}
		peer, heir := net.Pipe()
		defer peer.Close()
		defer heir.Close()
		go func() { // ends with the connection
			io.ReadFull(heir, make([]byte, len(greeting("cluster", "s2-y"))))
			<-time.After(3 * time.Second)
			b := bequest{s, time.Hour}
			heir.Write(b.append([]byte{heirsServer}))
		}()
		var stranger *StrangerError
		if err := beWelcome(peer, "there", "cluster", "s2-y"); !errors.As(err, &stranger) || stranger.Succession == nil || *stranger.Succession != s {
			t.Fatalf("told: %v", err)
		}
		if want := (ago{time.Hour, time.Hour + 3*time.Second}); stranger.ago != want || !stranger.heard.Equal(time.Now()) {
			t.Errorf("it was %v ago at %s", stranger.ago, stranger.heard)
		}
	})
}

// An answer that comes after this process was suspended is about another moment than the question was.
func TestLateAnswerDoesNotCount(t *testing.T) {
	for _, c := range []struct {
		late time.Duration
		want word
	}{{0, wasInTouch}, {time.Minute, unknownWord}} {
		i := inquiry{node: &Node{id: self}, words: make(map[string]word), began: time.Now().Add(-c.late)}
		if i.take(hello{ID: "s3-z", Word: wasInTouch}); i.words["s3-z"] != c.want {
			t.Errorf("after %s: %q", c.late, i.words["s3-z"])
		}
	}
	i := inquiry{node: &Node{id: self}, words: map[string]word{"s3-z": wasNot}, began: time.Now()}
	if i.take(hello{ID: "s3-z"}); len(i.words) != 0 {
		t.Errorf("one who does not know any more: %v", i.words)
	}
}
