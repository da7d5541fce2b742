package main

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/barque/barque/cmd/barque/node"
)

// The status of the cluster as people read it.

const labelWidth = 10

// writeStatus writes all of it.
func writeStatus(w io.Writer, on screen, s *node.ClusterStatus) error {
	line := func(label, text string, how style) {
		fmt.Fprintf(w, "%s %s\n", on.paint(fmt.Sprintf("%-*s", labelWidth-1, label), faint), on.paint(on.wrap(text, labelWidth), how))
	}
	line("cluster", fmt.Sprintf("%s, %s", s.ID, healthText(s)), healthStyle(s.Health))
	line("leader", leaderText(s), plain)
	line("servers", quorumText(&s.Quorum), plain)
	line("store", storeText(s), plain)
	line("backup", backupText(s), plain)
	if s.ExchangeUnderWay() {
		line("CA", fmt.Sprintf("is being exchanged, for %s: %s", ageText(s.Time.Sub(s.CA.Since)), node.ExchangeText(s.CA)), odd)
		line("", "→ "+node.ExchangeWays(s.CA), plain)
	}
	for _, u := range s.Unreached {
		line("unreached", u.Address+": "+u.Error, odd)
	}
	fmt.Fprintln(w)
	if err := writeWarnings(w, on, s.Warnings); err != nil {
		return err
	}
	if err := writeMembers(w, on, s); err != nil {
		return err
	}
	return writeWays(w, on, s)
}

func healthText(s *node.ClusterStatus) string {
	switch s.Health {
	case node.NoQuorum:
		return "WITHOUT A QUORUM: nothing can be written"
	case node.Degraded:
		return "serves, but " + plural(len(s.Warnings), "thing needs", "things need") + " you"
	}
	return "healthy"
}

func healthStyle(h node.ClusterHealth) style {
	return map[node.ClusterHealth]style{node.Healthy: good, node.Degraded: odd, node.NoQuorum: bad}[h]
}

func leaderText(s *node.ClusterStatus) string {
	if s.Leader == "" {
		return "none"
	}
	text := fmt.Sprintf("%s, term %d", s.Leader, s.Term)
	if !s.LeaderSince.IsZero() {
		text += ", for " + ageText(s.Time.Sub(s.LeaderSince))
	}
	if s.LeaderReason != "" {
		text += ": " + s.LeaderReason
	}
	return text
}

func quorumText(q *node.QuorumStatus) string {
	answer, needed := "answer", "are"
	if q.Voters == 1 {
		answer = "answers"
	}
	if q.Needed == 1 {
		needed = "is"
	}
	return fmt.Sprintf("%d of %s %s, %d %s needed, %s may fail", q.Answering, plural(q.Voters, "voter", "voters"), answer, q.Needed, needed, count(q.MayFail))
}

func storeText(s *node.ClusterStatus) string {
	text := fmt.Sprintf("revision %d, %d keys, %s", s.Revision, s.Store.Keys, bytesText(s.Store.Bytes))
	if s.Store.Limit > 0 {
		text += fmt.Sprintf(" of %s (%.0f %%)", bytesText(s.Store.Limit), 100*float64(s.Store.Bytes)/float64(s.Store.Limit))
	}
	return text
}

func backupText(s *node.ClusterStatus) string {
	every := time.Duration(0)
	for _, m := range s.Members {
		if m.Backups != nil && m.Backups.Refused == "" {
			every = max(every, time.Duration(m.Backups.EverySeconds*float64(time.Second)))
		}
	}
	schedule := "; none is scheduled"
	if every > 0 {
		schedule = "; one is due every " + every.String()
	}
	if s.Backup == nil {
		return "none yet on the servers' disks" + schedule
	}
	sealed := "not sealed"
	if s.Backup.Sealed {
		sealed = "sealed"
	}
	return fmt.Sprintf("%s ago on %s, revision %d, %s, %s%s", ageText(s.Time.Sub(s.Backup.Created)), s.Backup.Server, s.Backup.Revision, bytesText(s.Backup.Bytes), sealed, schedule)
}

func writeWarnings(w io.Writer, on screen, warnings []node.Warning) error {
	for _, warning := range warnings {
		mark, how := "warning", odd
		if warning.Severity == node.Critical {
			mark, how = "CRITICAL", bad
		}
		fmt.Fprintf(w, "%s %s\n", on.paint(fmt.Sprintf("%-*s", labelWidth-1, mark), how), on.wrap(warning.Text, labelWidth))
		if warning.Mend != "" {
			where := ""
			if warning.On != "" {
				where = "on " + warning.On + ": "
			}
			fmt.Fprintf(w, "%*s %s\n", labelWidth-1, "→", on.wrap(where+warning.Mend, labelWidth))
		}
	}
	if len(warnings) == 0 {
		return nil
	}
	_, err := fmt.Fprintln(w)
	return err
}

// writeMembers lists the nodes.
func writeMembers(w io.Writer, on screen, s *node.ClusterStatus) error {
	t := &table{columns: []column{{"NAME", 0}, {"ROLE", 3}, {"STORE", 0}, {"BEHIND", 0}, {"DISK p50/p99", 1}, {"GOSSIP", 0}, {"LAST CONTACT", 4}, {"REVISION", 2},
		{"TERM", 8}, {"APPLIED", 9}, {"CERTIFICATES", 5}, {"BACKUP", 6}, {"ADDRESS", 2}, {"VERSION", 10}}}
	noMember := cell{"no member", bad} // why is among the warnings
	for i := range s.Members {
		m := &s.Members[i]
		row := []cell{{text: m.Name}, {text: m.Role}, storeCell(m), {}, {}, gossipCell(m.Gossip), {}, {}, {}, {}, certificatesCell(s.Time, m.Certificates), backupCell(s.Time, m), {text: m.Address}, {text: m.Version}}
		if st := m.Store; st != nil {
			row[3] = behindCell(st)
			row[4] = cell{text: secondsText(st.DiskP50Seconds) + "/" + secondsText(st.DiskP99Seconds)}
			if st.LastContactSeconds != nil {
				row[6] = cell{text: secondsText(*st.LastContactSeconds)}
			}
			row[7], row[8], row[9] = cell{text: fmt.Sprint(st.Revision)}, cell{text: fmt.Sprint(st.Term)}, cell{text: fmt.Sprint(st.Applied)}
		}
		if slices.ContainsFunc(s.Former, func(f node.FormerServer) bool { return f.Name == m.Name }) {
			row[2] = noMember
		}
		t.add(row...)
	}
	for _, f := range s.Former {
		if !slices.ContainsFunc(s.Members, func(m node.MemberStatus) bool { return m.Name == f.Name }) {
			row := make([]cell, len(t.columns))
			row[0], row[1], row[2] = cell{text: f.Name}, cell{text: "server"}, noMember
			t.add(row...)
		}
	}
	_, err := t.write(w, on)
	return err
}

func storeCell(m *node.MemberStatus) cell {
	switch {
	case m.Store == nil && m.Problem != "":
		return cell{"no answer", bad} // why is among the warnings
	case m.Store == nil:
		return cell{}
	case m.Store.Quarantined != "":
		return cell{"quarantine", bad}
	case m.Store.State == "leader":
		return cell{"leader", good}
	}
	return cell{text: m.Store.State}
}

func gossipCell(state any) cell {
	text := fmt.Sprint(state)
	if text == "dead" {
		return cell{text, bad}
	}
	return cell{text: text}
}

func behindCell(st *node.StoreStatus) cell {
	if st.State == "leader" {
		return cell{}
	}
	text := fmt.Sprint(st.LagEntries)
	if st.LagEntries > 0 && st.LagSeconds != nil {
		text += ", " + secondsText(*st.LagSeconds)
	}
	return cell{text: text}
}

func certificatesCell(now time.Time, all []node.CertificateStatus) cell {
	if len(all) == 0 {
		return cell{}
	}
	first := slices.MinFunc(all, func(a, b node.CertificateStatus) int { return a.NotAfter.Compare(b.NotAfter) })
	left := first.NotAfter.Sub(now)
	if left <= 0 {
		return cell{"ended", bad}
	}
	return cell{text: ageText(left) + " left"}
}

func backupCell(now time.Time, m *node.MemberStatus) cell {
	if m.Backups == nil || m.Backups.Newest == nil {
		return cell{}
	}
	return cell{text: ageText(now.Sub(m.Backups.Newest.Created)) + " ago"}
}

// mostShown is how many columns the table of ways has at most.
const mostShown = 9

// writeWays shows, for each server, the round trips to the others and how it sees them by gossip.
// Of agents it shows those that are not alive to all.
func writeWays(w io.Writer, on screen, s *node.ClusterStatus) error {
	to := shownNodes(s)
	if len(to) < 2 {
		return nil
	}
	t := &table{columns: []column{{"FROM \\ TO", 0}}}
	for _, name := range to {
		t.columns = append(t.columns, column{head: name})
	}
	for _, m := range s.Members {
		if m.Store == nil {
			continue
		}
		row := []cell{{text: m.Name}}
		for _, name := range to {
			row = append(row, wayCell(&m, name))
		}
		t.add(row...)
	}
	if len(t.rows) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	_, err := t.write(w, on)
	return err
}

func shownNodes(s *node.ClusterStatus) []string {
	var names []string
	for _, m := range s.Members {
		if m.Role == "server" || slices.ContainsFunc(s.Members, func(by node.MemberStatus) bool { v, ok := view(&by, m.Name); return ok && v != "alive" }) {
			names = append(names, m.Name)
		}
	}
	if len(names) > mostShown {
		names = names[:mostShown]
	}
	return names
}

func view(by *node.MemberStatus, name string) (state string, known bool) {
	for _, v := range by.Views {
		if v.Node == name {
			return string(v.State), true
		}
	}
	return "unknown", by.Views != nil
}

// silent tells whether a server got no direct answer of another one by gossip, which takes it for
// alive all the same.
func silent(from *node.MemberStatus, to string) bool {
	return slices.ContainsFunc(from.Views, func(v node.NodeView) bool { return v.Node == to && v.Silent })
}

func wayCell(from *node.MemberStatus, to string) cell {
	if from.Name == to {
		return cell{}
	}
	var parts []string
	how := plain
	for _, way := range from.Ways {
		switch {
		case way.To != to:
		case way.Error != "":
			parts, how = append(parts, "cut"), bad
		case way.RTTSeconds != nil:
			parts = append(parts, secondsText(*way.RTTSeconds))
		}
	}
	if state, ok := view(from, to); ok {
		if state == "alive" && silent(from, to) {
			state, how = "silent", odd
		}
		parts = append(parts, state)
		if state != "alive" && how == plain {
			how = odd
		}
	}
	return cell{strings.Join(parts, ", "), how}
}

// secondsText writes a short time for people.
func secondsText(s float64) string {
	d := time.Duration(s * float64(time.Second))
	switch {
	case d < 10*time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	case d < 10*time.Second:
		return d.Round(time.Millisecond).String()
	}
	return ageText(d)
}

// ageText writes a long time for people, with its two largest units.
func ageText(d time.Duration) string {
	if d < 0 {
		return "0s" // clocks differ a little
	}
	const day = 24 * time.Hour
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%dm%ds", int(d/time.Minute), int(d%time.Minute/time.Second))
	case d < day:
		return fmt.Sprintf("%dh%dm", int(d/time.Hour), int(d%time.Hour/time.Minute))
	case d < 14*day:
		return fmt.Sprintf("%dd%dh", int(d/day), int(d%day/time.Hour))
	}
	return fmt.Sprintf("%dd", int(d/day))
}
