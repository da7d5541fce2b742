package election

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/rpc"
)

// TestDetector: a leader that was silent for long and came back is given more time, until that is
// forgotten.
func TestDetector(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newDetector(group.Timeouts{Heartbeat: 10 * time.Second, Silence: 500 * time.Millisecond})
		e.attend("a")
		heard := sample{life: true, led: true}
		hush := func(ticks int) {
			for range ticks {
				e.sample(sample{led: true})
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
		expect("at first", group.SilenceTicks, false)
		hush(2)
		e.sample(heard)
		expect("after what is normal", group.SilenceTicks, false)
		hush(4)
		expect("after some silence", group.SilenceTicks, true)
		if e.misses("b") {
			t.Error("somebody else is missed")
		}
		e.sample(heard)
		expect("when it is back", 5*allowance, false)
		e.attend("b") // the next leader is on the same machines
		expect("another leader", 5*allowance, false)
		<-time.After(allowanceLasts / 2)
		hush(3)
		e.sample(heard)
		<-time.After(allowanceLasts/2 - 1)
		expect("for some minutes", 5*allowance, false)
		<-time.After(1)
		expect("after them", 4*allowance, false) // this server has led meanwhile, say, and there was nobody to listen to
		<-time.After(allowanceLasts / 2)
		expect("when all is forgotten", group.SilenceTicks, false)
		e.attend("a")
		// Nor does a server agree sooner with one who asks: what is normal here must not depose the
		// leader.
		hush(4)
		e.sample(heard)
		hush(12)
		expect("less than it allows", 5*allowance, false)
		hush(1)
		expect("nearly what it allows", 5*allowance, true)
		// Raft has given the leader up in the meantime: it was not slow, whoever was at fault.
		e.sample(sample{})
		e.sample(heard)
		expect("when it leads again", 5*allowance, false)
		// Nor is it slow when it is heard after so long: this server was cut off.
		hush(5*allowance + lateTicks + 1)
		e.sample(heard)
		expect("after a cut", 5*allowance, false)
		// One that was deposed, and heard of after that, was slow as well.
		e.deposed(9)
		expect("after a wrong election", 10*allowance, false)
		e.deposed(6)
		expect("after a shorter one", 10*allowance, false)
	})
}

// TestTheDetectorAllowsNoMoreThanRaft: with the product's times Raft calls an election after 2 s at
// the latest.
func TestTheDetectorAllowsNoMoreThanRaft(t *testing.T) {
	times := group.Timeouts{}.WithDefaults()
	e := newDetector(times)
	for _, silent := range []int{6, 400} {
		e.deposed(silent)
		if allowed := time.Duration(e.limit()) * times.Tick(); allowed != 2*times.Heartbeat {
			t.Errorf("after a silence of %d ticks %v are allowed", silent, allowed)
		}
	}
}

// TestAVoteIsNoSignOfTheLeader: Raft notes a contact when it gives somebody its vote, too.
func TestAVoteIsNoSignOfTheLeader(t *testing.T) {
	var contact time.Time
	led := true
	s := signsOfLife{contact: func() time.Time { return contact }, leads: func() bool { return led }, client: rpc.NewClient(rpc.ClientConfig{})}
	expect := func(what string, life bool) {
		t.Helper()
		if h := s.heard(); h != (sample{life: life, led: led}) {
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
