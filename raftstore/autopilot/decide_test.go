package autopilot

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/raftstore/group"
)

var policy = Policy{PromoteAfter: time.Second, MaxLag: 64, CleanAfter: time.Hour, MinVoters: 3,
	DropAfter: 10 * time.Minute}

// three voters that are well, of which the first leads.
func three() []Server {
	return []Server{voter("a", true), voter("b", false), voter("c", false)}
}

func voter(id string, leads bool) Server {
	return Server{ID: id, Name: id, Voter: true, Leader: leads, Answers: true, Stable: time.Hour}
}

func newcomer(id string) Server {
	return Server{ID: id, Name: id, Answers: true, Stable: time.Minute}
}

func gone(id string, silent time.Duration) Server {
	return Server{ID: id, Name: id, Voter: true, Silent: silent}
}

func with(s Server, change func(*Server)) Server {
	change(&s)
	return s
}

func TestDecide(t *testing.T) {
	for name, c := range map[string]struct {
		servers []Server
		want    string // kind and server; empty for nothing
		blocked string // part of why, for server c
	}{
		"all is well":        {three(), "", ""},
		"a newcomer is well": {append(three(), newcomer("d")), "promote d", ""},
		"it is not stable yet": {
			append(three(), with(newcomer("d"), func(s *Server) { s.Stable = 900 * time.Millisecond })), "", ""},
		"it does not answer": {append(three(), with(newcomer("d"), func(s *Server) { s.Answers = false })),
			"", ""},
		"it is in quarantine": {
			append(three(), with(newcomer("d"), func(s *Server) { s.Ill = "in quarantine" })), "", ""},
		"it is behind": {append(three(), with(newcomer("d"), func(s *Server) { s.Lag = 65 })), "", ""},
		"a voter does not reach it": {
			append(three(), with(newcomer("d"), func(s *Server) { s.Apart = []string{"b does not reach d"} })), "", ""},
		"it is to stay without a vote": {
			append(three(), with(newcomer("d"), func(s *Server) { s.State = group.Standby })), "", ""},
		"a follower leaves": {[]Server{voter("a", true), voter("b", false), with(voter("c", false), leaves)},
			"demote c", ""},
		"without a vote": {append(three(), with(newcomer("d"), leaves)), "remove d", ""},
		"the leader leaves": {[]Server{with(voter("a", true), leaves), voter("b", false), voter("c", false)},
			"hand-over b", ""},
		"not to one that is ill": {
			[]Server{with(voter("a", true), leaves),
				with(voter("b", false), func(s *Server) { s.Ill = "its disk hangs" }), voter("c", false),
				voter("d", false)}, "hand-over c", ""},
		"a dead one leaves": {
			[]Server{voter("a", true), voter("b", false), with(gone("c", time.Second), leaves)}, "remove c", ""},
		"it would break the quorum": {
			[]Server{voter("a", true), gone("b", time.Second), with(voter("c", false), leaves)}, "", "only 1 of the 2"},
		"a vote that would be missed": {
			[]Server{voter("a", true), gone("b", time.Second),
				with(voter("c", false), func(s *Server) { s.State = group.Standby })}, "", "only 1 of the 2"},
		"a newcomer helps a departure": {
			[]Server{voter("a", true), gone("b", time.Second), with(voter("c", false), leaves), newcomer("d")},
			"promote d", "only 1 of the 2"},
		"the only one":     {[]Server{with(voter("a", true), leaves)}, "", ""},
		"dead, and needed": {[]Server{voter("a", true), voter("b", false), gone("c", 2*time.Hour)}, "", ""},
		"dead, and replaced": {
			append([]Server{voter("a", true), voter("b", false), gone("c", 2*time.Hour)}, voter("d", false)),
			"expire c", ""},
		"not for long": {
			append([]Server{voter("a", true), voter("b", false), gone("c", time.Minute)}, voter("d", false)), "", ""},
		"dead without a vote": {append(three(), Server{ID: "d", Name: "d", Silent: 10 * time.Minute}),
			"drop d", ""},
		"away without a vote": {append(three(), Server{ID: "d", Name: "d", Silent: 9 * time.Minute}), "", ""},
		"dead, and another one joins": {
			append(three(), Server{ID: "d", Name: "d", Silent: 10 * time.Minute}, newcomer("e")), "promote e", ""},
		"dead, and no quorum answers": {
			[]Server{voter("a", true), gone("b", time.Second), with(voter("c", false), leaves),
				{ID: "d", Silent: time.Hour}}, "drop d", "only 1 of the 2"},
		"another one reaches it": {append(three(), Server{ID: "d", Name: "d", Silent: time.Hour, Reached: "b"}),
			"", ""},
		"and one that votes": {
			append(
				[]Server{voter("a", true), voter("b", false),
					with(gone("c", 2*time.Hour), func(s *Server) { s.Reached = "b" })}, voter("d", false)), "", ""},
		"demoted, and away": {
			append(three(), Server{ID: "d", Name: "d", State: group.Standby, Silent: 30 * time.Minute}), "", ""},
		"demoted, and dead": {
			append(three(), Server{ID: "d", Name: "d", State: group.Standby, Silent: time.Hour}), "expire d", ""},
		"the leader sees no quorum": {
			[]Server{voter("a", true), gone("b", 2*time.Hour), gone("c", 2*time.Hour), gone("d", 2*time.Hour),
				voter("e", false)}, "", ""},
		"one departure at a time": {
			append([]Server{voter("a", true), voter("b", false), with(voter("c", false), leaves), voter("d", false)},
				gone("e", 2*time.Hour)), "demote c", ""},
		"one is blocked, a dead one helps": {
			[]Server{voter("a", true), voter("b", false), with(voter("c", false), leaves), gone("d", 2*time.Hour),
				gone("e", time.Second)},
			"expire d", "only 2 of the 4"},
		"two are blocked, and too few stay": {
			[]Server{voter("a", true), with(voter("b", false), leaves), with(voter("c", false), leaves),
				gone("d", 2*time.Hour), gone("e", time.Second)},
			"", "only 2 of the 4"},
		"one is blocked, none is dead for long": {
			[]Server{voter("a", true), voter("b", false), with(voter("c", false), leaves), gone("d", time.Minute),
				gone("e", time.Second)},
			"", "only 2 of the 4"},
		"a demotion is blocked, a dead one goes": {
			[]Server{voter("a", true), voter("b", false),
				with(voter("c", false), func(s *Server) { s.State = group.Standby }), gone("d", 2*time.Hour),
				gone("e", time.Second)},
			"expire d", "only 2 of the 4"},
	} {
		t.Run(name, func(t *testing.T) {
			step, due, blocked := Decide(c.servers, policy)
			got := ""
			if due {
				got = fmt.Sprintf("%s %s", step.Kind, step.Server.ID)
			}
			if got != c.want {
				t.Errorf("decided %q because %q, want %q", got, step.Why, c.want)
			}
			if c.blocked != "" && !strings.Contains(blocked["c"], c.blocked) {
				t.Errorf("blocked: %v, want %q", blocked, c.blocked)
			}
		})
	}
}

func leaves(s *Server) { s.State = group.Leaving }

func TestNeverCleansWhenTurnedOff(t *testing.T) {
	off := policy
	off.CleanAfter = 0
	servers := append(three(), voter("d", false), gone("e", 1000*time.Hour))
	if step, due, _ := Decide(servers, off); due {
		t.Errorf("decided %+v", step)
	}
}

// TestNoStepBreaksTheQuorum takes groups at random, carries out each decision until there is none,
// and checks after each step that the able voters are still a quorum.
func TestNoStepBreaksTheQuorum(t *testing.T) {
	seed := rand.Uint64()
	rnd := rand.New(rand.NewPCG(seed, 1))
	steps := map[Kind]int{}
	for range 20000 {
		servers := randomGroup(rnd)
		for n := 0; ; n++ {
			voters, able := tally(servers, "")
			quorate := able >= voters/2+1
			step, due, _ := Decide(servers, policy)
			if !due {
				break
			}
			if n > 50 {
				t.Fatalf("seed %d: no end with %+v", seed, servers)
			}
			steps[step.Kind]++
			servers = carryOut(servers, step)
			if voters, able = tally(servers, ""); quorate && able < voters/2+1 {
				t.Fatalf("seed %d: after %s of %s %d of %d voters are able", seed, step.Kind, step.Server.ID, able,
					voters)
			}
			if err := fair(step); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			if stay := staying(servers); step.Kind == Expire && step.Server.Voter && stay < policy.MinVoters {
				t.Fatalf("seed %d: %s is expired, and %d voters stay", seed, step.Server.ID, stay)
			}
		}
	}
	for _, kind := range []Kind{Promote, Demote, HandOver, Remove, Expire, Drop} {
		if steps[kind] < 100 {
			t.Errorf("%d times %s: the groups are no good", steps[kind], kind)
		}
	}
}

// staying counts the voters about which nothing was decided.
func staying(servers []Server) (n int) {
	for _, s := range servers {
		if s.Voter && s.State == group.Regular {
			n++
		}
	}
	return n
}

func fair(step Step) error {
	s := step.Server
	switch {
	case step.Kind == Promote &&
		(!s.able() || s.Lag > policy.MaxLag || len(s.Apart) > 0 || s.Stable < policy.PromoteAfter ||
			s.State != group.Regular):
		return fmt.Errorf("a vote for %+v", s)
	case step.Kind == Expire && (s.Answers || s.Leader):
		return errors.New("expired one that lives")
	case step.Kind == Drop && (s.Voter || s.Answers || s.State != group.Regular || s.Silent < policy.DropAfter):
		return fmt.Errorf("dropped %+v", s)
	case step.Kind == HandOver && !s.able():
		return errors.New("handed over to one that is ill")
	case step.Kind == Remove && s.State != group.Leaving, step.Kind == Demote && s.State == group.Regular:
		return fmt.Errorf("%s of one about which nothing was decided", step.Kind)
	}
	return nil
}

func randomGroup(rnd *rand.Rand) []Server {
	servers := make([]Server, 1+rnd.IntN(6))
	for i := range servers {
		s := Server{ID: string(rune('a' + i)), Voter: rnd.IntN(4) > 0, Answers: rnd.IntN(4) > 0}
		s.Name = s.ID
		s.State = []group.State{group.Regular, group.Regular, group.Regular, group.Leaving, group.Standby}[rnd.IntN(5)]
		if !s.Answers {
			s.Silent = time.Duration(rnd.IntN(3)) * time.Hour
		} else {
			s.Stable = time.Duration(rnd.IntN(3)) * time.Second
			s.Lag = uint64(rnd.IntN(3) * 50)
			if rnd.IntN(6) == 0 {
				s.Ill = "ill"
			}
			if rnd.IntN(6) == 0 {
				s.Apart = []string{"apart"}
			}
		}
		servers[i] = s
	}
	servers[0].Leader, servers[0].Voter, servers[0].Answers = true, true, true
	return servers
}

func carryOut(servers []Server, step Step) []Server {
	var after []Server
	for _, s := range servers {
		is := s.ID == step.Server.ID
		switch step.Kind {
		case Remove, Drop:
			if is {
				continue
			}
		case Promote:
			s.Voter = s.Voter || is
		case Demote:
			s.Voter = s.Voter && !is
		case HandOver:
			s.Leader = is
		case Expire:
			if is {
				s.State = group.Leaving
			}
		}
		after = append(after, s)
	}
	return after
}
