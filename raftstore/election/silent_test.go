package election

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/barque/barque/raftstore/group"
	"github.com/barque/barque/raftstore/rpc"
)

// TestSilence: a leader that was silent for long and came back is given more time, until that is
// forgotten.
func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newSilence(group.Timeouts{Heartbeat: 10 * time.Second, Silence: 500 * time.Millisecond})
		e.follow("a")
		heard := func() {
			t.Helper()
			if e.tick("a", true) {
				t.Error("it is time to ask for a leader that is heard")
			}
		}
		hush := func(ticks int) {
			t.Helper()
			for range ticks {
				silent := e.ticks + 1
				if asks := e.tick("a", false); asks != (silent >= e.limit() && silent <= e.limit()+lateTicks) {
					t.Errorf("after %d ticks, where %d are allowed, it is time to ask: %v", silent, e.limit(), asks)
				}
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
		heard()
		expect("after what is normal", group.SilenceTicks, false)
		hush(4)
		expect("after some silence", group.SilenceTicks, true)
		if e.misses("b") {
			t.Error("somebody else is missed")
		}
		heard()
		expect("when it is back", 5*allowance, false)
		e.follow("b") // the next leader is on the same machines
		expect("another leader", 5*allowance, false)
		<-time.After(allowanceLasts / 2)
		hush(3)
		heard()
		<-time.After(allowanceLasts/2 - 1)
		expect("for some minutes", 5*allowance, false)
		<-time.After(1)
		// this server has led meanwhile, say, and there was no leader to listen to
		expect("after them", 4*allowance, false)
		<-time.After(allowanceLasts / 2)
		expect("when all is forgotten", group.SilenceTicks, false)
		e.follow("a")
		// Nor does a server agree sooner with one that asks: a normal pause here must not depose
		// the leader.
		hush(4)
		heard()
		hush(12)
		expect("less than it allows", 5*allowance, false)
		hush(1)
		expect("nearly what it allows", 5*allowance, true)
		// Raft has given the leader up in the meantime: it was not slow.
		if e.tick("", false) {
			t.Error("it is time to ask for a leader that nobody knows")
		}
		heard()
		expect("when it leads again", 5*allowance, false)
		// Nor is it slow when it is heard after so long: this server was cut off.
		hush(5*allowance + lateTicks + 1)
		heard()
		expect("after a cut", 5*allowance, false)
		// One that was deposed, and heard of after that, was slow as well.
		e.deposed(9)
		expect("after a wrong election", 10*allowance, false)
		e.deposed(6)
		expect("after a shorter one", 10*allowance, false)
	})
}

// TestSilenceAllowsNoMoreThanRaft: with the product's times Raft calls an election after 2 s at
// the latest.
func TestSilenceAllowsNoMoreThanRaft(t *testing.T) {
	times := group.Timeouts{}.WithDefaults()
	e := newSilence(times)
	for _, silent := range []int{6, 400} {
		e.deposed(silent)
		if allowed := time.Duration(e.limit()) * times.Tick(); allowed != 2*times.Heartbeat {
			t.Errorf("after a silence of %d ticks %v are allowed", silent, allowed)
		}
	}
}

// TestWhyTheLeaderBeforeWentIsKnownByItsSilence: the leader before counts as deposed for its
// silence if it was silent for some time, but not for so long that this server must have been
// partitioned.
func TestWhyTheLeaderBeforeWentIsKnownByItsSilence(t *testing.T) {
	for silent, want := range map[int]int{
		0: 0, shareTicks - 1: 0, shareTicks: shareTicks, group.SilenceTicks: group.SilenceTicks,
		2 * group.SilenceTicks: 2 * group.SilenceTicks, 2*group.SilenceTicks + 1: 0, 100: 0,
	} {
		e := newSilence(group.Timeouts{}.WithDefaults())
		e.follow("a")
		for range silent {
			e.tick("a", false)
		}
		if got := e.follow("b"); got != want {
			t.Errorf("after %d ticks: %d, want %d", silent, got, want)
		}
		if got := e.follow("c"); got != 0 {
			t.Errorf("the next leader, which has just come, was silent for %d ticks", got)
		}
	}
}

// follower is a Raft whose state a test sets.
type follower struct {
	Raft
	leader  raft.ServerID
	contact time.Time
}

func (f *follower) State() raft.RaftState  { return raft.Follower }
func (f *follower) LastContact() time.Time { return f.contact }
func (f *follower) LeaderWithID() (raft.ServerAddress, raft.ServerID) {
	return "somewhere", f.leader
}

// noLinks has no link to any server.
type noLinks struct{ Peers }

func (noLinks) At(string) *rpc.Client { return rpc.NewClient(rpc.ClientConfig{}) }

// TestAVoteIsNoSignOfTheLeader: Raft notes a contact when it gives a vote, too.
func TestAVoteIsNoSignOfTheLeader(t *testing.T) {
	r := &follower{leader: "a"}
	e := &Elector{raft: r, peers: noLinks{}, silence: newSilence(group.Timeouts{}.WithDefaults())}
	var s signs
	expect := func(what string, life bool) {
		t.Helper()
		if leader, got := e.listen(&s); leader != r.leader || got != life {
			t.Errorf("%s: leader %q, life %v", what, leader, got)
		}
	}
	expect("at first", false)
	r.contact = r.contact.Add(time.Second)
	expect("a word of the leader", true)
	expect("nothing new", false)
	r.contact, r.leader = r.contact.Add(time.Second), "" // as Raft does it
	expect("a vote", false)
	r.leader = "a"
	expect("the leader is known again, and has said nothing since", false)
	r.contact = r.contact.Add(time.Second)
	expect("another word", true)
}
