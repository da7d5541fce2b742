package clusterstatus

import (
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/barque/barque/raftstore"
)

// Warnings of a cluster without a leader. They recommend to drop a store only if its cluster has a
// known successor.

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
	text := fmt.Sprintf(
		"the store has no leader%s, so nothing can be written: %d of the %d servers with a vote %s, and %d are needed",
		why, q.Answering, q.Voters, answer, q.Needed)
	superseded := w.superseded()
	if q.Answering-len(superseded) >= q.Needed {
		w.add(Critical, "", "", "barque cluster status --watch", "%s; they should elect one within seconds", text)
		return
	}
	if len(superseded) > 0 {
		o := w.statuses[superseded[0]].Superseded
		w.add(Critical, "", "",
			"barque cluster status --server ADDRESS, with that of "+o.Survivor()+"; do not recover this one",
			"%s; cluster %s, which server %s began, goes on in its place, without %s", text, o.Successor, o.Survivor(),
			strings.Join(superseded, ", "))
		return
	}
	if elsewhere := w.elsewhere(); elsewhere != "" {
		w.add(Critical, "", "",
			w.by.Start+"; barque cluster status --server "+elsewhere+
				" shows the other one: if that took the place of this one, do not recover this one",
			"%s; a server of another cluster is at %s, where one of this was expected", text, elsewhere)
		return
	}
	w.add(Critical, "", "a server that is left", w.by.Start+"; when they are lost for good: "+w.by.Recover, "%s", text)
}

// superseded returns the voters that will not vote because their cluster has a successor.
func (w *warner) superseded() []string {
	var names []string
	for i := range w.status.Members {
		m := &w.status.Members[i]
		if s := w.statuses[m.Name]; s != nil && m.Voter && s.Superseded != nil {
			names = append(names, m.Name)
		}
	}
	return names
}

// elsewhere returns the address where a server of another cluster answered in place of one of this
// cluster; empty without one.
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
