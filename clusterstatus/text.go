package clusterstatus

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/barque/barque/internal/terminal"
)

// The status of the cluster as people read it.

const labelWidth = 10

// WriteStatus writes all of it.
func WriteStatus(w io.Writer, on terminal.Screen, s *ClusterStatus) error {
	line := func(label, text string, how terminal.Style) {
		fmt.Fprintf(w, "%s %s\n", on.Paint(fmt.Sprintf("%-*s", labelWidth-1, label), terminal.Faint),
			on.Paint(on.Wrap(text, labelWidth), how))
	}
	line("cluster", fmt.Sprintf("%s, %s", s.ID, healthText(s)), healthStyle(s.Health))
	line("leader", leaderText(s), terminal.Plain)
	line("servers", quorumText(&s.Quorum), terminal.Plain)
	line("store", storeText(s), terminal.Plain)
	line("backup", backupText(s), terminal.Plain)
	for _, text := range addressTexts(s.Addresses) {
		line("addresses", text, terminal.Plain)
	}
	if s.Edge != nil && s.Edge.BGP != nil {
		line("bgp", s.Edge.BGP.Text(), terminal.Plain)
	}
	if s.ExchangeUnderWay() {
		line("keys",
			fmt.Sprintf("%s is being exchanged, for %s: %s", ExchangeOf(s.CA), ageText(s.Time.Sub(s.CA.Since)),
				ExchangeText(s.CA)), terminal.Odd)
		line("", "→ "+ExchangeWays(s.CA), terminal.Plain)
	}
	if s.Upgrade != nil {
		line("upgrade", s.Upgrade.Text, terminal.Odd)
	}
	for _, u := range s.Unreached {
		line("unreached", u.Address+": "+u.Error, terminal.Odd)
	}
	fmt.Fprintln(w)
	if err := WriteWarnings(w, on, s.Warnings); err != nil {
		return err
	}
	if err := WriteMembers(w, on, s); err != nil {
		return err
	}
	return writeWays(w, on, s)
}

// addressTexts describes the addresses that nodes answer for: each of the API, and the number of
// those of Services.
func addressTexts(all []AnsweredAddress) (out []string) {
	services, nodes := 0, map[string]bool{}
	for _, a := range all {
		node := a.Node
		if node == "" {
			node = "no node"
		}
		if a.Service == "" {
			out = append(out, fmt.Sprintf("%s of the API: %s answers", a.Address, node))
			continue
		}
		services++
		if a.Node != "" {
			nodes[a.Node] = true
		}
	}
	if services > 0 {
		out = append(out,
			fmt.Sprintf("%s of Services, on %s", terminal.Plural(services, "address", "addresses"),
				terminal.Plural(len(nodes), "node", "nodes")))
	}
	return out
}

// Line is the status in one line.
func (s *ClusterStatus) Line() string {
	leader := s.Leader
	if leader == "" {
		leader = "none"
	}
	line := fmt.Sprintf("%s leader=%s term=%d revision=%d voters=%d/%d", s.Health, leader, s.Term, s.Revision,
		s.Quorum.Answering, s.Quorum.Voters)
	for _, w := range s.Warnings {
		line += fmt.Sprintf(" [%s: %s]", w.Severity, w.Text)
	}
	return line
}

func healthText(s *ClusterStatus) string {
	switch s.Health {
	case NoQuorum:
		return "WITHOUT A QUORUM: nothing can be written"
	case Degraded:
		return "serves, but " + terminal.Plural(len(s.Warnings), "thing needs", "things need") + " attention"
	}
	return "healthy"
}

func healthStyle(h ClusterHealth) terminal.Style {
	return map[ClusterHealth]terminal.Style{Healthy: terminal.Good, Degraded: terminal.Odd, NoQuorum: terminal.Bad}[h]
}

func leaderText(s *ClusterStatus) string {
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

func quorumText(q *QuorumStatus) string {
	answer, needed := "answer", "are"
	if q.Voters == 1 {
		answer = "answers"
	}
	if q.Needed == 1 {
		needed = "is"
	}
	return fmt.Sprintf("%d of %s %s, %d %s needed, %s may fail", q.Answering,
		terminal.Plural(q.Voters, "voter", "voters"), answer, q.Needed, needed, terminal.Count(q.MayFail))
}

func storeText(s *ClusterStatus) string {
	text := fmt.Sprintf("revision %d, %d keys, %s", s.Revision, s.Store.Keys, terminal.Bytes(s.Store.Bytes))
	if s.Store.Limit > 0 {
		text += fmt.Sprintf(" of %s (%.0f %%)", terminal.Bytes(s.Store.Limit),
			100*float64(s.Store.Bytes)/float64(s.Store.Limit))
	}
	return text
}

func backupText(s *ClusterStatus) string {
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
	return fmt.Sprintf("%s ago on %s, revision %d, %s, %s%s", ageText(s.Time.Sub(s.Backup.Created)), s.Backup.Server,
		s.Backup.Revision, terminal.Bytes(s.Backup.Bytes), sealed, schedule)
}

// WriteWarnings writes warnings, each with its remedy.
func WriteWarnings(w io.Writer, on terminal.Screen, warnings []Warning) error {
	for _, warning := range warnings {
		mark, how := "warning", terminal.Odd
		if warning.Severity == Critical {
			mark, how = "CRITICAL", terminal.Bad
		}
		fmt.Fprintf(w, "%s %s\n", on.Paint(fmt.Sprintf("%-*s", labelWidth-1, mark), how),
			on.Wrap(warning.Text, labelWidth))
		if warning.Mend != "" {
			where := ""
			if warning.On != "" {
				where = "on " + warning.On + ": "
			}
			fmt.Fprintf(w, "%*s %s\n", labelWidth-1, "→", on.Wrap(where+warning.Mend, labelWidth))
		}
	}
	if len(warnings) == 0 {
		return nil
	}
	_, err := fmt.Fprintln(w)
	return err
}

// WriteMembers lists the nodes.
func WriteMembers(w io.Writer, on terminal.Screen, s *ClusterStatus) error {
	t := &terminal.Table{
		Columns: []terminal.Column{{Head: "NAME"}, {Head: "ROLE", Drop: 3}, {Head: "STORE"}, {Head: "BEHIND"},
			{Head: "DISK p50/p99", Drop: 1}, {Head: "GOSSIP"}, {Head: "LAST CONTACT", Drop: 4},
			{Head: "REVISION", Drop: 2},
			{Head: "TERM", Drop: 8}, {Head: "APPLIED", Drop: 9}, {Head: "CERTIFICATES", Drop: 5},
			{Head: "BACKUP", Drop: 6},
			{Head: "ADDRESS", Drop: 2}, {Head: "JOINED", Drop: 11}, {Head: "VERSION", Drop: 10}}}
	noMember := terminal.Cell{Text: "no member", How: terminal.Bad} // why is among the warnings
	for i := range s.Members {
		m := &s.Members[i]
		row := []terminal.Cell{{Text: m.Name}, {Text: m.Role}, storeCell(m), {}, {}, gossipCell(m.Gossip), {}, {}, {},
			{}, certificatesCell(s.Time, m.Certificates), backupCell(s.Time, m), {Text: m.Address},
			joinedCell(m.Joined), {Text: m.Version}}
		if st := m.Store; st != nil {
			row[3] = behindCell(st)
			row[4] = terminal.Cell{Text: SecondsText(st.DiskP50Seconds) + "/" + SecondsText(st.DiskP99Seconds)}
			if st.LastContactSeconds != nil {
				row[6] = terminal.Cell{Text: SecondsText(*st.LastContactSeconds)}
			}
			row[7], row[8], row[9] = terminal.Cell{Text: fmt.Sprint(st.Revision)},
				terminal.Cell{Text: fmt.Sprint(st.Term)}, terminal.Cell{Text: fmt.Sprint(st.Applied)}
		}
		if slices.ContainsFunc(s.Former, func(f FormerServer) bool { return f.Name == m.Name }) {
			row[2] = noMember
		}
		t.Add(row...)
	}
	for _, f := range s.Former {
		if !slices.ContainsFunc(s.Members, func(m MemberStatus) bool { return m.Name == f.Name }) {
			row := make([]terminal.Cell, len(t.Columns))
			row[0], row[1], row[2] = terminal.Cell{Text: f.Name}, terminal.Cell{Text: "server"}, noMember
			t.Add(row...)
		}
	}
	_, err := t.Write(w, on)
	return err
}

// joinedCell has the day, and the ID of the token.
func joinedCell(j *JoinedStatus) terminal.Cell {
	if j == nil {
		return terminal.Cell{}
	}
	return terminal.Cell{Text: j.At.UTC().Format(time.DateOnly) + " by " + j.Token}
}

func storeCell(m *MemberStatus) terminal.Cell {
	switch {
	case m.Store == nil && m.Problem != "":
		return terminal.Cell{Text: "no answer", How: terminal.Bad} // why is among the warnings
	case m.Store == nil:
		return terminal.Cell{}
	case m.Store.Quarantined != "":
		return terminal.Cell{Text: "quarantine", How: terminal.Bad}
	case m.Store.State == "leader":
		return terminal.Cell{Text: "leader", How: terminal.Good}
	}
	return terminal.Cell{Text: m.Store.State}
}

func gossipCell(state any) terminal.Cell {
	text := fmt.Sprint(state)
	if text == "dead" {
		return terminal.Cell{Text: text, How: terminal.Bad}
	}
	return terminal.Cell{Text: text}
}

func behindCell(st *StoreStatus) terminal.Cell {
	if st.State == "leader" {
		return terminal.Cell{}
	}
	text := fmt.Sprint(st.LagEntries)
	if st.LagEntries > 0 && st.LagSeconds != nil {
		text += ", " + SecondsText(*st.LagSeconds)
	}
	return terminal.Cell{Text: text}
}

func certificatesCell(now time.Time, all []CertificateStatus) terminal.Cell {
	if len(all) == 0 {
		return terminal.Cell{}
	}
	first := slices.MinFunc(all, func(a, b CertificateStatus) int { return a.NotAfter.Compare(b.NotAfter) })
	left := first.NotAfter.Sub(now)
	if left <= 0 {
		return terminal.Cell{Text: "ended", How: terminal.Bad}
	}
	return terminal.Cell{Text: ageText(left) + " left"}
}

func backupCell(now time.Time, m *MemberStatus) terminal.Cell {
	if m.Backups == nil || m.Backups.Newest == nil {
		return terminal.Cell{}
	}
	return terminal.Cell{Text: ageText(now.Sub(m.Backups.Newest.Created)) + " ago"}
}

// mostShown is how many columns the table of ways has at most.
const mostShown = 9

// writeWays shows the round trips between servers and their gossip views of each other. It includes
// agents that are not alive in every view.
func writeWays(w io.Writer, on terminal.Screen, s *ClusterStatus) error {
	to := shownNodes(s)
	if len(to) < 2 {
		return nil
	}
	t := &terminal.Table{Columns: []terminal.Column{{Head: "FROM \\ TO"}}}
	for _, name := range to {
		t.Columns = append(t.Columns, terminal.Column{Head: name})
	}
	for _, m := range s.Members {
		if m.Store == nil {
			continue
		}
		row := []terminal.Cell{{Text: m.Name}}
		for _, name := range to {
			row = append(row, wayCell(&m, name))
		}
		t.Add(row...)
	}
	if len(t.Rows) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	_, err := t.Write(w, on)
	return err
}

func shownNodes(s *ClusterStatus) []string {
	var names []string
	for _, m := range s.Members {
		if m.Role == "server" ||
			slices.ContainsFunc(s.Members,
				func(by MemberStatus) bool { v, ok := view(&by, m.Name); return ok && v != "alive" }) {
			names = append(names, m.Name)
		}
	}
	if len(names) > mostShown {
		names = names[:mostShown]
	}
	return names
}

func view(by *MemberStatus, name string) (state string, known bool) {
	for _, v := range by.Views {
		if v.Node == name {
			return string(v.State), true
		}
	}
	return "unknown", by.Views != nil
}

// silent reports whether a server got no direct answer from another one that its gossip counts as
// alive.
func silent(from *MemberStatus, to string) bool {
	return slices.ContainsFunc(from.Views, func(v NodeView) bool { return v.Node == to && v.Silent })
}

func wayCell(from *MemberStatus, to string) terminal.Cell {
	if from.Name == to {
		return terminal.Cell{}
	}
	var parts []string
	how := terminal.Plain
	for _, way := range from.Ways {
		switch {
		case way.To != to:
		case way.Error != "":
			parts, how = append(parts, "cut"), terminal.Bad
		case way.RTTSeconds != nil:
			parts = append(parts, SecondsText(*way.RTTSeconds))
		}
	}
	if state, ok := view(from, to); ok {
		if state == "alive" && silent(from, to) {
			state, how = "silent", terminal.Odd
		}
		parts = append(parts, state)
		if state != "alive" && how == terminal.Plain {
			how = terminal.Odd
		}
	}
	return terminal.Cell{Text: strings.Join(parts, ", "), How: how}
}

// SecondsText writes a short time for people.
func SecondsText(s float64) string {
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
