package peer

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/raftstore/group"
)

// noSuccessor is a server whose cluster is the successor of no other one.
type noSuccessor struct{ Server }

func (noSuccessor) Succeeded(string) *group.Succession { return nil }

// TestUnknownPeersAreLoggedOnce: a server that a recovery shut out tries every two seconds, for
// ever. That is logged now and then; other ends of connections always.
func TestUnknownPeersAreLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p := New(Options{Logger: slog.New(slog.NewTextHandler(&out, nil))}, noSuccessor{})
		told := func() int {
			defer out.Reset()
			return strings.Count(out.String(), "\n")
		}
		from := func(port int) net.Addr { return &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: port} }
		greeted := func(cluster string) error {
			ours, theirs := net.Pipe()
			defer ours.Close()
			go func() { // ends when the pipe is closed
				theirs.Write(appendText(appendText(nil, cluster), ""))
				io.Copy(io.Discard, theirs)
			}()
			_, err := (&checked{Conn: ours, self: Identity{ClusterID: "new", ServerID: "s1"}}).Read(make([]byte, 1))
			return err
		}
		for i := range 100 {
			p.noteEnd(from(40000+i), greeted("old"))
			time.Sleep(contactEvery)
		}
		if lines := told(); lines != 1 {
			t.Errorf("100 connections of an unknown peer: %d lines", lines)
		}
		p.noteEnd(from(1), greeted("another"))
		for range 3 {
			p.noteEnd(from(1), errors.New("reset"))
		}
		if lines := told(); lines != 4 {
			t.Errorf("%d lines; want 4", lines)
		}
		for range 5 {
			p.noteEnd(from(1), greeted("old"))
			p.noteEnd(from(1), greeted("another"))
		}
		if lines := told(); lines != 0 {
			t.Errorf("peers of two clusters at one address: %d lines", lines)
		}
		time.Sleep(foreignAgain)
		p.noteEnd(from(2), greeted("another"))
		if lines := told(); lines != 1 {
			t.Errorf("after a while: %d lines", lines)
		}
	})
}

// TestUnknownPeersAreLoggedRarely: a peer that stays for days is logged once, and then now and
// then.
func TestUnknownPeersAreLoggedRarely(t *testing.T) {
	var f otherClusters
	now := time.Unix(0, 0)
	for _, c := range []struct {
		after   time.Duration
		addr    string
		cluster string
		want    bool
	}{
		{0, "a", "x", true}, {2 * time.Second, "a", "x", false}, {0, "b", "x", true}, {time.Minute, "a", "x", false},
		{0, "a", "y", true}, {foreignAgain, "a", "y", true}, {time.Second, "a", "y", false},
	} {
		now = now.Add(c.after)
		if got := f.note(c.addr, c.cluster, now); got != c.want {
			t.Errorf("at %v: %s of %s is told: %v", now.UTC(), c.addr, c.cluster, got)
		}
	}
	if all := f.clusters(); len(all) != 2 || all["a"] != "y" || all["b"] != "x" {
		t.Errorf("met %v", all)
	}
	f.forget()
	if !f.note("a", "y", now) {
		t.Error("what was forgotten is not told")
	}
}

// TestSuccessorIsNoUnknownPeer: this server itself says that it is superseded; a server of a third
// cluster is logged.
func TestSuccessorIsNoUnknownPeer(t *testing.T) {
	var out bytes.Buffer
	p := New(Options{Logger: slog.New(slog.NewTextHandler(&out, nil))}, noSuccessor{})
	told := &WrongServerError{Address: "s1:6444", Cluster: "new",
		Succession: &group.Succession{Cluster: "old", Successor: "new", By: "s1.x"}}
	p.noteRefusal("s1:6444", fmt.Errorf("connect: %w", told))
	if met := p.Foreign(); len(met) > 0 || out.Len() > 0 {
		t.Errorf("met %v, told\n%s", met, out.String())
	}
	p.noteRefusal("s2:6444", fmt.Errorf("connect: %w", &WrongServerError{Address: "s2:6444", Cluster: "third"}))
	if met := p.Foreign(); len(met) != 1 || met["s2:6444"] != "third" || !strings.Contains(out.String(), "its=third") {
		t.Errorf("met %v, told\n%s", met, out.String())
	}
}
