package node

import (
	"testing"
	"time"

	"github.com/barque/barque/raftstore/rpc"
)

// TestEar: a leader that was silent for long and came back is given more time, until that is forgotten.
func TestEar(t *testing.T) {
	const window = 100
	var e ear
	e.attend("a")
	heard := sound{life: true, led: true}
	hush := func(ticks int) {
		for range ticks {
			e.tick(sound{led: true}, window)
		}
	}
	expect := func(what string, limit int, misses bool) {
		t.Helper()
		if got := e.limit(); got != limit {
			t.Errorf("%s: the limit is %d ticks, want %d", what, got, limit)
		}
		if got := e.misses("a"); got != misses {
			t.Errorf("%s: it is missed: %v", what, got)
		}
	}
	expect("at first", silenceTicks, false)
	hush(2)
	e.tick(heard, window)
	expect("after what is normal", silenceTicks, false)
	hush(4)
	expect("after some silence", silenceTicks, true)
	if e.misses("b") {
		t.Error("somebody else is missed")
	}
	e.tick(heard, window)
	expect("when it is back", 5*allowance, false)
	e.attend("b") // the next leader is on the same machines
	expect("another leader", 5*allowance, false)
	for range window {
		e.tick(heard, window)
	}
	expect("a window later", 5*allowance, false)
	for range window {
		e.tick(heard, window)
	}
	expect("two windows later", silenceTicks, false)
	e.attend("a")
	// Nor does a server agree sooner with one who asks: what is normal here must not depose the leader.
	hush(4)
	e.tick(heard, window)
	hush(12)
	expect("less than it allows", 5*allowance, false)
	hush(1)
	expect("nearly what it allows", 5*allowance, true)
	// Raft has given the leader up in the meantime: it was not slow, whoever was at fault.
	e.tick(sound{}, window)
	e.tick(heard, window)
	expect("when it leads again", 5*allowance, false)
	// One that was deposed, and heard of after that, was slow as well.
	e.wronged(9)
	expect("after a wrong election", 10*allowance, false)
	e.wronged(6)
	expect("after a shorter one", 10*allowance, false)
}

// TestAVoteIsNoSignOfTheLeader: Raft notes a contact when it gives somebody its vote, too.
func TestAVoteIsNoSignOfTheLeader(t *testing.T) {
	var contact time.Time
	led := true
	s := signsOfLife{contact: func() time.Time { return contact }, leads: func() bool { return led }, client: rpc.NewClient(rpc.ClientConfig{})}
	expect := func(what string, life bool) {
		t.Helper()
		if h := s.heard(); h != (sound{life: life, led: led}) {
			t.Errorf("%s: %+v", what, h)
		}
	}
	expect("at first", false)
	contact = contact.Add(time.Second)
	expect("a word of the leader", true)
	expect("nothing new", false)
	contact, led = contact.Add(time.Second), false // as Raft does it
	expect("a vote", false)
	led = true
	expect("the leader is known again, and has said nothing since", false)
	contact = contact.Add(time.Second)
	expect("another word", true)
}
