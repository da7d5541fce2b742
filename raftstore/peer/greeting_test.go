package peer

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/rpc"
)

var self = Identity{ClusterID: "cluster", ServerID: "s1-x"}

// host serves one end of a pipe as Peers.Serve does, and returns the other end.
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
	Answer: func(_ context.Context, _ byte, payload []byte) (byte, []byte) { return AnswerOK, payload },
	AtOnce: func(byte, []byte) (byte, []byte, bool) { return 0, nil, false },
}

// TestGreetings says wrong things first, or slowly. Each ends the connection, in time and with a
// reason.
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

// A server of a successor says how it became that; its text for earlier versions is not read.
func TestSuccessorTellsWhoItIs(t *testing.T) {
	s := group.Succession{Cluster: "cluster", Successor: "new", By: "s2-y", At: time.Unix(1e9, 0).UTC()}
	said := appendSuccession([]byte{successor}, &s)
	for what, c := range map[string]struct {
		answer []byte
		want   *group.Succession
	}{
		"a successor":                {said, &s},
		"one that says for how long": {appendText(slices.Clone(said), "3600000000000"), &s},
		"one that says it is this cluster": {
			appendSuccession([]byte{successor}, &group.Succession{Successor: "cluster", By: "s2-y"}), nil},
		"one that says no name":             {appendSuccession([]byte{successor}, &group.Succession{By: "s2-y"}), nil},
		"one that says half of it":          {said[:len(said)-5], nil},
		"another cluster, with the same CA": {appendText([]byte{otherCluster}, "new"), nil},
	} {
		var wrong *WrongServerError
		err := beWelcome(&canned{Reader: bytes.NewReader(c.answer)}, "there", "cluster", "s2-y")
		if err == nil {
			t.Fatalf("%s: let in", what)
		}
		var got *group.Succession
		if errors.As(err, &wrong) {
			got = wrong.Succession
		}
		if (got == nil) != (c.want == nil) || got != nil && *got != *c.want {
			t.Errorf("%s: told %+v, %v", what, got, err)
		}
	}
}

// Servers of versions before this one take a successor for one only when it also says, in a fourth
// text, for how many nanoseconds it has been that.
func TestEarlierVersionsHearOfTheSuccessor(t *testing.T) {
	here, there := net.Pipe()
	defer there.Close()
	server := &checked{Conn: here, self: Identity{ClusterID: "new", ServerID: "s2-y"},
		succeeded: func(string) *group.Succession {
			return &group.Succession{Cluster: "old", Successor: "new", By: "s2-y", At: time.Unix(1e9, 0)}
		}}
	go func() {
		defer here.Close()
		_, _ = server.Read(make([]byte, 1)) // it fails: the other one is of another cluster
	}()
	if _, err := there.Write(appendText(appendText(nil, "old"), "s1-x")); err != nil {
		t.Fatal(err)
	}
	kind := make([]byte, 1)
	if _, err := io.ReadFull(there, kind); err != nil || kind[0] != successor {
		t.Fatalf("%v, %v", kind, err)
	}
	var texts []string
	for range 4 {
		text, err := readText(there)
		if err != nil {
			t.Fatalf("after %q: %v", texts, err)
		}
		texts = append(texts, text)
	}
	if age, err := strconv.ParseInt(texts[3], 10, 64); err != nil || age < 0 {
		t.Errorf("%q: %v", texts, err)
	}
}
