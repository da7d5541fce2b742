package clusterstatus

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/barque/barque/membership/gossip"
	"github.com/barque/barque/pki"
	"github.com/barque/barque/raftstore"
)

// Thresholds of warnings. A busy cluster on healthy machines stays below them.
const (
	lagEntriesTooMany = 4096
	lagTooLong        = 10 * time.Second
	longExtension     = 500 * time.Millisecond // of the store's time-outs, for want of CPU
	slowDisk          = 50 * time.Millisecond  // half of the writes to the log
	slowWay           = 100 * time.Millisecond // a round trip between two servers
	clockTooFar       = 5 * time.Second
	backupGrace       = time.Hour // added to the schedule's interval
	volumeNearlyFull  = 20        // a twentieth of it is free
)

// Commands that show the state of a server or an agent on its machine.
const (
	lookAtServer = "systemctl status barque-server; journalctl -u barque-server -n 100"
	lookAtAgent  = "systemctl status barque-agent; journalctl -u barque-agent -n 100"
)

// MendRefused is the remedy for refused scheduled backups.
const MendRefused = "start with --snapshot-key-file FILE, with a key of `barque snapshot key`; or with --snapshot-unsealed to have them as they are; or with --snapshot-schedule 0 for none"

// saveBackup saves a backup to the machine on which it is run.
const saveBackup = "barque snapshot save --key-file FILE"

// JoinAnew lets a machine join as a new server.
const JoinAnew = "barque server --wipe --join https://SERVER:6443 --token TOKEN"

// warner collects warnings.
type warner struct {
	status   *ClusterStatus
	statuses map[string]*raftstore.Status
	by       Procedures
	found    []Warning
}

func (w *warner) add(severity Severity, node, on, mend, format string, args ...any) {
	if w.by.Here {
		on = ""
	}
	w.found = append(w.found,
		Warning{Severity: severity, Node: node, On: on, Mend: mend, Text: fmt.Sprintf(format, args...)})
}

// warningsOf returns the warnings, the worst first. It reads nothing but its arguments.
func warningsOf(s *ClusterStatus, statuses map[string]*raftstore.Status, by Procedures) []Warning {
	w := &warner{status: s, statuses: statuses, by: by}
	w.leaderless()
	for i := range s.Members {
		m := &s.Members[i]
		w.absent(m)
		w.faults(m)
		if m.Store != nil {
			w.store(m, statuses[m.Name])
			w.machine(m)
			w.backups(m)
			w.certificates(m)
			w.auditLosses(m)
		}
	}
	w.unsealed()
	w.space()
	w.ways()
	w.views()
	w.versions()
	w.upgrade()
	w.former()
	w.apart()
	w.unready()
	w.failing()
	w.files()
	w.profiles()
	w.lost()
	w.edge()
	w.exchange()
	w.dataKeys()
	w.votes()
	slices.SortStableFunc(w.found, func(a, b Warning) int {
		// "critical" comes before "warning"
		return cmp.Or(cmp.Compare(a.Severity, b.Severity), strings.Compare(a.Node, b.Node))
	})
	return w.found
}

// absent warns of nodes that do not answer, or that gossip has lost.
func (w *warner) absent(m *MemberStatus) {
	switch {
	case m.Role != pki.RoleServer && m.seenDead():
		w.add(Attention, m.Name, m.Name, w.by.Look(m.Name, m.Role)+w.lostForGood("barque kubectl delete node "+m.Name),
			"agent %s shows no life since %s", m.Name, m.Since.UTC().Format(time.RFC3339))
	case m.Role != pki.RoleServer && m.Gossip == gossip.Left:
		w.add(Attention, m.Name, m.Name, w.stoppedAgent(m.Name),
			"agent %s was stopped at %s: its pods run on, unless its machine is off, and nobody manages them", m.Name,
			m.Since.UTC().Format(time.RFC3339))
	case m.Problem != "":
		severity := Attention
		if m.Voter && w.status.Quorum.MayFail == 0 {
			severity = Critical
		}
		seen := ""
		if m.seenDead() {
			seen = ", and shows no life since " + m.Since.UTC().Format(time.RFC3339)
		}
		mend := w.by.Look(m.Name, pki.RoleServer) + w.lostForGood("barque cluster remove "+m.Name)
		if m.state() == "leaving" { // its removal has begun already
			mend, seen = "barque cluster status --watch",
				seen+", and is on its way out of the store ("+m.Health.Reason+")"
		}
		w.add(severity, m.Name, m.Name, mend, "server %s does not answer%s: %s", m.Name, seen, m.Problem)
	case m.Store != nil && m.seenDead():
		w.add(Attention, m.Name, m.Name, openGossip(m)+"the nodes",
			"server %s answers, but gossip takes it for dead since %s", m.Name, m.Since.UTC().Format(time.RFC3339))
	}
}

// lostForGood is the command for a node that does not come back. Without a leader no command can
// take one out.
func (w *warner) lostForGood(command string) string {
	if w.status.Leader == "" {
		return ""
	}
	return "; when it is lost for good, from anywhere: " + command
}

// stoppedAgent is the remedy for an agent that was stopped. Without its Node its pods are made
// anew, so they must not run there any more.
func (w *warner) stoppedAgent(name string) string {
	start := "start it again: " + w.by.Again(name)
	if w.status.Leader == "" {
		return start
	}
	return start +
		"; or make sure that its machine is off and stays off, or its pods may run twice, and then, from anywhere: barque kubectl delete node " + name
}

// state returns the decision on a server: "standby", "leaving", or nothing.
func (m *MemberStatus) state() string {
	if m.Health == nil {
		return ""
	}
	return m.Health.State
}

// former warns of servers that were members of the store and still have Nodes. Without a leader
// there is no remedy.
func (w *warner) former() {
	if w.status.Leader == "" {
		return
	}
	for _, f := range w.status.Former {
		if f.Dropped {
			w.add(Attention, f.Name, f.Name,
				w.by.Look(f.Name, pki.RoleServer)+w.lostForGood("barque kubectl delete node "+f.Name),
				"server %s was dropped from the store at %s (%s); it joins again by itself when it is back", f.Name,
				f.At.UTC().Format(time.RFC3339), f.Why)
			continue
		}
		why := "this cluster was recovered, or began with a backup, without it"
		if !f.At.IsZero() {
			why = fmt.Sprintf("it was taken out at %s (%s)", f.At.UTC().Format(time.RFC3339), f.Why)
		}
		if !f.Succession.IsZero() {
			why += fmt.Sprintf(
				"; or it had joined again, and this cluster was recovered, or began with a backup, at %s without it",
				f.Succession.UTC().Format(time.RFC3339))
		}
		w.add(Attention, f.Name, f.Name, w.by.JoinAnew(f.Name)+w.lostForGood("barque kubectl delete node "+f.Name),
			"server %s is no member of the store any more, but still has its Node: %s", f.Name, why)
	}
}

// faults warns of the faults that a living node reports of itself.
func (w *warner) faults(m *MemberStatus) {
	if m.Gossip != gossip.Alive {
		return
	}
	var faults []string
	for _, ill := range m.Faults {
		if ill != gossip.LockedOutName {
			faults = append(faults, ill)
			continue
		}
		w.add(Attention, m.Name, "",
			"barque cert readmit "+m.Name+"; or, when its machine was set up anew, on "+m.Name+": "+rejoin,
			"agent %s is locked out: the servers refuse its certificates, which were revoked. Its pods go on, and nobody manages them", m.Name)
	}
	if len(faults) > 0 {
		// A kubelet that is ill may not have a Node to describe.
		w.add(Attention, m.Name, m.Name, w.by.Look(m.Name, m.Role), "node %s reports a fault of its %s", m.Name,
			strings.Join(faults, ", "))
	}
}

// rejoin is the command by which an agent joins again.
const rejoin = "barque agent --rejoin --server https://SERVER:6443 --token TOKEN"

// apart warns of agents that run pods outside gossip: gossip would miss their death.
func (w *warner) apart() {
	for _, a := range w.status.Apart {
		if a.Cluster != "" {
			w.add(Attention, a.Name, a.Name, rejoin,
				"agent %s considers itself a member of another cluster, %s, with the same CA, and takes no part in gossip: this cluster is not the successor of that one", a.Name, a.Cluster)
			continue
		}
		w.add(Attention, a.Name, a.Name,
			w.by.Look(a.Name, pki.RoleAgent)+w.lostForGood("barque kubectl delete node "+a.Name),
			"agent %s is Ready, and no server sees it by gossip", a.Name)
	}
}

// votes warns of a cluster with too few voters to survive the loss of one. A cluster made with one
// server gets no warning. Servers without a vote, or former ones, show that more are intended. A
// server on its way to a vote needs no action.
func (w *warner) votes() {
	q := w.status.Quorum
	if q.Voters == 2 && q.Answering == 2 && len(w.statuses) == 2 {
		w.add(Attention, "", "", "barque token create --role server",
			"two servers vote, so neither may fail: let a third one join")
	}
	if q.Voters != 1 || w.status.Leader == "" {
		return
	}
	var others []string
	mend := "barque token create --role server, and let others join with it"
	for i := range w.status.Members {
		m := &w.status.Members[i]
		switch {
		case m.Voter || m.Store == nil && m.Problem == "":
			continue // it votes, or is no member of the store
		case m.Store != nil && m.state() == "":
			return
		case m.Store != nil && m.state() == "standby":
			mend = "barque cluster promote " + m.Name
		}
		others = append(others, m.Name)
	}
	switch {
	case len(others) > 0:
		w.add(Critical, "", "", mend, "only server %s votes, so it may not fail; without a vote: %s", w.status.Leader,
			strings.Join(others, ", "))
	case len(w.status.Former) > 0: // each has its own warning
		w.add(Critical, "", "", mend, "only server %s votes, so it may not fail", w.status.Leader)
	}
}

// store warns of faults of a server's part of the store.
func (w *warner) store(m *MemberStatus, s *raftstore.Status) {
	switch {
	case s.Superseded != nil:
		w.add(Critical, m.Name, m.Name, w.by.JoinAnew(m.Name),
			"server %s is superseded: cluster %s goes on in place of its own, and it stops", m.Name,
			s.Superseded.Successor)
	case m.Store.Quarantined != "":
		w.add(Critical, m.Name, m.Name,
			"wait, it recovers by itself; otherwise: barque cluster remove "+m.Name+", and then, there: "+
				w.by.JoinAnew(m.Name),
			"server %s is in quarantine and serves nothing: %s", m.Name, m.Store.Quarantined)
	case m.Store.DiskError != "":
		w.add(Critical, m.Name, m.Name, "df -h; dmesg | tail", "server %s cannot write its log and falls behind: %s",
			m.Name, m.Store.DiskError)
	case m.state() != "" && m.Health.BlockedSeconds > 0:
		what := "lose its vote"
		if m.state() == "leaving" {
			what = "leave the store"
		}
		w.add(Attention, m.Name, "",
			"start the servers that do not answer; for one that is lost for good: barque cluster remove NAME; "+
				"for one more server: barque token create --role server; to keep this one: barque cluster promote "+
				m.Name,
			"server %s is to %s and cannot yet: %s", m.Name, what, m.Health.Reason)
	case m.state() == "standby":
		w.add(Attention, m.Name, "", "barque cluster promote "+m.Name, "server %s: %s", m.Name, m.Health.Reason)
	case m.state() == "leaving":
		w.add(Attention, m.Name, "",
			"barque cluster status --watch; to keep it after all: barque cluster promote "+m.Name,
			"server %s is to leave the store: %s", m.Name, m.Health.Reason)
	case m.Store.DiskFull: // the leader finds it ill for that
	case m.Health != nil && (m.Health.State != "" || !m.Health.Healthy):
		w.add(Attention, m.Name, "", "barque cluster status --watch", "server %s: %s", m.Name, m.Health.Reason)
	}
	if m.Store.DiskFull {
		path := "DATA-DIR"
		if m.Disk != nil {
			path = m.Disk.Path
		}
		w.add(Critical, m.Name, m.Name,
			fmt.Sprintf(
				"df -h %[1]s; du -xh %[1]s | sort -h | tail; remove files that are not Barque's, or enlarge the volume",
				path),
			"the disk of server %s is full and it runs on its reserve: make room on the volume of its data directory",
			m.Name)
	}
	if lag := m.Store.LagSeconds; m.Store.LagEntries > lagEntriesTooMany || lag != nil && *lag > lagTooLong.Seconds() {
		w.add(Attention, m.Name, m.Name, "iostat -x 1; top", "server %s is %d entries behind the leader%s", m.Name,
			m.Store.LagEntries, withSeconds(", which is ", lag))
	}
	if m.Store.DiskP50Seconds > slowDisk.Seconds() {
		w.add(Attention, m.Name, m.Name, "iostat -x 1",
			"the disk of server %s is slow: half of its writes to the log take %s or more", m.Name,
			seconds(m.Store.DiskP50Seconds))
	}
	if m.Store.ExtensionSeconds >= longExtension.Seconds() {
		w.add(Attention, m.Name, m.Name, "top; cat /proc/pressure/cpu",
			"server %s is short of CPU: it is scheduled %s late, and finds a lost leader %s later than otherwise",
			m.Name, seconds(m.Store.SchedulingDelaySeconds), seconds(m.Store.ExtensionSeconds))
	}
	for _, warning := range s.Warnings {
		mend := "df -h; " + saveBackup
		if m.Backups != nil && m.Backups.Mend != "" {
			mend = m.Backups.Mend
		}
		w.add(Attention, m.Name, m.Name, mend, "server %s: %s", m.Name, warning)
	}
	if s.Undecided != "" {
		w.add(Critical, m.Name, "", "barque cluster status", "server %s, which leads: %s", m.Name, s.Undecided)
	}
	for _, addr := range slices.Sorted(maps.Keys(s.Foreign)) {
		w.add(Critical, m.Name, m.Name,
			w.by.Start+"; only if that cluster goes on in place of this one, which is abandoned: "+
				w.by.JoinAnew(m.Name),
			"server %s has no leader, and found a server of another cluster, %s, at %s, in place of one of its own",
			m.Name, s.Foreign[addr], addr)
	}
}

func (w *warner) machine(m *MemberStatus) {
	if off := m.ClockOffset; off > clockTooFar.Seconds() || off < -clockTooFar.Seconds() {
		w.add(Attention, m.Name, m.Name, "timedatectl status", "the clock of server %s is %s off", m.Name,
			seconds(max(off, -off)))
	}
	if d := m.Disk; d != nil && !m.Store.DiskFull && d.Free < d.Bytes/volumeNearlyFull {
		w.add(Attention, m.Name, m.Name, "df -h "+d.Path,
			"the volume of %s on server %s is nearly full: %d MiB of %d are free", d.Path, m.Name, d.Free>>20,
			d.Bytes>>20)
	}
}

// unsealed warns of servers that make no scheduled backups, because the operator has not chosen a
// key or unsealed ones. It is one warning for all.
func (w *warner) unsealed() {
	var names []string
	why := ""
	for _, m := range w.status.Members {
		if m.Backups != nil && m.Backups.Refused != "" {
			names, why = append(names, m.Name), m.Backups.Refused
		}
	}
	if len(names) > 0 {
		w.add(Attention, "", "each of them", MendRefused, "no scheduled backups are made by %s: %s",
			strings.Join(names, ", "), why)
	}
}

// backups warns if the last backup is too old. A failed backup is among the warnings of the store.
func (w *warner) backups(m *MemberStatus) {
	b := m.Backups
	if b == nil || b.EverySeconds <= 0 || b.Problem != "" || b.Refused != "" {
		return
	}
	late := w.status.Time.Add(-time.Duration(b.EverySeconds*float64(time.Second))*5/4 - backupGrace)
	switch {
	case b.Newest == nil && m.Started.Before(late):
		w.add(Attention, m.Name, "", saveBackup, "server %s has made no backup since it was started at %s", m.Name,
			m.Started.UTC().Format(time.RFC3339))
	case b.Newest != nil && b.Newest.Created.After(w.status.Time.Add(clockTooFar)):
		w.add(Attention, m.Name, m.Name, "timedatectl status",
			"the newest backup of server %s is dated %s, in the future: its clock was ahead", m.Name,
			b.Newest.Created.UTC().Format(time.RFC3339))
	case b.Newest != nil && b.Newest.Created.Before(late) && m.Started.Before(late):
		w.add(Attention, m.Name, "", saveBackup, "the newest backup of server %s is of %s", m.Name,
			b.Newest.Created.UTC().Format(time.RFC3339))
	}
}

func (w *warner) certificates(m *MemberStatus) {
	// CAs of all purposes are exchanged together: the one for clients, of which the first issues,
	// says how.
	clients := slices.IndexFunc(m.Certificates, func(c CertificateStatus) bool { return c.Name == "ca" })
	brought := clients >= 0 && m.Certificates[clients].External
	for _, c := range m.Certificates {
		mend := "barque cert rotate --server " + m.Name
		if c.Name == "ca" || strings.HasSuffix(c.Name, "-ca") {
			mend = "barque cert rotate --ca"
			if brought {
				mend += " --ca-file CHAIN --ca-key-file KEY"
			}
		}
		switch {
		case !c.NotAfter.After(w.status.Time):
			w.add(Critical, m.Name, "", mend, "the certificate %q of server %s ended at %s", c.Name, m.Name,
				c.NotAfter.UTC().Format(time.RFC3339))
		case c.Warning != "":
			w.add(Attention, m.Name, "", mend, "the certificate %q of server %s ends at %s: %s", c.Name, m.Name,
				c.NotAfter.UTC().Format(time.RFC3339), c.Warning)
		}
	}
}

func (w *warner) space() {
	size := w.status.Store
	text := spaceWarning(&raftstore.Status{Space: size.Space, StateBytes: size.Bytes, StateLimit: size.Limit})
	if text == "" {
		return
	}
	severity := Attention
	if size.Space == "full" {
		severity = Critical
	}
	w.add(severity, "", "",
		"barque kubectl delete unneeded objects, or start all servers with a higher --store-memory-limit", "%s", text)
}

// ways warns of servers that do not reach each other, and of long ways.
func (w *warner) ways() {
	reached := map[[2]string]bool{}
	for _, m := range w.status.Members {
		for _, way := range m.Ways {
			reached[[2]string{m.Name, way.To}] = way.Error == ""
		}
	}
	for _, m := range w.status.Members {
		for _, way := range m.Ways {
			to := w.member(way.To)
			switch {
			case to == nil || to.Store == nil: // it answers no server, which has a warning already
			case way.Error != "":
				back := ""
				if reached[[2]string{way.To, m.Name}] {
					back = fmt.Sprintf(", although %s reaches %s", way.To, m.Name)
				}
				w.add(Critical, m.Name, m.Name, w.by.From(m.Name, "nc -zv "+to.Address+" 6444"),
					"server %s does not reach server %s%s: %s", m.Name, way.To, back, way.Error)
			case *way.RTTSeconds > slowWay.Seconds():
				mend := w.by.From(m.Name, "cat /proc/net/dev") +
					"; errors and drops that grow there, or on the machine of " + way.To +
					", are of a link; without them, look at the load of the two machines and the network between"
				w.add(Attention, m.Name, m.Name, mend, "the way from server %s to %s and back takes %s", m.Name, way.To,
					seconds(*way.RTTSeconds))
			}
		}
	}
}

func (w *warner) member(name string) *MemberStatus {
	for i := range w.status.Members {
		if w.status.Members[i].Name == name {
			return &w.status.Members[i]
		}
	}
	return nil
}

// views warns when servers that answer see a node differently by gossip.
func (w *warner) views() {
	seen := map[string]map[gossip.State][]string{} // state in each view, by node
	lookers := 0
	for _, m := range w.status.Members {
		if m.Views == nil {
			continue
		}
		lookers++
		for _, v := range m.Views {
			if seen[v.Node] == nil {
				seen[v.Node] = map[gossip.State][]string{}
			}
			seen[v.Node][v.State] = append(seen[v.Node][v.State], m.Name)
		}
	}
	for _, node := range slices.Sorted(maps.Keys(seen)) {
		if len(seen[node][gossip.Alive]) == 0 {
			continue // some may already have forgotten a dead one
		}
		var said []string
		count := 0
		for _, state := range slices.Sorted(maps.Keys(seen[node])) {
			said = append(said, fmt.Sprintf("%s for %s", state, strings.Join(seen[node][state], ", ")))
			count += len(seen[node][state])
		}
		if count < lookers {
			said = append(said, fmt.Sprintf("unknown to %d", lookers-count))
		}
		if len(said) < 2 {
			continue
		}
		address, m := node, w.member(node)
		if m != nil {
			address = m.Address
		}
		w.add(Attention, node, "", openGossip(m)+address+" and all nodes",
			"the servers do not see %s alike by gossip: it is %s", node, strings.Join(said, " and "))
	}
}

// seconds writes a number of seconds for people.
func seconds(s float64) string {
	d := time.Duration(s * float64(time.Second))
	switch {
	case d < time.Millisecond:
		return d.Round(10 * time.Microsecond).String()
	case d < 10*time.Second:
		return d.Round(time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

// withSeconds appends a number of seconds to a text; nothing for nil.
func withSeconds(before string, s *float64) string {
	if s == nil {
		return ""
	}
	return before + seconds(*s)
}

// spaceWarning warns that the store is getting full or is full; empty otherwise. All servers have
// the same state, so one warning is enough.
func spaceWarning(s *raftstore.Status) string {
	if s.Space == "" {
		return ""
	}
	limit := resource.NewQuantity(s.StateLimit, resource.BinarySI)
	used := fmt.Sprintf("%.0f %% of %s are taken", float64(s.StateBytes)/float64(s.StateLimit)*100, limit)
	if s.Space == "full" {
		return "the store is full, so new objects are refused: " + used
	}
	return "the store fills up: " + used + ", and at the limit new objects are refused"
}

// openGossip begins the command for a firewall that stands in the way of a member's gossip.
func openGossip(m *MemberStatus) string {
	port := "the port of gossip"
	if m != nil && m.GossipPort != 0 {
		port = fmt.Sprintf("port %d", m.GossipPort)
	}
	return "open " + port + ", TCP and UDP, between "
}
