package node

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/barque/barque/raftstore"
)

// What is told of a cluster without a leader, and of servers that may have been left behind by a recovery. The commands for
// these throw a store away, so they are recommended only where it is known that another cluster goes on in its place; a
// server that holds back does not know that, and its store may be what the cluster needs.

func (w *warner) leaderless() {
	s := w.status
	if s.Leader != "" {
		return
	}
	why := ""
	if last := w.lastLoss(); last != nil {
		why = fmt.Sprintf(" since %s (%s)", last.At.UTC().Format(time.RFC3339), last.Why)
	}
	q := s.Quorum
	answer := "answer"
	if q.Answering == 1 {
		answer = "answers"
	}
	text := fmt.Sprintf("the store has no leader%s, so nothing can be written: %d of the %d servers with a vote %s, and %d are needed", why, q.Answering, q.Voters, answer, q.Needed)
	held, outlived := w.left()
	if q.Answering-len(held)-len(outlived) >= q.Needed {
		w.add(Critical, "", "", "barque cluster status --watch", "%s; they should elect one within seconds", text)
		return
	}
	if len(outlived) > 0 {
		o := w.statuses[outlived[0]].Outlived
		w.add(Critical, "", "", "barque cluster status --server ADDRESS, with that of "+o.Survivor()+"; do not recover this one",
			"%s; the cluster was recovered without %s, by server %s, and goes on as %s", text, strings.Join(outlived, ", "), o.Survivor(), o.Heir)
		return
	}
	if len(held) > 0 {
		h := w.statuses[held[0]].HeldBack
		w.add(Critical, "", "", w.afterDoubt(held, h), "%s; %s, %s", text, holdBackText(held), doubtText(h))
		return
	}
	if elsewhere := w.elsewhere(); elsewhere != "" {
		w.add(Critical, "", "", w.by.Start+"; barque cluster status --server "+elsewhere+" shows the other one: if that took the place of this one, do not recover this one",
			"%s; a server of another cluster is at %s, where one of this was expected", text, elsewhere)
		return
	}
	w.add(Critical, "", "a server that is left", w.by.Start+"; when they are lost for good: "+w.by.Recover, "%s", text)
}

// left returns the servers with a vote that will give none: those that hold back, and those that were outlived.
func (w *warner) left() (held, outlived []string) {
	for i := range w.status.Members {
		m := &w.status.Members[i]
		switch s := w.statuses[m.Name]; {
		case s == nil || !m.Voter:
		case s.Outlived != nil:
			outlived = append(outlived, m.Name)
		case s.HeldBack != nil:
			held = append(held, m.Name)
		}
	}
	return held, outlived
}

// holdsBack warns of a server that holds back. Without a leader that is told of all of them together.
func (w *warner) holdsBack(m *MemberStatus, h *raftstore.Succession) {
	if w.status.Leader != "" || !m.Voter {
		w.add(Critical, m.Name, "", "barque cluster status --watch", "server %s holds back, and takes part again when it hears of the leader: %s", m.Name, doubtText(h))
	}
}

func holdBackText(names []string) string {
	if len(names) == 1 {
		return names[0] + " holds back, and gives no vote"
	}
	return strings.Join(names, " and ") + " hold back, and give no vote"
}

func doubtText(h *raftstore.Succession) string {
	return fmt.Sprintf("having been told that server %s was recovered at %s as cluster %s; nobody who can be asked knows whether this cluster had a leader then", h.Survivor(), h.At.UTC().Format(time.RFC3339), h.Heir)
}

// afterDoubt are the ways out of it. Which one is right only a person knows.
func (w *warner) afterDoubt(held []string, h *raftstore.Succession) string {
	var ways, anew []string
	for i := range w.status.Members {
		if m := &w.status.Members[i]; m.Voter && m.Store == nil && m.Name != h.Survivor() {
			ways = append(ways, w.by.Start+", who may know")
			break
		}
	}
	for _, name := range held {
		if command := w.by.JoinAnew(name); !slices.Contains(anew, command) {
			anew = append(anew, command)
		}
	}
	return strings.Join(append(ways,
		fmt.Sprintf("if %s was recovered by mistake: stop it, and start %s again", h.Survivor(), strings.Join(held, " and ")),
		fmt.Sprintf("only if cluster %s is to go on in place of this one, on %s: %s", h.Heir, strings.Join(held, " and "), strings.Join(anew, "; "))), "; ")
}

// elsewhere is the address of a server of another cluster that one of this was expected to be; empty when none was found.
func (w *warner) elsewhere() string {
	for _, name := range slices.Sorted(maps.Keys(w.statuses)) {
		for _, addr := range slices.Sorted(maps.Keys(w.statuses[name].Foreign)) {
			host, _, err := net.SplitHostPort(addr)
			if err == nil {
				return host
			}
		}
	}
	return ""
}

// lastLoss is the newest word of a server that a leader was lost.
func (w *warner) lastLoss() *raftstore.LeaderChange {
	var last *raftstore.LeaderChange
	for _, name := range slices.Sorted(maps.Keys(w.statuses)) {
		for i, c := range w.statuses[name].Changes {
			if c.Leader == "" && (last == nil || c.At.After(last.At)) {
				last = &w.statuses[name].Changes[i]
			}
		}
	}
	return last
}
