package autopilot

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/barque/barque/raftstore/group"
)

// Server is the leader's view of one member.
type Server struct {
	ID, Name string
	Voter    bool
	Leader   bool
	State    group.State
	// Decided is when it was decided that the server leaves: the first decision is carried out
	// first.
	Decided time.Time

	// Answers reports whether it answered the leader just now, and Silent for how long it has not.
	Answers bool
	Silent  time.Duration
	// Reached is the name of a voter that reaches it although the leader does not. It is looked for
	// before a server is taken out for its silence.
	Reached string
	// Ill is the reason why it may neither have a vote nor lead, such as a quarantine or a hanging
	// disk. Empty without one.
	Ill string
	// Applied is the newest log entry that it has applied, and Lag how many it is behind.
	Applied, Lag uint64
	// Apart names the members that do not reach it or that it does not reach, among the leader and
	// the answering voters. It is set for servers without a vote.
	Apart []string
	// Stable is for how long, without a break, it has answered, was well, not far behind and not
	// apart.
	Stable time.Duration
}

// able reports whether a voter can take part in a decision of the group.
func (s *Server) able() bool { return s.Answers && s.Ill == "" }

// Policy is the operator's configuration.
type Policy struct {
	// PromoteAfter is how long a server must be stable before it gets a vote.
	PromoteAfter time.Duration
	// MaxLag is how far it may be behind, in log entries, and count as caught up.
	MaxLag uint64
	// CleanAfter is how long a server must be silent before it is removed as dead. 0 means never.
	CleanAfter time.Duration
	// MinVoters is how many voters must stay when a dead one is taken out.
	MinVoters int
	// DropAfter is how long a server without a vote must be silent before it is dropped.
	DropAfter time.Duration
}

// Kind of a step.
type Kind string

const (
	// Promote gives the server a vote.
	Promote Kind = "promote"
	// Demote takes its vote away.
	Demote Kind = "demote"
	// HandOver makes the server the leader, because the present leader is to lose its vote.
	HandOver Kind = "hand-over"
	// Remove takes it out of the configuration.
	Remove Kind = "remove"
	// Expire decides that a dead server has to leave. Remove follows.
	Expire Kind = "expire"
	// Drop removes a dead server without a vote from the configuration. It may join again.
	Drop Kind = "drop"
)

// Step is one change of the members.
type Step struct {
	Kind   Kind
	Server Server
	Why    string // for the log
}

// Decide returns the next step; due is false if there is none. blocked has, by ID, why a demotion
// or removal is not possible now.
func Decide(servers []Server, p Policy) (step Step, due bool, blocked map[string]string) {
	servers = slices.Clone(servers)
	slices.SortFunc(servers,
		func(a, b Server) int { return cmp.Or(a.Decided.Compare(b.Decided), cmp.Compare(a.ID, b.ID)) })
	blocked = make(map[string]string)
	for _, want := range []group.State{group.Leaving, group.Standby} {
		for _, s := range servers {
			if s.State != want || want == group.Standby && !s.Voter {
				continue
			}
			if step, reason := retire(servers, s); reason == "" {
				return step, true, blocked
			} else {
				blocked[s.ID] = reason
			}
		}
	}
	for _, s := range servers {
		if s.State == group.Regular && !s.Voter && Fit(s, p) == "" && s.Stable >= p.PromoteAfter {
			return Step{Promote, s,
					fmt.Sprintf("it has kept up for %s and reaches all voters", s.Stable.Round(time.Millisecond))},
				true,
				blocked
		}
	}
	for _, s := range servers {
		if droppable(s) && s.Reached == "" && s.Silent >= p.DropAfter {
			return Step{Drop, s,
					fmt.Sprintf("it had no vote yet, and had not answered for %s", s.Silent.Round(time.Second))}, true,
				blocked
		}
	}
	for _, s := range servers { // also while a departure is blocked: without the dead one it may have its quorum
		if s.State != group.Leaving && dead(servers, s, p) {
			return Step{Expire, s, fmt.Sprintf("it has not answered for %s", s.Silent.Round(time.Second))}, true,
				blocked
		}
	}
	return Step{}, false, blocked
}

// retire returns the next step of a server that is to leave, or to be without a vote.
func retire(servers []Server, s Server) (Step, string) {
	if s.Voter {
		if err := Guard(servers, s.ID); err != nil {
			return Step{}, err.Error()
		}
	}
	why := "it is to be without a vote"
	if s.State == group.Leaving {
		why = "it leaves"
	}
	switch {
	case s.Leader:
		to, ok := Transferee(servers, s.ID)
		if !ok {
			return Step{}, "no other voter is able to lead"
		}
		return Step{HandOver, to, s.Name + " leads, and " + why}, ""
	case s.Voter && (s.State == group.Standby || s.Answers):
		return Step{Demote, s, why}, ""
	}
	return Step{Remove, s, why}, ""
}

// Transferee returns the voter to lead instead of the server with the ID. It must be able, not
// about to leave, and the least behind.
func Transferee(servers []Server, id string) (Server, bool) {
	var able []Server
	for _, s := range servers {
		if s.ID != id && s.Voter && s.able() && s.State == group.Regular {
			able = append(able, s)
		}
	}
	if len(able) == 0 {
		return Server{}, false
	}
	return slices.MinFunc(able,
		func(a, b Server) int { return cmp.Or(cmp.Compare(a.Lag, b.Lag), cmp.Compare(a.ID, b.ID)) }), true
}

// droppable reports whether a server is dropped after a long silence. The quorum never needs one
// without a vote. A standby may be away for any time.
func droppable(s Server) bool {
	return !s.Voter && !s.Answers && s.State == group.Regular
}

// dead reports whether a member may be removed for its silence. The leader must see a quorum of the
// present voters, and one of the remaining voters. At least the wanted number of voters must
// remain, without those that are to leave or to lose their votes.
func dead(servers []Server, s Server, p Policy) bool {
	if p.CleanAfter <= 0 || s.Leader || s.Answers || s.Reached != "" || s.Silent < p.CleanAfter || droppable(s) {
		return false
	}
	voters, able := tally(servers, "")
	if able < voters/2+1 {
		return false
	}
	if !s.Voter {
		return true
	}
	stay := 0
	for _, other := range servers {
		if other.ID != s.ID && other.Voter && other.State == group.Regular {
			stay++
		}
	}
	return stay >= p.MinVoters && Guard(servers, s.ID) == nil
}

// tally counts the voters but one, and how many of them are able.
func tally(servers []Server, but string) (voters, able int) {
	for i := range servers {
		s := &servers[i]
		if !s.Voter || s.ID == but {
			continue
		}
		voters++
		if s.able() {
			able++
		}
	}
	return voters, able
}

// GuardError has the reason why a server must keep its vote.
type GuardError struct {
	Name         string
	Voters, Able int // of the remaining servers
}

func (e *GuardError) Error() string {
	if e.Voters == 0 {
		return fmt.Sprintf("server %q is the only voter: the cluster would be gone. Stop it instead", e.Name)
	}
	return fmt.Sprintf(
		"only %d of the %d voters that would stay are able to take part, and they need %d to agree on anything: "+
			"bring servers back, remove one that is lost for good, or let new ones join, before %q goes", e.Able,
		e.Voters,
		e.Voters/2+1, e.Name)
}

// Guard returns a *GuardError when the group would have no quorum without the vote of the server.
func Guard(servers []Server, id string) error {
	i := slices.IndexFunc(servers, func(s Server) bool { return s.ID == id })
	if i < 0 || !servers[i].Voter {
		return nil
	}
	if voters, able := tally(servers, id); able < voters/2+1 {
		return &GuardError{servers[i].Name, voters, able}
	}
	return nil
}

// Fit returns why a server cannot have a vote now; empty when it can.
func Fit(s Server, p Policy) string {
	switch {
	case s.Reached != "":
		return fmt.Sprintf("it does not answer the leader, though %s reaches it: look at the network between the two",
			s.Reached)
	case !s.Answers:
		return "it does not answer the leader"
	case s.Ill != "":
		return s.Ill
	case s.Lag > p.MaxLag:
		return fmt.Sprintf("it is %d log entries behind", s.Lag)
	case len(s.Apart) > 0:
		return strings.Join(s.Apart, "; ")
	}
	return ""
}

// HealthOf describes a member's health.
func HealthOf(s Server, p Policy, blocked string) group.Health {
	h := group.Health{ID: s.ID, Name: s.Name, State: s.State, Stable: s.Stable, Silent: s.Silent, Reason: Fit(s, p)}
	h.Healthy = h.Reason == ""
	switch {
	case blocked != "":
		h.Reason = blocked
	case droppable(s) && s.Reached == "":
		h.Reason += fmt.Sprintf("; it has no vote yet, and is dropped when it has not answered for %s", p.DropAfter)
	case h.Healthy && s.State == group.Leaving:
		h.Reason = "it is on its way out"
	case h.Healthy && s.State == group.Standby && !s.Voter:
		h.Reason = "it was told to stay without a vote"
	case h.Healthy && !s.Voter:
		h.Reason = fmt.Sprintf("it gets its vote when it has been well for %s", p.PromoteAfter)
	}
	return h
}
